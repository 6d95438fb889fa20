//! Objects of one resource, listed by API servers.
use std::collections::VecDeque;
use std::time::Instant;

use super::{Item, Missed, Page};
use crate::api::{Api, Listed, Refusal};
use crate::budget::PageBudget;
use crate::report::{Failed, Skipped};
use crate::targets::Target;
use crate::token;
use crate::verdict::{Cause, Silence};

/// Objects of one target, in the order of etcd.
#[derive(Debug)]
pub struct Listing {
    api: Api,
    target: Target,
    place: usize,
    budget: PageBudget,
    /// What is still to be listed: all of it, or namespace after namespace.
    parts: VecDeque<Part>,
    /// What was seen last, as the whole list would name it.
    after: String,
    seen: u64,
    /// Pages of one object that could not be read, in a row: once may be chance.
    stuck: u32,
    /// Objects in a row that could not be read.
    in_a_row: u32,
    /// A token that was made here was refused.
    restarted: bool,
}

#[derive(Debug)]
struct Part {
    namespace: Option<String>,
    token: String,
}

/// How often one object must fail a list before it is believed.
const TRIES: u32 = 4;
/// How many in a row may be unreadable before it is not the objects, but what decrypts them.
const IN_A_ROW: u32 = 20;

impl Listing {
    /// Of `target`, which is at `place` of the plan, behind `after`.
    pub fn new(api: Api, target: Target, place: usize, budget: PageBudget, after: &str) -> Self {
        let token = if after.is_empty() { String::new() } else { token::behind(after) };
        let parts = VecDeque::from([Part { namespace: None, token }]);
        Self {
            api,
            target,
            place,
            budget,
            parts,
            after: after.to_owned(),
            seen: 0,
            stuck: 0,
            in_a_row: 0,
            restarted: false,
        }
    }

    /// The next page.
    ///
    /// # Errors
    /// If it does not come now, or never will.
    pub async fn next(&mut self) -> Result<Page, Missed> {
        let mut page = Page::default();
        loop {
            let Some(part) = self.parts.front() else {
                return Ok(self.ended(page));
            };
            let (namespace, token) = (part.namespace.clone(), part.token.clone());
            let begun = Instant::now();
            let answer = self.api.list(&self.target, namespace.as_deref(), self.budget.limit(), &token).await;
            match answer {
                Ok(Ok(listed)) => {
                    self.budget.learn(listed.items.len() as u64, listed.bytes, begun.elapsed());
                    return Ok(self.listed(page, listed));
                }
                Ok(Err(refusal)) => self.refused(&refusal, &mut page).await?,
                Err(Silence::TooLarge) if self.budget.shrink() => {}
                Err(Silence::TooLarge) => {
                    self.skip(&mut page, "the metadata of the next object is larger than is taken");
                }
                Err(Silence::Deadline) => {
                    self.budget.shrink();
                    return Err(Missed::Wait { after: None, busy: false });
                }
                Err(Silence::Connection) => return Err(Missed::Wait { after: None, busy: false }),
                Err(Silence::Credentials) => return Err(Missed::Stop(Cause::Credentials.to_string())),
            }
        }
    }

    /// Gives up what is left, if API servers serve something else.
    pub async fn give_up(&mut self) -> Option<Page> {
        self.api.namespaces().await.ok()?.ok()?;
        let mut page = Page::default();
        self.parts.truncate(1);
        self.skip(
            &mut page,
            "API servers do not list it, although they list other objects: kubectl get of it alike says why",
        );
        Some(self.ended(page))
    }

    fn ended(&self, mut page: Page) -> Page {
        page.after.clone_from(&self.after);
        page.is_last = true;
        page
    }

    fn listed(&mut self, mut page: Page, listed: Listed) -> Page {
        self.stuck = 0;
        if !listed.items.is_empty() {
            self.in_a_row = 0;
        }
        self.seen += listed.items.len() as u64;
        if let Some(last) = listed.items.last() {
            self.after = last.position();
        }
        let is_whole = self.parts.front().is_some_and(|part| part.namespace.is_none());
        page.total = listed.behind.filter(|_| is_whole).map(|behind| self.seen + behind);
        page.items.extend(listed.items.into_iter().map(|object| Item {
            target: self.place,
            namespace: object.namespace,
            name: object.name,
            uid: Some(object.uid).filter(|uid| !uid.is_empty()),
            version: Some(object.resource_version),
            stored: None,
        }));
        match (listed.next, self.parts.front_mut()) {
            (next, Some(part)) if !next.is_empty() => part.token = next,
            _ => drop(self.parts.pop_front()),
        }
        page.after.clone_from(&self.after);
        page.is_last = self.parts.is_empty();
        page
    }

    /// Looks for a way to go on.
    async fn refused(&mut self, refusal: &Refusal, page: &mut Page) -> Result<(), Missed> {
        let reply = &refusal.reply;
        match reply.code {
            401 => return Err(Missed::Stop(Cause::Credentials.to_string())),
            // It was listed at a moment that etcd has forgotten.
            410 => {
                page.expired = true;
                let next = match refusal.next() {
                    "" => self.own_token(),
                    next => next.to_owned(),
                };
                self.go_on_at(next);
            }
            // A server that does not take tokens that were made here.
            400 if !self.restarted && self.parts.front().is_some_and(|part| !part.token.is_empty()) => {
                self.restarted = true;
                self.go_on_at(String::new());
            }
            // Its cache is behind the moment that the list is of.
            408 | 504 if self.parts.front().is_some_and(|part| part.token != self.own_token()) => {
                page.expired = true;
                let token = self.own_token();
                self.go_on_at(token);
            }
            429 => return Err(Missed::Wait { after: reply.after, busy: true }),
            408 | 502 | 503 | 504 => return Err(Missed::Wait { after: reply.after, busy: false }),
            500..=599 => self.unreadable(refusal, page).await?,
            403 => self.skip(page, "the right to list it is missing (403)"),
            200..=299 => {
                self.skip(page, "the answer to a list is none of an API server: a proxy may have changed it")
            }
            code => self.skip(page, &format!("API servers refuse to list it ({code})")),
        }
        Ok(())
    }

    /// Some object of the page can't be read, or storage can't.
    async fn unreadable(&mut self, refusal: &Refusal, page: &mut Page) -> Result<(), Missed> {
        if self.budget.shrink() {
            return Ok(());
        }
        self.stuck += 1;
        if self.stuck < TRIES {
            return Err(Missed::Wait { after: None, busy: false });
        }
        self.stuck = 0;
        self.in_a_row += 1;
        if self.in_a_row > IN_A_ROW {
            self.parts.truncate(1);
            self.skip(page, "too many objects in a row can't be read: is the plugin or its key service away? With flags for etcd, each object is found by its key");
            return Ok(());
        }
        let here = self.parts.front().and_then(|part| part.namespace.clone());
        let named = refusal.unreadable(self.target.is_namespaced);
        let next = named.into_iter().find(|position| {
            let is_here = here.as_ref().is_none_or(|namespace| {
                position.split_once('/').is_some_and(|(found, _)| found == namespace)
            });
            is_here && *position > self.after
        });
        if let Some(position) = next {
            let (namespace, name) = match position.split_once('/') {
                Some((namespace, name)) if self.target.is_namespaced => (Some(namespace.to_owned()), name),
                _ => (None, position.as_str()),
            };
            page.unreadable.push(Failed {
                resource: self.target.resource.to_string(),
                namespace,
                name: name.to_owned(),
                cause: Cause::Unreadable {
                    code: Some(refusal.reply.code),
                    reason: refusal.reply.reason.clone(),
                    stored: None,
                },
            });
            self.after = position;
            let token = self.own_token();
            self.go_on_at(token);
            return Ok(());
        }
        if here.is_some() || !self.target.is_namespaced {
            self.skip(page, "the next object can't be read, and fails lists: with flags for etcd, each object is found by its key");
            return Ok(());
        }
        // The one that can't be read fails lists of its own namespace only.
        match self.api.namespaces().await {
            Ok(Ok(names)) => {
                let current = self.after.split_once('/').map_or("", |(namespace, _)| namespace).to_owned();
                let after = self.after.clone();
                let part = |name: String| {
                    let name_in = after.split_once('/').filter(|(found, _)| *found == name);
                    let token = name_in.map(|(_, name)| token::behind(name)).unwrap_or_default();
                    Part { namespace: Some(name), token }
                };
                self.parts = names.into_iter().filter(|name| *name >= current).map(part).collect();
            }
            Ok(Err(reply)) => {
                self.skip(
                    page,
                    &format!(
                        "the next object can't be read and fails lists, and namespaces can't be listed ({})",
                        reply.code
                    ),
                );
            }
            Err(_) => return Err(Missed::Wait { after: None, busy: false }),
        }
        Ok(())
    }

    /// Gives up what is left of the front part.
    fn skip(&mut self, page: &mut Page, why: &str) {
        let namespace = self.parts.pop_front().and_then(|part| part.namespace);
        let resource = &self.target.resource;
        let mut what = resource.to_string();
        if let Some(namespace) = &namespace {
            what = format!("{what} in namespace {namespace}");
        }
        let is_behind = |namespace: &String| self.after.starts_with(&format!("{namespace}/"));
        if !self.after.is_empty() && namespace.as_ref().is_none_or(is_behind) {
            what = format!("{what} behind {}", self.after);
        }
        page.skipped.push(Skipped { what, why: why.to_owned() });
    }

    fn go_on_at(&mut self, token: String) {
        if let Some(part) = self.parts.front_mut() {
            part.token = token;
        }
    }

    /// Behind what was seen last, in the words of the front part.
    fn own_token(&self) -> String {
        let here = self.parts.front().and_then(|part| part.namespace.as_deref());
        match (here, self.after.split_once('/')) {
            _ if self.after.is_empty() => String::new(),
            (None, _) => token::behind(&self.after),
            (Some(here), Some((namespace, name))) if here == namespace => token::behind(name),
            (Some(_), _) => String::new(),
        }
    }
}

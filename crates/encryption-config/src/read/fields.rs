//! Taking a tree apart: known fields, lists and texts, each fault at the place where it was found.

use std::collections::HashMap;

use zeroize::Zeroizing;

use super::tree::{Item, Node};
use crate::{Fault, Position, Problem, Refused};

/// Goes through a tree and collects what is wrong.
#[derive(Default)]
pub(super) struct Decoder {
    problems: Vec<Problem>,
    /// Of every field that was looked at.
    positions: HashMap<String, Position>,
}

/// The known fields of one map, those that are null left out: that is how Go takes them.
pub(super) struct Fields<'a> {
    path: String,
    present: Vec<(&'static str, &'a Item)>,
}

impl Decoder {
    /// Only the first fault of a field is kept: what follows from it is no news.
    pub(super) fn found(&mut self, field: impl Into<String>, fault: Fault) {
        let problem = self.place(Problem::new(field, fault));
        if self.problems.iter().all(|other| other.field != problem.field) {
            self.problems.push(problem);
        }
    }

    /// What was wrong so far.
    pub(super) fn finish(&mut self) -> Result<(), Refused> {
        match std::mem::take(&mut self.problems) {
            problems if problems.is_empty() => Ok(()),
            problems => Err(Refused::new(problems)),
        }
    }

    /// The same with positions.
    pub(super) fn placed(&self, refused: Refused) -> Refused {
        Refused::new(refused.problems().iter().cloned().map(|problem| self.place(problem)).collect())
    }

    /// A field that isn't there has the position of what it should be in.
    fn place(&self, mut problem: Problem) -> Problem {
        let mut field = problem.field.as_str();
        problem.position = loop {
            if let Some(position) = self.positions.get(field) {
                break Some(*position);
            }
            match field.rfind(['.', '[']) {
                Some(end) => field = &field[..end],
                None if field.is_empty() => break None,
                None => field = "",
            }
        };
        problem
    }

    /// The fields of `item`, which are to be among `known`. Null is a map without any.
    pub(super) fn fields<'a>(
        &mut self,
        item: &'a Item,
        path: &str,
        known: &'static [&'static str],
    ) -> Fields<'a> {
        self.positions.entry(path.to_owned()).or_insert(item.at);
        let mut seen = Vec::new();
        match &item.node {
            Node::Null => {}
            Node::Map(fields) => {
                for field in fields {
                    let Some(name) = known.iter().find(|name| **name == field.name.as_str()) else {
                        let fault = Fault::UnknownField { name: showable(&field.name), accepted: known };
                        self.problems.push(Problem::at(field.at, path, fault));
                        continue;
                    };
                    let field_path = join(path, name);
                    if seen.iter().any(|(other, _)| other == name) {
                        self.problems.push(Problem::at(field.at, field_path, Fault::DuplicateField));
                        continue;
                    }
                    self.positions.insert(field_path, field.at);
                    seen.push((*name, &field.value));
                }
            }
            other => self.found(path, Fault::Type { found: other.kind(), accepted: "a map of fields" }),
        }
        seen.retain(|(_, item)| !matches!(item.node, Node::Null));
        Fields { path: path.to_owned(), present: seen }
    }

    /// What `read` makes of each item of a list. Nothing is a list of nothing.
    pub(super) fn list<T>(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        read: impl Fn(&mut Self, &Item, &str) -> Option<T>,
    ) -> Vec<T> {
        let Some(item) = fields.get(name) else { return Vec::new() };
        let path = fields.path(name);
        let Node::List(items) = &item.node else {
            self.found(path, Fault::Type { found: item.node.kind(), accepted: "a list" });
            return Vec::new();
        };
        let mut values = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let path = format!("{path}[{place}]");
            self.positions.insert(path.clone(), item.at);
            values.extend(read(self, item, &path));
        }
        values
    }

    /// The text of a field; empty where it is absent or no text.
    pub(super) fn text(&mut self, fields: &Fields<'_>, name: &str) -> Zeroizing<String> {
        match fields.get(name) {
            Some(item) => self.text_of(item, &fields.path(name)),
            None => Zeroizing::default(),
        }
    }

    /// The text of `item`; nothing is the empty text.
    pub(super) fn text_of(&mut self, item: &Item, path: &str) -> Zeroizing<String> {
        match &item.node {
            Node::Text(text) => return text.clone(),
            Node::Null => {}
            other => self.found(path, Fault::Type { found: other.kind(), accepted: "text" }),
        }
        Zeroizing::default()
    }
}

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a Item> {
        self.present.iter().find(|(other, _)| *other == name).map(|(_, item)| *item)
    }

    /// Those that are there, in the order of the file.
    pub(super) fn present(&self) -> impl Iterator<Item = (&'static str, &'a Item)> + '_ {
        self.present.iter().copied()
    }

    pub(super) fn path(&self, name: &str) -> String {
        join(&self.path, name)
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A name that may be shown: a key that somebody put in its place is longer, or has other characters.
fn showable(name: &str) -> Option<String> {
    const LONGEST: usize = 20;

    let shows = name.len() <= LONGEST
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    shows.then(|| name.to_owned())
}

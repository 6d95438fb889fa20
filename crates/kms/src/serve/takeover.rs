//! A changed configuration: all that can fail first, then all of it at once.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::{KeyId, ReadPolicy, WritePolicy};
use tokio::time::{Instant, timeout};

use super::house::{Foundation, House, Room, begin_audit, listen, make_room_for, settings};
use super::reach::Named;
use super::{PartError, unix_seconds};
use crate::audit::{Audit, Changed};
use crate::config::{Config, ProviderConfig, Source};
use crate::provider::Ready;
use crate::reload::changes::{changes, one_line};
use crate::reload::rules::{NotTakenOver, may_take_over};
use crate::reload::{Reading, ReloadError, covers, is_whole, says_still};
use crate::socket::{Admission, Gate, PassedSockets, Socket};

/// How often what was refused is tried again: what stood in the way may be gone.
const TRY_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// Each try asks root keys, and somebody may pay for it: then twice as long each time, up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// How long an audit log is kept open for calls that began with it.
const LAST_RECORDS: Duration = Duration::from_secs(5);

/// A text that was refused, and when.
pub(super) struct Refused {
    text: Option<Source>,
    tried: Instant,
    wait: Duration,
}

/// All that can fail has not; dropped, nothing has changed.
struct Plan {
    rooms: Vec<Change>,
    admin: Option<Socket>,
    audit: Log,
}

impl Plan {
    /// Whatever is killed from now on: what wrote before does not come back.
    async fn note(&mut self) {
        for change in &mut self.rooms {
            if let Change::Kept { successor: Some(successor), .. } = change {
                successor.note().await;
            }
        }
    }
}

/// What becomes of the audit log.
enum Log {
    AsItIs,
    Changed(Changed),
    Replaced(Option<Audit>),
}

/// What becomes of a provider.
enum Change {
    New(Box<Foundation>),
    Kept { name: String, successor: Option<Ready>, door: Option<Box<Socket>> },
}

impl House {
    /// Takes over what was read, if it is another configuration and may be.
    pub(super) async fn look_at(&mut self, reading: Reading) {
        let Reading { source, asked } = reading;
        if source.as_ref().is_ok_and(|source| *source == self.source) {
            if self.configured.refused.is_some() {
                tracing::info!("the configuration's file says again what holds");
                self.configured = self.configured.as_it_is();
                self.show();
            }
            self.refused = None;
            if asked || self.rest_tried.elapsed() >= TRY_AGAIN_EVERY {
                self.rest_tried = Instant::now();
                self.start_the_rest().await;
            }
            return;
        }
        let same = |refused: &&Refused| refused.text.as_ref() == source.as_ref().ok();
        let waited = self.refused.as_ref().filter(same).map(|was| (was.tried.elapsed(), was.wait));
        if waited.is_some_and(|(waited, wait)| waited < wait) && !asked {
            return;
        }
        let wait = match waited {
            Some((_, wait)) if self.is_paid_for(source.as_ref().ok()) => (wait * 2).min(LONGEST_WAIT),
            _ => TRY_AGAIN_EVERY,
        };
        let text = source.as_ref().ok().cloned();
        let taken = match source {
            Ok(source) => self.take_over(source).await,
            Err(error) => Err(error.into()),
        };
        match taken {
            Ok(lines) => {
                self.refused = None;
                tracing::info!(
                    changes = lines.len(),
                    sha256 = self.configured.sha256,
                    "a changed configuration holds now"
                );
                for line in lines {
                    tracing::info!("changed: {line}");
                }
            }
            Err(error) => {
                self.refused = Some(Refused { text, tried: Instant::now(), wait });
                let (why, needs_restart) = (one_line(&error.to_string()), error.needs_restart());
                if self.configured.refused.as_ref().is_none_or(|(said, _)| *said != why) {
                    tracing::error!(
                        "the configuration's file changed and is not taken over, what held goes on: {why}"
                    );
                    self.configured = self.configured.refusing(why, needs_restart, unix_seconds());
                    self.show();
                }
            }
        }
    }

    /// Whether to try what `text` says asks somebody who is paid for it.
    fn is_paid_for(&self, text: Option<&Source>) -> bool {
        let new = text.and_then(|text| text.config().ok());
        self.config.asks_key_services() || new.is_some_and(|config| config.asks_key_services())
    }

    async fn take_over(&mut self, source: Source) -> Result<Vec<String>, ReloadError> {
        let config = source.config()?;
        is_whole(&source)?;
        may_take_over(&self.config, &config, unix_seconds())
            .map_err(|why| self.with_what_was_seen(why, &config))?;
        if let Some(kept) = &self.confined_to {
            covers(kept, &config.folders(source.path()))?;
        }
        make_room_for(&config)?;
        let mut plan = self.plan(&config).await?;
        // Root keys may be slow, and whoever delivered it may have thought better of it.
        if !says_still(&source).await {
            return Err(ReloadError::Replaced { path: source.path().to_owned() });
        }
        plan.note().await;
        self.open_gates(&config)?;
        self.carry_out(plan, &config);
        self.configured = self.configured.replaced_by(&source, unix_seconds());
        let is_missing = |name: &str| {
            self.room(name).is_none()
                && config.providers.iter().any(|provider| provider.name.as_str() == name)
        };
        let missing =
            self.configured.not_started.clone().into_iter().filter(|(name, _)| is_missing(name)).collect();
        self.configured.not_started = missing;
        self.named.store(Arc::new(Named::by(&config, source.path())));
        let lines = changes(&self.source.fields(), &source.fields());
        (self.source, self.config) = (source, config);
        self.show();
        Ok(lines)
    }

    /// Names what this process has read that needs the missing root key.
    fn with_what_was_seen(&self, mut why: NotTakenOver, config: &Config) -> NotTakenOver {
        if let NotTakenOver::ReaderMissing { provider, seen: found, .. } = &mut why
            && let Some(room) = self.room(provider)
            && let Some(after) = config.providers.iter().find(|after| after.name.as_str() == provider)
        {
            *found = seen(room, &after.read_policy(&config.cluster_id));
        }
        why
    }

    async fn plan(&self, config: &Config) -> Result<Plan, ReloadError> {
        let admin = match &config.admin {
            Some(admin) if self.admin.as_ref().is_none_or(|door| door.endpoint != *admin.endpoint) => {
                let none = &mut PassedSockets::default();
                Some(listen(none, "admin", &admin.endpoint, admin.admission()).await?)
            }
            _ => None,
        };
        let mut rooms = Vec::new();
        for provider in &config.providers {
            let name = provider.name.to_string();
            let Some(room) = self.room(&name) else {
                match Foundation::lay(config, provider, &self.services, &mut PassedSockets::default(), None)
                    .await
                {
                    Ok(foundation) => rooms.push(Change::New(Box::new(foundation))),
                    // What could not be started before holds up no other.
                    Err(_) if self.configured.not_started.contains_key(&name) => {}
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            let door = if room.door.endpoint == *provider.endpoint {
                None
            } else if room.door.gate.is_passed() {
                // Who still connects to the old one would wait for ever.
                return Err(NotTakenOver::NeedsRestart {
                    field: "endpoint",
                    before: format!("{} (which a service manager has bound)", room.door.endpoint),
                    after: provider.endpoint.to_string(),
                }
                .into());
            } else {
                let none = &mut PassedSockets::default();
                Some(Box::new(listen(none, &name, &provider.endpoint, provider.admission()).await?))
            };
            let mut held = self.config.providers.iter();
            let successor = if held.any(|held| held.is_same_behind_the_door(provider)) {
                None
            } else {
                Some(self.successor(room, config, provider).await?)
            };
            rooms.push(Change::Kept { name, successor, door });
        }
        // The last one, since a log that begins has lines from then on.
        let audit = match (&self.audit, &self.config.audit, &config.audit) {
            (_, held, new) if held == new => Log::AsItIs,
            (Some(log), Some(held), Some(new)) if held.path.0 == new.path.0 => {
                Log::Changed(log.prepare(new).map_err(PartError::from)?)
            }
            _ => Log::Replaced(begin_audit(config)?),
        };
        Ok(Plan { rooms, admin, audit })
    }

    async fn successor(
        &self,
        room: &Room,
        config: &Config,
        provider: &ProviderConfig,
    ) -> Result<Ready, ReloadError> {
        let settings = settings(config, provider, &self.services).map_err(PartError::from)?;
        let seen = seen(room, &settings.read_policy);
        room.succession
            .prepare(settings, provider.recipients())
            .await
            .map_err(|source| ReloadError::Provider { provider: provider.name.to_string(), source, seen })
    }

    /// The last thing that can fail: those that were changed until then are changed back.
    fn open_gates(&self, config: &Config) -> Result<(), ReloadError> {
        let rooms = config.providers.iter().filter_map(|provider| {
            let door = &self.room(provider.name.as_str())?.door;
            (door.endpoint == *provider.endpoint).then(|| (&door.gate, provider.admission()))
        });
        let admin = self.admin.iter().zip(&config.admin);
        let admin = admin
            .filter(|(door, admin)| door.endpoint == *admin.endpoint)
            .map(|(door, admin)| (&door.gate, admin.admission()));
        let mut opened: Vec<(&Gate, Admission)> = Vec::new();
        for (gate, admission) in rooms.chain(admin) {
            let before = gate.admission();
            if let Err(error) = gate.admit(admission) {
                for (gate, before) in opened {
                    if let Err(error) = gate.admit(before) {
                        tracing::error!(%error, "who may connect could not be changed back");
                    }
                }
                return Err(PartError::from(error).into());
            }
            opened.push((gate, (*before).clone()));
        }
        Ok(())
    }

    /// Nothing of this fails, and nothing of it waits.
    fn carry_out(&mut self, plan: Plan, config: &Config) {
        self.carry_out_audit(plan.audit);
        let mut rooms = std::mem::take(&mut self.rooms);
        for change in plan.rooms {
            let room = match change {
                Change::New(foundation) => self.open_room(*foundation, || {}),
                Change::Kept { name, successor, door } => {
                    let Some(at) = rooms.iter().position(|room| **room.hosted.name() == *name) else {
                        continue;
                    };
                    let mut room = rooms.swap_remove(at);
                    if let Some(successor) = successor {
                        let provider = successor.provider().clone();
                        successor.begin();
                        room.hosted.answer_with(provider);
                    }
                    if let Some(socket) = door {
                        let opened = self.open_door(&room.hosted, *socket, std::future::ready(()));
                        std::mem::replace(&mut room.door, opened).close();
                    }
                    room
                }
            };
            self.rooms.push(room);
        }
        rooms.into_iter().for_each(Room::close);
        let closed = match (plan.admin, &config.admin) {
            (Some(socket), _) => {
                let opened = self.open_admin(socket);
                self.admin.replace(opened)
            }
            (None, None) => self.admin.take(),
            (None, Some(_)) => None,
        };
        if let Some(door) = closed {
            door.close();
        }
    }

    fn carry_out_audit(&mut self, log: Log) {
        let old = match (log, &mut self.audit) {
            (Log::Changed(changed), Some(audit)) => {
                audit.change(changed);
                None
            }
            (Log::Replaced(new), audit) => std::mem::replace(audit, new),
            (Log::AsItIs, _) | (Log::Changed(_), None) => return,
        };
        for room in &self.rooms {
            room.hosted.record_with(self.audit.as_ref().map(Audit::recorder));
        }
        if let Some(old) = old {
            let stop = self.stop.clone();
            // Whoever waits for the end of all tasks waits for its last lines too.
            self.tasks.spawn(async move {
                let _ = timeout(LAST_RECORDS, stop.cancelled()).await;
                old.stop().await;
                Ok(())
            });
        }
    }

    fn room(&self, name: &str) -> Option<&Room> {
        self.rooms.iter().find(|room| **room.hosted.name() == *name)
    }
}

/// Key ids of records that the provider has opened, and that `policy` would not read any more.
fn seen(room: &Room, policy: &ReadPolicy) -> Vec<KeyId> {
    room.hosted.provider().unreadable_by(policy).iter().map(WritePolicy::key_id).collect()
}

//! The process that loads a module: a few sessions, each in a thread of its own, behind one socket.
//!
//! Whoever starts it confines it first. It ends when the other side of its socket does, whatever the module does then.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use cryptoki::session::Session;
use zeroize::Zeroizing;

use super::code::{Cure, may_blame_ciphertext};
use super::frame::{self, Answer, Ask, Outcome, Request};
use super::sign::sign;
use super::token::{Module, Trouble};
use super::wraps::{Key, absent, doubt, observe, versions};
use super::{CkaId, HostConfig, Wrapping, Writes};
use crate::{Class, Failure};

/// As many calls go at once, each in a session of its own.
pub(super) const SESSIONS: usize = 4;

/// How often a host looks at itself, in answers.
const BETWEEN_LOOKS: u32 = 32;

/// What a module may keep open beyond what it had at first.
const MORE_DESCRIPTORS: u64 = 64;
const MORE_SESSIONS: u64 = 64;
/// As many sessions are opened in one life: some tokens don't tell how many there are, and a module may only say that it
/// closed one.
const OPENED_SESSIONS: u64 = 256;
const MORE_PAGES: u64 = 128 * 1024 * 1024 / 4096;

type Job = (Request, Zeroizing<Vec<u8>>);

/// Serves until the other side is gone.
///
/// # Errors
/// What comes is no message, or can't be read.
pub fn serve(config: HostConfig, mut stream: UnixStream) -> io::Result<()> {
    let host = Arc::new(Host {
        config,
        module: OnceLock::new(),
        first: OnceLock::new(),
        answers: Mutex::new((0, stream.try_clone()?)),
    });
    let (jobs, work): (Sender<Job>, _) = channel();
    let work = Arc::new(Mutex::new(work));
    for number in 0..SESSIONS {
        let (host, work) = (host.clone(), work.clone());
        thread::Builder::new().name(format!("session-{number}")).spawn(move || host.work(&work))?;
    }
    while let Some(frame) = frame::read(&mut stream)? {
        // Threads that are gone took the process along.
        let _ = jobs.send(frame::decode(&frame)?);
    }
    Ok(())
}

struct Host {
    config: HostConfig,
    /// Loaded at the first call: this thread must go on reading, or it would not see that nobody is there any more.
    module: OnceLock<Result<Module, Failure>>,
    first: OnceLock<Usage>,
    /// How many there were, and where they go.
    answers: Mutex<(u32, UnixStream)>,
}

impl Host {
    fn work(&self, work: &Mutex<Receiver<Job>>) {
        let mut session = None;
        loop {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((request, bytes)) = next else { return };
            let module = self.module.get_or_init(|| Module::load(self.config.clone()));
            let mut doubted = false;
            let (outcome, bytes, spent) = match module {
                Ok(module) => answer(module, &mut session, &request.ask, &bytes, &mut doubted),
                Err(failure) => {
                    let spent = Some("the module can't be loaded".into());
                    (Outcome::failed(failure.clone(), None), Zeroizing::default(), spent)
                }
            };
            let said = module.as_ref().map(Module::said).unwrap_or_default();
            if !self.send(Answer { number: request.number, outcome, said, spent, doubted }, &bytes) {
                return;
            }
        }
    }

    fn send(&self, mut answer: Answer, bytes: &[u8]) -> bool {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.0 = answers.0.wrapping_add(1);
        if answer.spent.is_none() && answers.0 % BETWEEN_LOOKS == 1 {
            answer.spent = self.grown();
        }
        frame::write(&mut answers.1, &answer, bytes).is_ok()
    }

    /// What the module has more of than it should.
    fn grown(&self) -> Option<String> {
        let now = Usage::now(self.module.get()?.as_ref().ok()?);
        let first = self.first.get_or_init(|| now);
        let more = |now: u64, first: u64, bound: u64, what: &str| {
            (now > first + bound).then(|| format!("the module leaks {what}: {first} at first, {now} now"))
        };
        more(now.descriptors, first.descriptors, MORE_DESCRIPTORS, "descriptors")
            .or_else(|| more(now.sessions, first.sessions, MORE_SESSIONS, "sessions"))
            .or_else(|| {
                (now.opened > OPENED_SESSIONS).then(|| format!("{} sessions were needed", now.opened))
            })
            .or_else(|| more(now.pages, first.pages, MORE_PAGES, "pages of memory"))
    }
}

#[derive(Clone, Copy)]
struct Usage {
    descriptors: u64,
    /// Of the token, by all who use it.
    sessions: u64,
    /// By this process, ever.
    opened: u64,
    pages: u64,
}

impl Usage {
    /// What can't be seen is none.
    fn now(module: &Module) -> Self {
        let pages = || fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok();
        Self {
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
            sessions: module.sessions().unwrap_or_default(),
            opened: module.opened(),
            pages: pages().unwrap_or_default(),
        }
    }
}

/// Answer, bytes, and why the process is no good any more.
fn answer(
    module: &Module,
    session: &mut Option<Session>,
    ask: &Ask,
    bytes: &[u8],
    doubted: &mut bool,
) -> (Outcome, Zeroizing<Vec<u8>>, Option<String>) {
    let mut tried = 0;
    loop {
        tried += 1;
        let trouble = match go(module, session, ask, bytes, doubted) {
            Ok((outcome, bytes)) => return (outcome, bytes, None),
            Err(trouble) => trouble,
        };
        let cure = trouble.cure();
        if cure != Cure::None {
            // Whatever it is in the middle of goes with it.
            *session = None;
        }
        if cure == Cure::Session && tried == 1 {
            continue;
        }
        let failure = trouble.failure();
        let spent = (cure != Cure::None).then(|| failure.what.clone());
        let missing = failure.missing.is_some().then(|| ask.key().cloned()).flatten();
        return (Outcome::failed(failure, missing), Zeroizing::default(), spent);
    }
}

fn go(
    module: &Module,
    session: &mut Option<Session>,
    ask: &Ask,
    bytes: &[u8],
    doubted: &mut bool,
) -> Result<(Outcome, Zeroizing<Vec<u8>>), Trouble> {
    let session = match session {
        Some(session) => session,
        none => none.insert(module.session()?),
    };
    let logins = module.logins();
    let outcome = done(module, session, ask, bytes, doubted);
    let rests_on_absence = match &outcome {
        Ok((Outcome::Writes { absent, .. }, _)) => !absent.is_empty(),
        Ok((outcome, _)) => matches!(outcome, Outcome::Versions(_)),
        Err(Trouble::Found(failure) | Trouble::Passing(failure, Cure::Host)) => {
            failure.missing.is_some() || failure.class == Class::Undecided
        }
        Err(_) => false,
    };
    if rests_on_absence {
        module.shows_all(session, logins)?;
    }
    outcome
}

fn done(
    module: &Module,
    session: &mut Session,
    ask: &Ask,
    bytes: &[u8],
    doubted: &mut bool,
) -> Result<(Outcome, Zeroizing<Vec<u8>>), Trouble> {
    let done = |bytes| (Outcome::Done, bytes);
    Ok(match ask {
        Ask::Observe { wrapping, keys, writes } => {
            let seen = observe(session, *wrapping, keys, writes);
            let key = seen.map_err(|trouble| doubt(trouble, session, *wrapping, keys))?;
            let absent = absent(session, *wrapping, keys, &key);
            (Outcome::Writes { key, absent }, Zeroizing::default())
        }
        Ask::Versions { wrapping, keys } => {
            (Outcome::Versions(versions(session, *wrapping, keys)?), Zeroizing::default())
        }
        Ask::Sign { key, signing } => done(sign(session, *signing, key, bytes)?.into()),
        Ask::Wrap { wrapping, key, associated } => {
            done(Key::enabled(session, *wrapping, key)?.wrap(associated, bytes)?.into())
        }
        Ask::Unwrap { wrapping, key, associated, thorough } => {
            let how = Unwrap { wrapping: *wrapping, key, associated, thorough: *thorough };
            done(unwrap(module, session, &how, bytes, doubted)?)
        }
    })
}

/// The payload of a wrap. A code that may blame wrap or token is the wrap's fault only if the key opens another one.
fn unwrap(
    module: &Module,
    session: &mut Session,
    ask: &Unwrap<'_>,
    wrap: &[u8],
    doubted: &mut bool,
) -> Result<Zeroizing<Vec<u8>>, Trouble> {
    let is_unclear = |trouble: &Trouble| trouble.code().is_some_and(may_blame_ciphertext);
    let mut fresh = false;
    loop {
        let found = Key::present(session, ask.wrapping, ask.key)?;
        let trouble = match found.unwrap(ask.associated, wrap) {
            Err(trouble) if is_unclear(&trouble) => trouble,
            settled => return settled,
        };
        match found.is_well(ask.associated) {
            // If that was a moment's weakness, it opens now.
            Some(true) => {
                return found
                    .unwrap(ask.associated, wrap)
                    .map_err(|trouble| if is_unclear(&trouble) { found.not_opened(wrap) } else { trouble });
            }
            // Once more where nothing was left behind. The old session is closed after: with the last, a login ends.
            Some(false) if !fresh => *session = module.session()?,
            Some(false) => return Err(trouble),
            None if !fresh && ask.thorough => {
                *doubted = true;
                *session = module.session()?;
            }
            None => {
                let mut failure = Failure { class: Class::Unreachable, ..trouble.failure() };
                failure.what +=
                    "; whether the wrap or the token is at fault can't be told, since the key only unwraps";
                // Bytes from etcd must not have the process replaced each time.
                let cure = if ask.thorough { Cure::Host } else { Cure::None };
                return Err(Trouble::Passing(failure, cure));
            }
        }
        fresh = true;
    }
}

/// How a wrap is opened.
struct Unwrap<'a> {
    wrapping: Wrapping,
    key: &'a CkaId,
    associated: &'a [u8],
    thorough: bool,
}

impl Ask {
    fn key(&self) -> Option<&CkaId> {
        match self {
            Self::Observe { writes: Writes::Pinned(key), .. } => Some(key),
            // None is there, then.
            Self::Observe { writes: Writes::Never, keys, .. } => keys.first(),
            Self::Observe { .. } | Self::Versions { .. } => None,
            Self::Sign { key, .. } | Self::Wrap { key, .. } | Self::Unwrap { key, .. } => Some(key),
        }
    }
}

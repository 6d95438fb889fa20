//! What an answer of an API server means for one object. Pure.
//!
//! | answer to a write | meaning |
//! |---|---|
//! | 2xx | done: kube-apiserver wrote it if it was stale, else nothing |
//! | 429, 502, 503, no connection | the server's state, not the object's: wait, then go on |
//! | 408, 504, no answer in time | may pass: try again later, a bounded number of times |
//! | 401, 404, 409, 5xx else | a read of the object tells, see below |
//! | 4xx else | permanent: policy, validation, size or rights; listed, and not tried again |
//!
//! An admission webhook may deny with whatever code it likes, 404 and 409 among them, and is not asked about reads. So
//! a read is the referee:
//!
//! | the read | after 409 | after 401, 404 | after 5xx |
//! |---|---|---|---|
//! | 200 | written by somebody else meanwhile: write again; if it is unchanged, permanent | permanent | the write fails: later |
//! | 404 | gone | gone | gone |
//! | 5xx | it can't be read: later | the same | the same |
//! | 401 | nobody knows us: nothing else will succeed | the same | the same |
//!
//! Nothing but codes and headers decides. What a server says in words may quote an object, and is shown to nobody; the
//! name of a webhook that it tells is shown, and decides nothing.
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An answer, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub code: u16,
    /// `reason` of the `Status` object, empty if there is none.
    pub reason: String,
    /// `Retry-After`.
    pub after: Option<Duration>,
    /// The admission webhook that denied it, if one did.
    pub webhook: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// None came in time. What was asked for may have been done.
    Deadline,
    /// There is no connection, or it ended.
    Connection,
    /// There are no credentials to ask with.
    Credentials,
    /// It is larger than is taken.
    TooLarge,
}

/// What it means for an object that was to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored as a write stores now.
    Done,
    /// It is not there any more.
    Gone,
    /// It changed since it was listed, and is to be written as it is now.
    Changed,
    /// The server does not answer such questions now.
    Wait {
        /// How long it wants to be left alone.
        after: Option<Duration>,
        /// Whether it is there, and too busy.
        busy: bool,
    },
    /// It may succeed later.
    Later(Cause),
    /// A read of the object tells: [`after_read`].
    Ask(Cause),
    /// It will fail again.
    Permanent(Cause),
    /// All else would fail alike.
    Stop(Cause),
}

/// Why an object was not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// An admission webhook denied it.
    Denied {
        /// Its name.
        webhook: String,
        /// HTTP status.
        code: u16,
    },
    /// The server refused it.
    Refused {
        /// HTTP status.
        code: u16,
        /// The reason that it gave, in its own word for it.
        reason: String,
    },
    /// It can be read, and writing it fails, as with a webhook that does not answer or an etcd that is full.
    WriteFails {
        /// HTTP status.
        code: u16,
        /// The reason that it gave, in its own word for it.
        reason: String,
    },
    /// It can't be read.
    Unreadable {
        /// HTTP status, if a server was asked.
        code: Option<u16>,
        /// The reason that it gave, in its own word for it.
        reason: String,
        /// How it is stored, where a census saw it: provider and key.
        stored: Option<String>,
    },
    /// No answer came in time, again and again.
    NoAnswer,
    /// The server does not know these credentials, or there are none.
    Credentials,
    /// Others wrote it again and again meanwhile: if they are API servers with the same configuration, it is done.
    KeepsChanging,
}

/// What an answer to a write means.
pub fn of_write(answer: &Result<Reply, Silence>) -> Verdict {
    let reply = match answer {
        Ok(reply) => reply,
        Err(Silence::Deadline | Silence::TooLarge) => return Verdict::Later(Cause::NoAnswer),
        Err(Silence::Connection) => return Verdict::Wait { after: None, busy: false },
        Err(Silence::Credentials) => return Verdict::Stop(Cause::Credentials),
    };
    let (code, reason) = (reply.code, reply.reason.clone());
    match code {
        200..=299 => Verdict::Done,
        429 => Verdict::Wait { after: reply.after, busy: true },
        502 | 503 => Verdict::Wait { after: reply.after, busy: false },
        408 | 504 => Verdict::Later(Cause::WriteFails { code, reason }),
        401 | 404 | 409 => Verdict::Ask(refused(reply)),
        500..=599 => Verdict::Ask(Cause::WriteFails { code, reason }),
        _ => Verdict::Permanent(refused(reply)),
    }
}

/// What a read says after a write that was to [`Verdict::Ask`] because of `cause`. `is_changed` says whether what was read
/// is another version than the one that was to be written; `stored` how a census saw the object stored.
pub fn after_read(
    read: &Result<Reply, Silence>,
    is_changed: bool,
    cause: Cause,
    stored: Option<&str>,
) -> Verdict {
    let reply = match read {
        Ok(reply) => reply,
        Err(_) => return of_write(read),
    };
    let code = Some(reply.code);
    match (reply.code, &cause) {
        (200..=299, Cause::Refused { code: 409, .. } | Cause::Denied { code: 409, .. }) if is_changed => {
            Verdict::Changed
        }
        (200..=299, Cause::WriteFails { .. }) => Verdict::Later(cause),
        (401, _) => Verdict::Stop(Cause::Credentials),
        (404, _) => Verdict::Gone,
        (429 | 502 | 503, _) => of_write(read),
        (500..=599, _) => {
            let (reason, stored) = (reply.reason.clone(), stored.map(str::to_owned));
            Verdict::Later(Cause::Unreadable { code, reason, stored })
        }
        // Whatever else forbids to look: that it was refused stays.
        _ => Verdict::Permanent(cause),
    }
}

fn refused(reply: &Reply) -> Cause {
    match &reply.webhook {
        Some(webhook) => Cause::Denied { webhook: webhook.clone(), code: reply.code },
        None => Cause::Refused { code: reply.code, reason: reply.reason.clone() },
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |reason: &str| if reason.is_empty() { String::new() } else { format!(" {reason}") };
        match self {
            Self::Denied { webhook, code } => write!(
                f,
                "the admission webhook {webhook} denies it ({code}): exempt it there, or change the object, and migrate again"
            ),
            Self::Refused { code: 403, .. } => {
                f.write_str("it is forbidden (403): the right to patch it is missing, or a policy forbids it")
            }
            Self::Refused { code, reason } => {
                write!(
                    f,
                    "the API server refuses it ({code}{}): kubectl apply of the object alike says why",
                    named(reason)
                )
            }
            Self::WriteFails { code, reason } => write!(
                f,
                "it can be read, and writing it fails ({code}{}): a webhook does not answer, or etcd takes no writes",
                named(reason)
            ),
            Self::Unreadable { code, reason, stored } => {
                f.write_str("no API server that was asked can read it")?;
                if let Some(code) = code {
                    write!(f, " ({code}{})", named(reason))?;
                }
                match stored {
                    Some(stored) => {
                        write!(f, "; it is stored as {stored}: bring that key back, or restore the object")
                    }
                    None => f.write_str("; casemate census object says which key it needs"),
                }
            }
            Self::NoAnswer => f.write_str("no answer came in time"),
            Self::Credentials => f.write_str(
                "the API server does not know these credentials: kubectl auth whoami says whose they are",
            ),
            Self::KeepsChanging => f.write_str("others wrote it each time that it was to be written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(code: u16, reason: &str) -> Result<Reply, Silence> {
        Ok(Reply { code, reason: reason.into(), ..Reply::default() })
    }

    fn denied(code: u16) -> Result<Reply, Silence> {
        Ok(Reply { code, webhook: Some("no.example".into()), ..Reply::default() })
    }

    #[test]
    fn each_answer_has_its_meaning() {
        let refused = |code, reason: &str| Verdict::Permanent(Cause::Refused { code, reason: reason.into() });
        let fails = |code, reason: &str| Cause::WriteFails { code, reason: reason.into() };
        let busy = |busy| Verdict::Wait { after: None, busy };
        let ask = |code, reason: &str| Verdict::Ask(Cause::Refused { code, reason: reason.into() });
        let by_webhook = |code| Cause::Denied { webhook: "no.example".into(), code };
        for (answer, verdict) in [
            (reply(200, ""), Verdict::Done),
            (reply(404, "NotFound"), ask(404, "NotFound")),
            (reply(409, "Conflict"), ask(409, "Conflict")),
            (reply(401, "Unauthorized"), ask(401, "Unauthorized")),
            (reply(429, "TooManyRequests"), busy(true)),
            (reply(503, "ServiceUnavailable"), busy(false)),
            (reply(502, ""), busy(false)),
            (reply(504, "Timeout"), Verdict::Later(fails(504, "Timeout"))),
            (reply(408, ""), Verdict::Later(fails(408, ""))),
            (reply(500, "InternalError"), Verdict::Ask(fails(500, "InternalError"))),
            // What kube-apiserver has no word for comes from etcd, as when that is full.
            (reply(500, ""), Verdict::Ask(fails(500, ""))),
            (reply(403, "Forbidden"), refused(403, "Forbidden")),
            (reply(422, "Invalid"), refused(422, "Invalid")),
            (reply(413, "RequestEntityTooLarge"), refused(413, "RequestEntityTooLarge")),
            (reply(400, "BadRequest"), refused(400, "BadRequest")),
            (reply(405, "MethodNotAllowed"), refused(405, "MethodNotAllowed")),
            (reply(302, ""), refused(302, "")),
            (denied(403), Verdict::Permanent(by_webhook(403))),
            // A webhook that says what only storage says.
            (denied(404), Verdict::Ask(by_webhook(404))),
            (denied(409), Verdict::Ask(by_webhook(409))),
            (denied(401), Verdict::Ask(by_webhook(401))),
            (Err(Silence::Deadline), Verdict::Later(Cause::NoAnswer)),
            (Err(Silence::Connection), busy(false)),
            (Err(Silence::Credentials), Verdict::Stop(Cause::Credentials)),
        ] {
            assert_eq!(of_write(&answer), verdict, "{answer:?}");
        }
        let after = Some(Duration::from_secs(3));
        let told = Ok(Reply { code: 429, after, ..Reply::default() });
        assert_eq!(of_write(&told), Verdict::Wait { after, busy: true });
    }

    #[test]
    fn a_read_is_the_referee() {
        let fails = || Cause::WriteFails { code: 500, reason: "InternalError".into() };
        let refused = |code| Cause::Refused { code, reason: "Said".into() };
        let denied = |code| Cause::Denied { webhook: "no.example".into(), code };
        let unreadable = |reason: &str| {
            let stored = Some("kms:v2:lost".to_owned());
            Verdict::Later(Cause::Unreadable { code: Some(500), reason: reason.into(), stored })
        };
        let permanent = Verdict::Permanent;
        for (read, is_changed, cause, verdict) in [
            (reply(200, ""), false, fails(), Verdict::Later(fails())),
            (reply(200, ""), true, fails(), Verdict::Later(fails())),
            (reply(200, ""), true, refused(409), Verdict::Changed),
            (reply(200, ""), true, denied(409), Verdict::Changed),
            (reply(200, ""), false, denied(409), permanent(denied(409))),
            (reply(200, ""), false, denied(404), permanent(denied(404))),
            (reply(200, ""), true, refused(404), permanent(refused(404))),
            (reply(200, ""), false, refused(401), permanent(refused(401))),
            (reply(404, "NotFound"), true, fails(), Verdict::Gone),
            (reply(404, "NotFound"), true, refused(409), Verdict::Gone),
            (reply(404, "NotFound"), true, denied(404), Verdict::Gone),
            (reply(401, ""), true, refused(401), Verdict::Stop(Cause::Credentials)),
            (reply(500, "InternalError"), true, fails(), unreadable("InternalError")),
            (reply(500, "StorageReadError"), true, fails(), unreadable("StorageReadError")),
            (reply(500, ""), true, refused(409), unreadable("")),
            (reply(403, "Forbidden"), true, fails(), permanent(fails())),
            (reply(503, ""), true, fails(), Verdict::Wait { after: None, busy: false }),
            (Err(Silence::Deadline), true, fails(), Verdict::Later(Cause::NoAnswer)),
        ] {
            let found = after_read(&read, is_changed, cause.clone(), Some("kms:v2:lost"));
            assert_eq!(found, verdict, "{read:?} after {cause:?}");
        }
    }

    #[test]
    fn causes_are_kept_as_json_and_say_what_to_do() {
        for cause in [
            Cause::Denied { webhook: "no.example".into(), code: 400 },
            Cause::Refused { code: 422, reason: "Invalid".into() },
            Cause::WriteFails { code: 500, reason: String::new() },
            Cause::Unreadable { code: None, reason: String::new(), stored: Some("aescbc:old".into()) },
            Cause::NoAnswer,
            Cause::Credentials,
            Cause::KeepsChanging,
        ] {
            let kept = serde_json::to_string(&cause).unwrap();
            assert_eq!(serde_json::from_str::<Cause>(&kept).unwrap(), cause);
            assert!(!cause.to_string().is_empty());
        }
    }

    proptest! {
        #[test]
        fn every_code_has_a_meaning_and_only_success_is_done(code in 0_u16..1000, reason in ".{0,20}") {
            let verdict = of_write(&reply(code, &reason));
            prop_assert_eq!(verdict == Verdict::Done, (200..300).contains(&code));
            // Of a write alone nobody knows that an object is gone, or changed.
            prop_assert!(!matches!(verdict, Verdict::Gone | Verdict::Changed));
            let read = after_read(&reply(code, &reason), true, Cause::NoAnswer, None);
            prop_assert!(!matches!(read, Verdict::Done | Verdict::Ask(_)));
        }
    }
}

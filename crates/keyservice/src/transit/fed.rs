//! What answers come to, whoever gives them: the code behind the calls, for who feeds it. Nothing is sent.

use zeroize::Zeroizing;

use super::key::{KeyState, Version};
use super::{Auth, Place, RoleId, Sealed, Selection, answer, login, opened};
use crate::Failure;
use crate::http::Reply;

/// The secrets that a login is taken to have sent: no failure may show them.
pub const SECRETS: [&str; 2] = ["role-id", "secret-id"];

/// What an answer is one to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Asked {
    Key,
    Encrypt,
    Decrypt,
    Login,
    LookUp,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fed {
    /// The lineages of the latest version and of all that are told.
    Key {
        latest: String,
        told: Vec<String>,
    },
    Wrap(Vec<u8>),
    Payload(Zeroizing<Vec<u8>>),
    /// Whether it ends.
    Token(bool),
    /// Another status, which is one of the service.
    No,
}

/// Feeds an answer of key `casemate` in mount `transit`, of which version 2 is asked for.
///
/// # Errors
/// As of the call.
pub fn feed(asked: Asked, status: u16, body: &[u8]) -> Result<Fed, Failure> {
    let reply = Reply { status, retry_after: None, location: None, body: Zeroizing::new(body.to_vec()) };
    if !answer::is_served(status) {
        return Ok(Fed::No);
    }
    answer::expect_shape(&reply, "fed")?;
    answer::expect_service(&reply, "fed")?;
    let place = Place { namespace: String::new(), mount: "transit".into(), key: "casemate".into() };
    if asked == Asked::Login {
        let role_id = RoleId::Text(SECRETS[0].into());
        let auth =
            Auth::AppRole { mount: "approle".into(), role_id, secret_id_file: "/fed".into(), wrapped: false };
        let grant = auth.grant(&reply, "fed", &SECRETS).map_err(|not| not.failure)?;
        return Ok(Fed::Token(grant.lasts.is_some()));
    }
    if status != 200 {
        return Ok(Fed::No);
    }
    match asked {
        Asked::Key => {
            let state = KeyState::parse(body, &place)?;
            let latest = state.selected(Selection::Latest, &place)?.to_string();
            let told = state.candidates(Selection::Pinned(1)).into_iter();
            let told =
                told.filter_map(|candidate| state.version(candidate.version.parse().ok()?, &place).ok());
            Ok(Fed::Key { latest, told: told.map(|lineage| lineage.to_string()).collect() })
        }
        Asked::Encrypt => {
            let lineage = place.lineage(2, 1_700_000_000)?;
            let version = Version { lineage: &lineage, number: 2 };
            let sealed = Sealed::parse(body).ok_or_else(|| answer::corrupt("fed", "no ciphertext"))?;
            sealed.wrap(&version).map(Fed::Wrap)
        }
        Asked::Decrypt => opened(body).map(Fed::Payload).ok_or_else(|| answer::corrupt("fed", "no payload")),
        Asked::Login | Asked::LookUp => {
            let looked = login::looked(body, SECRETS[1]);
            let grant = looked.ok_or_else(|| answer::corrupt("fed", "no description of a token"))?;
            Ok(Fed::Token(grant.lasts.is_some()))
        }
    }
}

//! Root keys and signers, each asked directly, with nothing but payloads that are thrown away.
use std::time::Duration;

use aws_lc_rs::rand;
use casemate_keys::{Digest, Record, Root, payload};
use casemate_keyservice::{Class, Failure, RootKey};
use casemate_kms::admin::status::ProviderStatus;
use casemate_kms::config::{Place, ProviderConfig};
use casemate_kms::key_services::KeyServices;
use casemate_kms::provider::Signing;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::doctor::facts::{KeyFacts, SignerFacts};
use crate::host::{bounded, class_name};

/// Before what is signed to see whether it can be: no record's message begins so.
const SIGNED: &[u8] = b"casemate.dev/v1/doctor\0";
/// How long the module of a signer may take to load.
const LOADING: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(200);

/// What is known of a root key before it is asked.
pub(super) struct Known<'a> {
    pub(super) name: &'a str,
    pub(super) place: Place<'a>,
    pub(super) writes: bool,
    /// What this node wrote last.
    pub(super) record: Option<&'a Record>,
    pub(super) status: Option<&'a ProviderStatus>,
}

/// Asks for the version that writes, wraps and opens a payload that nobody needs, and opens the record of this node. The
/// first no ends it, so that a credential that is not accepted is tried once.
///
/// A login that the running plugin reports as refused is not tried where the service counts them: what the plugin says
/// stands. `None` for the version if it was not asked.
pub(super) async fn of_key(
    key: &dyn RootKey,
    known: &Known<'_>,
) -> (KeyFacts, Option<Result<Root, Failure>>) {
    let status = known.status.and_then(|status| status.root_keys.iter().find(|one| one.name == known.name));
    let failing = status.filter(|one| one.state == "failing");
    let running = failing.and_then(|one| one.last_error.as_ref());
    let mut facts = KeyFacts {
        name: known.name.to_owned(),
        writes: known.writes,
        observed: None,
        opens_once: known.place.opens_once(),
        wrapped: None,
        opened: None,
        is_true: None,
        opens_record: None,
        absent: Vec::new(),
        running: running.map(|error| (error.class.clone(), error.message.clone())),
        failing_since: failing.and_then(|one| one.failing_since.clone()),
    };
    // One more refused login may lock the role, on all nodes.
    let is_refused = facts.running.as_ref().is_some_and(|(class, _)| class == class_name(Class::Credential));
    if facts.opens_once || is_refused && known.place.locks_out() {
        return (facts, None);
    }
    let observed = bounded(key.observe()).await;
    facts.observed = Some(observed.as_ref().map(|root| root.lineage.to_string()).map_err(Failure::clone));
    facts.absent = key.absent();
    let Ok(root) = &observed else { return (facts, Some(observed)) };
    if known.writes {
        try_out(key, root, &mut facts).await;
    }
    let failed = [&facts.wrapped, &facts.opened].into_iter().flatten().any(Result::is_err);
    let wrap = known.record.filter(|_| !failed).and_then(|record| {
        let (root, wrap) = record.wraps().find(|(root, _)| key.prefix().rest(&root.lineage).is_some())?;
        Some((root, record.core().digest(), wrap))
    });
    if let Some((root, core, wrap)) = wrap {
        facts.opens_record = Some(bounded(key.unwrap(root, &core, wrap)).await.map(drop));
    }
    (facts, Some(observed))
}

async fn try_out(key: &dyn RootKey, root: &Root, facts: &mut KeyFacts) {
    let mut payload = Zeroizing::new([0; payload::LEN]);
    let mut cores: [Digest; 2] = Default::default();
    let filled =
        rand::fill(&mut payload[..]).and_then(|()| cores.iter_mut().try_for_each(|core| rand::fill(core)));
    if filled.is_err() {
        let failure =
            Failure::new(Class::Unreachable, "the system gives no random bytes", "restart the host");
        facts.wrapped = Some(Err(failure));
        return;
    }
    let wrap = match bounded(key.wrap(root, &cores[0], &payload)).await {
        Ok(wrap) => wrap,
        Err(failure) => {
            facts.wrapped = Some(Err(failure));
            return;
        }
    };
    facts.wrapped = Some(Ok(()));
    match bounded(key.unwrap(root, &cores[0], &wrap)).await {
        Ok(opened) => {
            facts.opened = Some(Ok(()));
            let opens_otherwise =
                key.binds_associated_data(root) && bounded(key.unwrap(root, &cores[1], &wrap)).await.is_ok();
            facts.is_true = Some(opened[..] == payload[..] && !opens_otherwise);
        }
        Err(failure) => facts.opened = Some(Err(failure)),
    }
}

/// Has something signed that is no record. A module that could not be started is told by itself.
pub(super) async fn of_signer(
    provider: &ProviderConfig,
    services: &KeyServices,
    state: &std::path::Path,
) -> Option<SignerFacts> {
    let signing = provider.signing(services, state).ok().flatten()?;
    Some(SignerFacts { lineage: signing.lineage().to_string(), signs: sign(&signing).await })
}

async fn sign(signing: &Signing) -> Result<(), Failure> {
    let ends = Instant::now() + LOADING;
    loop {
        match signing.sign(SIGNED).await {
            // It was not reached, so nothing was tried at the token.
            Err(failure) if failure.class == Class::Unreachable && Instant::now() < ends => {
                tokio::time::sleep(AGAIN).await;
            }
            signed => return signed.map(drop),
        }
    }
}

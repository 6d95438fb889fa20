//! Several providers in one process: what one suffers, or does, is no other one's loss.

use std::fs;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use casemate_keys::payload::LEN;
use casemate_keys::{Algorithm, Digest, LineagePrefix, LocalKek, Root};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::{Answer, Class, Failure, RootKey};
use casemate_kms::admin::status::{Document, ProviderStatus};
use casemate_kms::audit::format::PeerIds;
use casemate_kms::audit::{Audit, Recorder};
use casemate_kms::config::Config;
use casemate_kms::provider::{Settings, Told};
use casemate_kms::traffic::Method;
use casemate_wire::kms_v2::StatusRequest;
use rustix::process::Signal;
use tonic::Code;
use zeroize::Zeroizing;

use crate::admin::get;
use crate::double::{RootKeyDouble, Shared};
use crate::node::{Client, Node, Stored, connect, settings, settings_of};
use crate::process::{Host, encrypt, opens, until};

const DEK: [u8; 32] = [0x5a; 32];
const CONNECTIONS: usize = 4;

fn of(name: &str, key: &Arc<RootKeyDouble>) -> Settings {
    Settings { name: name.into(), ..settings(&[key]) }
}

fn double(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

/// A process with two providers, `casemate` and `second`, each with a key file of its own, and an admin socket.
struct Two {
    host: Host,
    other: Host,
}

impl Two {
    fn new(more: &str) -> Self {
        let (host, other) = (Host::new(), Host::new());
        let config = fs::read_to_string(host.config()).unwrap();
        let second = fs::read_to_string(other.config()).unwrap();
        let (_, second) = second.split_once("providers:\n").unwrap();
        let second = second
            .replace("name: casemate", "name: second")
            .replace("    rootKeys:", &format!("    maxConnections: {CONNECTIONS}\n    rootKeys:"));
        let admin = format!("admin: {{endpoint: unix://{}/admin.sock}}\n", host.folder().display());
        fs::write(host.config(), config + &second + &admin + more).unwrap();
        Self { host, other }
    }

    fn state(&self, provider: &str) -> PathBuf {
        self.host.state().join(provider)
    }

    async fn second(&self) -> Client {
        connect(&self.other.socket()).await.unwrap()
    }

    /// Of `casemate` and of `second`.
    async fn status(&self) -> [ProviderStatus; 2] {
        let (_, body) = get(&self.host.folder().join("admin.sock"), "/status").await;
        serde_json::from_str::<Document>(&body).unwrap().providers.try_into().unwrap()
    }
}

#[tokio::test]
async fn connections_that_one_refuses_cost_the_other_no_place() {
    let two = Two::new("");
    let mut daemon = two.host.serve();
    let mut first = daemon.healthy().await;
    let held: Vec<_> =
        (0..5 * CONNECTIONS).map(|_| StdStream::connect(two.other.socket()).unwrap()).collect();
    until("the second refuses", async || {
        two.status().await[1].connections.refused_excess == 4 * CONNECTIONS as u64
    })
    .await;
    let served = async || match connect(&two.other.socket()).await {
        Ok(mut client) => client.status(StatusRequest {}).await.is_ok(),
        Err(_) => false,
    };
    assert!(!served().await, "it has no place left");

    // The first has places, for old and new ones.
    for _ in 0..2 * CONNECTIONS {
        let stored = encrypt(&mut connect(&two.host.socket()).await.unwrap(), &DEK).await.unwrap();
        opens(&mut first, &stored, &DEK).await;
    }
    let [first, second] = two.status().await;
    assert_eq!((first.connections.refused_excess, second.connections.open), (0, CONNECTIONS as u64));
    assert!(second.writing, "to have no place is no trouble with keys");
    drop(held);
    until("the second has places again", served).await;
}

/// Of two that share the root key even: what one has opened is its own.
#[tokio::test]
async fn records_that_flood_the_cache_of_one_leave_that_of_the_other() {
    let key = double("a");
    let flooded = Node::start(of("flooded", &key)).await;
    let calm = Node::start(of("calm", &key)).await;
    let kek = LocalKek::generate();
    let forge = || Stored::forged(&[(&key, &kek)], |_| {}, &DEK);
    let known = forge();
    calm.open(&known).await.unwrap();
    flooded.open(&known).await.unwrap();
    let before = calm.provider.opened_counts();
    while flooded.provider.opened_counts().evicted < 10 {
        flooded.open(&forge()).await.unwrap();
    }
    let unwraps = key.calls().unwrap;
    assert_eq!(calm.provider.opened_counts(), before);
    calm.open(&known).await.unwrap();
    assert_eq!(key.calls().unwrap, unwraps, "it still has it");
    flooded.open(&known).await.unwrap();
    assert_eq!(key.calls().unwrap, unwraps + 1, "the flooded one has lost it");
}

#[tokio::test(start_paused = true)]
async fn a_root_key_that_hangs_or_refuses_colours_its_own_provider_alone() {
    let (bad, good) = (double("bad"), double("good"));
    let mut broken = Node::start(of("broken", &bad)).await;
    let mut well = Node::start(of("well", &good)).await;
    let theirs = broken.seal(&DEK).await;
    let stored = well.seal(&DEK).await;
    let elsewhere = Node::start(of("elsewhere", &bad)).await.seal(&DEK).await;

    // One Decrypt hangs in the root key, and a look too.
    bad.open_gate(false);
    let (provider, unknown) = (broken.provider.clone(), elsewhere.clone());
    let hanging = tokio::spawn(async move { unknown.open(&provider).await.is_ok() });
    let look = tokio::spawn(async move {
        broken.observer.look().await;
        broken
    });
    until("it hangs", async || bad.calls().unwrap > 0 && bad.calls().wrap > 0).await;
    for _ in 0..3 {
        well.observer.look().await;
        assert_eq!(**well.open(&stored).await.unwrap(), DEK);
        well.seal(&DEK).await;
    }
    let seen = well.provider.snapshot();
    assert!(seen.trouble.is_none() && seen.root_keys.iter().all(|key| key.failing_since.is_none()));
    let mut broken = look.await.unwrap();
    assert!(broken.provider.snapshot().root_keys[0].failing_since.is_some(), "its look gave up");
    bad.open_gate(true);
    let _ = hanging.await;

    bad.fails(Some(Class::Refused));
    for _ in 0..14 {
        broken.observer.look().await;
        well.observer.look().await;
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert!(broken.provider.encrypt(&DEK, &Told::default()).await.is_err(), "it has refused for two minutes");
    assert_eq!(**broken.open(&theirs).await.unwrap(), DEK);
    well.seal(&DEK).await;
    assert_eq!(**well.open(&stored).await.unwrap(), DEK);
    assert!(well.provider.snapshot().trouble.is_none());
}

/// Code of a key service that is wrong: it panics, at once or while it is waited for.
#[derive(Clone, Debug)]
struct Panics {
    key: Shared,
    at_once: Arc<AtomicBool>,
    later: Arc<AtomicBool>,
}

impl Panics {
    async fn maybe<T>(&self, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::task::yield_now().await;
        assert!(!self.later.load(SeqCst), "planted");
        answer.await
    }
}

impl RootKey for Panics {
    fn prefix(&self) -> &LineagePrefix {
        self.key.prefix()
    }

    fn observe(&self) -> Answer<'_, Root> {
        assert!(!self.at_once.load(SeqCst), "planted");
        Box::pin(self.maybe(self.key.observe()))
    }

    fn wrap<'a>(&'a self, root: &'a Root, core: &'a Digest, payload: &'a [u8; LEN]) -> Answer<'a, Vec<u8>> {
        Box::pin(self.maybe(self.key.wrap(root, core, payload)))
    }

    fn unwrap<'a>(
        &'a self,
        root: &'a Root,
        core: &'a Digest,
        wrap: &'a [u8],
    ) -> Answer<'a, Zeroizing<Vec<u8>>> {
        Box::pin(self.maybe(self.key.unwrap(root, core, wrap)))
    }

    fn binds_associated_data(&self, root: &Root) -> bool {
        self.key.binds_associated_data(root)
    }
}

#[tokio::test]
async fn code_of_a_root_key_that_panics_is_told_and_ends_nothing() {
    let key = double("a");
    let wrong = Panics { key: Shared(key.clone()), at_once: Arc::default(), later: Arc::default() };
    let contained = Guarded::around(Box::new(wrong.clone()));
    let mut node = Node::start(settings_of(vec![contained], vec![key.rule()])).await;
    let stored = node.seal(&DEK).await;
    let elsewhere = Node::start(of("elsewhere", &key)).await.seal(&DEK).await;
    for panics in [&wrong.at_once, &wrong.later] {
        panics.store(true, SeqCst);
        node.observer.look().await;
        let seen = node.provider.snapshot();
        let (failure, _) = seen.root_keys[0].last_failure.as_ref().unwrap();
        assert!(failure.class == Class::Unreachable && failure.to_string().contains("panicked"), "{failure}");
        assert!(seen.root_keys[0].failing_since.is_some());
        node.seal(&DEK).await;
        assert_eq!(**node.open(&stored).await.unwrap(), DEK);
        panics.store(false, SeqCst);
    }
    wrong.later.store(true, SeqCst);
    let error = node.open(&elsewhere).await.unwrap_err().to_string();
    assert!(error.contains("panicked"), "{error}");
    wrong.later.store(false, SeqCst);
    assert_eq!(**node.open(&elsewhere).await.unwrap(), DEK);
    node.observer.look().await;
    assert!(node.provider.snapshot().root_keys[0].failing_since.is_none(), "it heals");
}

#[tokio::test]
async fn state_of_one_that_is_damaged_or_gone_is_no_trouble_of_the_other() {
    let two = Two::new("");
    let mut daemon = two.host.serve();
    let before = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    until("the second writes", async || encrypt(&mut two.second().await, &DEK).await.is_ok()).await;
    daemon.kill();

    for file in ["record", "ledger"] {
        fs::write(two.state("second").join(file), "\u{0}nonsense\n").unwrap();
    }
    let mut daemon = two.host.serve();
    let mut first = daemon.healthy().await;
    opens(&mut first, &before, &DEK).await;
    let again = encrypt(&mut first, &DEK).await.unwrap();
    assert_eq!(again.annotation, before.annotation, "it goes on with its record");
    until("the second writes", async || encrypt(&mut two.second().await, &DEK).await.is_ok()).await;

    // Now nothing of the second can be saved any more, and both have something to save.
    fs::remove_dir_all(two.state("second")).unwrap();
    for host in [&two.host, &two.other] {
        host.rotate();
    }
    until("the first has switched", async || {
        encrypt(&mut first, &DEK).await.is_ok_and(|stored| stored.key_id != before.key_id)
    })
    .await;
    until("the second says so", async || two.status().await[1].trouble.is_some()).await;
    let [well, broken] = two.status().await;
    assert!(well.ledger.saved && well.trouble.is_none(), "{well:?}");
    assert_eq!(well.ledger.entries, 2);
    let trouble = broken.trouble.unwrap();
    assert!(trouble.message.contains("second"), "{}", trouble.message);
    opens(&mut first, &before, &DEK).await;
    daemon.signal(Signal::TERM);
    assert!(daemon.end().0.success());
}

/// Faster than the writer can be: the moment after one is told that its places are taken, the other has one.
#[tokio::test]
async fn who_floods_the_audit_log_keeps_nobody_else_out_of_it() {
    let two = Two::new("");
    let config = fs::read_to_string(two.host.config()).unwrap();
    let log = two.host.folder().join("audit.log");
    let config = format!("{config}audit: {{path: {}, onFailure: refuse}}\n", log.display());
    let config = Config::parse(&config, &two.host.config()).unwrap();
    let audit = Audit::start(config.audit.as_ref().unwrap()).unwrap();
    let [noisy, quiet] = [audit.recorder(), audit.recorder()];
    let begin = |recorder: &Recorder, provider: &str| {
        recorder.begin(&provider.into(), Method::Encrypt, PeerIds::default())
    };
    for round in 1..=20 {
        while noisy.missed() < round {
            // A call that is given up is a line too, and nobody waits for it.
            drop(begin(&noisy, "noisy"));
        }
        begin(&quiet, "quiet").end(Code::Ok).await.unwrap();
    }
    audit.stop().await;
    let text = fs::read_to_string(log).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(r#""provider":"quiet""#)).count(), 20);
}

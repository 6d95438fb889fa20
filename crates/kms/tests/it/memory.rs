//! What is left in the memory of the real program: nothing of what was answered, evicted or retired.
//!
//! The whole address space is scanned from outside, through `/proc/<pid>/mem`. Pages of `memfd_secret`, where local KEKs
//! stand, can't be read that way, not even by root: where a test wants to see a live local KEK, the program may lock no
//! memory. Without root, nobody may look into a confined process: it then runs unconfined.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aws_lc_rs::rand;
use casemate_keys::kdf::{self, Label};
use casemate_keys::{Algorithm, Core, LocalKek, Record, Root, gcm, payload};
use casemate_keyservice::file::{KeyFile, Keyring, StoreError};
use casemate_kms::config::Source;
use casemate_kms::serve::{Start, serve};
use casemate_wire::kms_v2::StatusRequest;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::node::{Client, Stored, THEN, policy};
use crate::process::{Daemon, Host, encrypt, opens, program, until};

/// So many bytes of a secret are in memory by no accident; half a copy is one too.
const PART: usize = 8;
/// How much is read at once.
const PIECE: usize = 1 << 20;
/// Between two looks at a process that may not have ended with something.
const BETWEEN: Duration = Duration::from_millis(100);
/// Most of a process's memory is.
const EMPTY: [u8; 4096] = [0; 4096];

/// What is looked for: every part of some secrets.
struct Wanted {
    parts: HashSet<[u8; PART]>,
    /// Whether some part begins with these two bytes: nearly everywhere one look is enough.
    beginnings: Vec<bool>,
}

impl Wanted {
    fn all(secrets: &[impl AsRef<[u8]>]) -> Self {
        let parts: HashSet<_> =
            secrets.iter().flat_map(|secret| secret.as_ref().as_chunks::<PART>().0).copied().collect();
        let mut beginnings = vec![false; 1 << 16];
        for part in &parts {
            beginnings[usize::from(u16::from_le_bytes([part[0], part[1]]))] = true;
        }
        Self { parts, beginnings }
    }

    fn one(secret: impl AsRef<[u8]>) -> Self {
        Self::all(&[secret])
    }

    fn places_in(&self, bytes: &[u8]) -> Vec<usize> {
        let (mut places, mut place) = (Vec::new(), 0);
        while let Some(part) = bytes.get(place..place + PART) {
            if place % EMPTY.len() == 0 && bytes[place..].starts_with(&EMPTY) {
                place += EMPTY.len() - PART;
            } else if self.beginnings[usize::from(part[0]) | usize::from(part[1]) << 8]
                && self.parts.contains(part)
            {
                places.push(place);
            }
            place += 1;
        }
        places
    }

    /// Where it stands in the memory of `daemon`: address and mapping.
    fn in_memory_of(&self, daemon: &Daemon) -> BTreeSet<(u64, String)> {
        let process = format!("/proc/{}", daemon.pid());
        let memory = File::open(format!("{process}/mem")).unwrap();
        let mut found = BTreeSet::new();
        let (mut piece, mut bytes) = (vec![0; PIECE], 0);
        for mapping in fs::read_to_string(format!("{process}/maps")).unwrap().lines() {
            let (range, what) = mapping.split_once(' ').unwrap();
            // Where the program can't write, and a file is mapped, stands what the file says.
            if !what.starts_with('r') || !what.starts_with("rw") && what.contains('/') {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [mut at, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            while at < end {
                let length = (end - at).min(PIECE as u64) as usize;
                // What can't be read is secret memory, the kernel's own, or gone meanwhile.
                let Ok(read @ 1..) = memory.read_at(&mut piece[..length], at) else { break };
                bytes += read;
                let hits = self.places_in(&piece[..read]);
                found.extend(hits.iter().map(|hit| (at + *hit as u64, mapping.to_owned())));
                let next = at + read as u64;
                // Also what stands across two pieces.
                at = if read == length && next < end { next - PART as u64 + 1 } else { next };
            }
        }
        assert!(bytes > 1 << 20, "only {bytes} bytes could be read");
        found
    }

    /// Waits until it is nowhere: a reply is read before the last of its call is dropped.
    async fn gone_from(&self, daemon: &Daemon) {
        let mut last = BTreeSet::new();
        for _ in 0..20 {
            last = self.in_memory_of(daemon);
            if last.is_empty() {
                return;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        panic!("it is still there: {last:#x?}");
    }
}

/// The program as it is shipped, with the allocator that wipes. `wrapper` may run it with less.
fn serve_real(host: &Host, wrapper: &[&str]) -> Daemon {
    let program = program();
    let words = wrapper.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]).collect::<Vec<_>>();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("serve").arg("--config").arg(host.config());
    if !rustix::process::geteuid().is_root() {
        command.arg("--no-confinement");
    }
    host.serve_by(command)
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).unwrap();
    bytes
}

/// Encrypts each and decrypts what comes back, `IN_FLIGHT` at a time on one connection.
async fn both_ways(client: &Client, dek_sources: &[[u8; 32]]) {
    const IN_FLIGHT: usize = 50;
    for some in dek_sources.chunks(IN_FLIGHT) {
        let calls: Vec<_> = some
            .iter()
            .map(|dek_source| {
                let (mut client, dek_source) = (client.clone(), *dek_source);
                tokio::spawn(async move {
                    let stored = encrypt(&mut client, &dek_source).await.unwrap();
                    opens(&mut client, &stored, &dek_source).await;
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_of_a_dek_source_stays_once_its_reply_was_read() {
    let host = Host::new();
    let mut daemon = serve_real(&host, &[]);
    // As kube-apiserver does, it keeps its connection.
    let mut client = daemon.healthy().await;
    let dek_source = random();
    let stored = encrypt(&mut client, &dek_source).await.unwrap();
    Wanted::one(dek_source).gone_from(&daemon).await;
    opens(&mut client, &stored, &dek_source).await;
    Wanted::one(dek_source).gone_from(&daemon).await;

    let many: Vec<_> = (0..500).map(|_| random()).collect();
    both_ways(&client, &many).await;
    Wanted::all(&many).gone_from(&daemon).await;
    // Nor did it cost the connection.
    opens(&mut client, &stored, &dek_source).await;
}

/// The scan finds what is there: the same stack in this test's own program, whose allocator wipes nothing. Reading a key
/// file leaves nothing there either, so it is left by hand.
#[test]
fn memory_that_is_not_wiped_keeps_it() {
    const CONFIG: &str = "CASEMATE_TEST_SERVES_UNWIPED";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Some(config) = std::env::var_os(CONFIG) {
        let _left = fs::read(Path::new(&config).with_file_name("main.key")).unwrap();
        let source = Source::read(config.as_ref()).unwrap();
        let (config, (_ask, asked)) = (source.config().unwrap(), mpsc::channel(1));
        let serving = serve(source, config, Start::default(), asked, CancellationToken::new());
        runtime.block_on(serving).unwrap();
        return;
    }
    let host = Host::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "memory::memory_that_is_not_wiped_keeps_it"]).env(CONFIG, host.config());
    let mut daemon = host.serve_by(command);
    runtime.block_on(async {
        let client = daemon.healthy().await;
        let dek_sources: Vec<_> = (0..200).map(|_| random()).collect();
        both_ways(&client, &dek_sources).await;
        let [_, _, written] = secrets(&host).try_into().unwrap();
        for wanted in [Wanted::all(&dek_sources), Wanted::one(written)] {
            let found = wanted.in_memory_of(&daemon);
            assert!(!found.is_empty(), "the scan finds nothing where there must be something");
        }
    });
}

/// All that a version of the key file is known by: its secret, as the file writes it, and the key that wraps.
fn secrets(host: &Host) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(host.key()).unwrap();
    let written = text.lines().filter_map(|line| line.trim().strip_prefix("secret: "));
    let mut secrets = Vec::new();
    for written in written.map(|text| text.trim_matches('"')) {
        let secret = secret_of(written);
        secrets.push(kdf::derive(&secret, Label::FileWrap, &[]).to_vec());
        secrets.extend([secret.to_vec(), written.as_bytes().to_vec()]);
    }
    secrets
}

fn secret_of(written: &str) -> [u8; 32] {
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, written).unwrap();
    bytes.try_into().unwrap()
}

#[tokio::test]
async fn a_retired_version_of_a_key_file_is_gone_with_the_next_look() {
    let host = Host::new();
    let mut daemon = serve_real(&host, &[]);
    let mut client = daemon.healthy().await;
    let first = encrypt(&mut client, &random()).await.unwrap();
    let retired = secrets(&host);
    host.rotate();
    KeyFile::at(host.key())
        .update(|keyring: &mut Keyring| {
            keyring.retire(1, Timestamp::now()).unwrap();
            Ok::<_, StoreError>(())
        })
        .unwrap();
    until("the new version writes", async || {
        client.status(StatusRequest {}).await.is_ok_and(|status| status.into_inner().key_id != first.key_id)
    })
    .await;
    Wanted::all(&retired).gone_from(&daemon).await;
    // No more than a call needs it is the other one there.
    Wanted::all(&secrets(&host)).gone_from(&daemon).await;
}

/// Whoever has the key file knows all local KEKs, and can be another node.
struct RootKey {
    root: Root,
    wrap_key: kdf::Key,
}

impl RootKey {
    fn of(host: &Host) -> Self {
        let lineage = KeyFile::at(host.key()).read().unwrap().lineage(1).unwrap();
        let wrap_key = secrets(host)[0].as_slice().try_into().unwrap();
        Self {
            root: Root { lineage, algorithm: Algorithm::FILE_AES256_GCM },
            wrap_key: kdf::Key::new(wrap_key),
        }
    }

    fn local_kek_of(&self, stored: &Stored) -> [u8; 32] {
        let record = stored.record();
        let (core, wrap) = (record.core().digest(), record.wraps().next().unwrap().1.to_vec());
        let payload = gcm::open(&self.wrap_key, &payload::associated_data(&core), &wrap).unwrap();
        payload[..32].try_into().unwrap()
    }

    /// `dek_source` under a local KEK that nobody has met.
    fn sealed_elsewhere(&self, dek_source: &[u8]) -> Stored {
        let (kek, policy) = (LocalKek::generate(), policy(vec![self.root.clone()]));
        let core = Core { policy, kek_id: kek.id(), created: THEN, writer: "other/1".parse().unwrap() };
        let digest = core.digest();
        let payload = payload::encode(&kek, &digest);
        let wrap = gcm::seal(&self.wrap_key, &payload::associated_data(&digest), &*payload);
        Stored::under(&Record::new(core, vec![wrap], Vec::new(), None).unwrap(), &kek, dek_source)
    }
}

/// Where the program runs that may lock no memory: local KEKs then stand where the scan sees them.
fn may_lock_nothing() -> Vec<&'static str> {
    let limit = ["prlimit", "--memlock=0"];
    match rustix::process::geteuid().is_root() {
        true => [&["setpriv", "--bounding-set=-ipc_lock"], &limit[..]].concat(),
        false => limit.into(),
    }
}

#[tokio::test]
async fn a_local_kek_in_use_stands_in_one_place_and_an_evicted_one_in_none() {
    /// So many are kept; the node's own is one.
    const KEPT: usize = 4096;
    const IN_FLIGHT: usize = 16;
    let host = Host::new();
    let mut daemon = serve_real(&host, &may_lock_nothing());
    let mut client = daemon.healthy().await;
    let (root_key, dek_source) = (RootKey::of(&host), random());
    let own = root_key.local_kek_of(&encrypt(&mut client, &dek_source).await.unwrap());
    let first = root_key.sealed_elsewhere(&dek_source);
    opens(&mut client, &first, &dek_source).await;
    let others = root_key.local_kek_of(&first);
    for kek in [own, others] {
        let wanted = Wanted::one(kek);
        let mut found = BTreeSet::new();
        for _ in 0..20 {
            found = wanted.in_memory_of(&daemon);
            if found.len() == kek.len() / PART {
                break;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        let (start, end) = (found.first().unwrap().0, found.last().unwrap().0);
        assert_eq!((found.len(), end - start), (4, 24), "{found:#x?}");
    }

    let newer: Vec<_> = (0..KEPT).map(|_| root_key.sealed_elsewhere(&dek_source)).collect();
    for some in newer.chunks(IN_FLIGHT) {
        let calls: Vec<_> = some
            .iter()
            .map(|stored| {
                let (mut client, stored) = (client.clone(), stored.clone());
                tokio::spawn(async move { opens(&mut client, &stored, &dek_source).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    }
    Wanted::one(others).gone_from(&daemon).await;
    assert!(!Wanted::one(own).in_memory_of(&daemon).is_empty(), "what writes is no other's to push out");
    let log = daemon.kill();
    assert!(log.contains("WARN memory of local KEKs is ordinary") && log.contains("LimitMEMLOCK"), "{log}");
}

/// Where the kernel has `memfd_secret`, else where it locks.
#[tokio::test]
async fn nobody_sees_a_local_kek_that_is_in_use() {
    let host = Host::new();
    let mut daemon = serve_real(&host, &[]);
    let mut client = daemon.healthy().await;
    let kek = RootKey::of(&host).local_kek_of(&encrypt(&mut client, &random()).await.unwrap());
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    if maps.contains("/secretmem") {
        Wanted::one(kek).gone_from(&daemon).await;
    }
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap().trim();
    // Keys only: the whole of the process would be tens of megabytes.
    assert!(["4 kB", "16 kB", "64 kB"].contains(&locked), "{locked}");
    let said = if maps.contains("/secretmem") { "secret" } else { "locked" };
    assert!(daemon.log().contains(&format!("memory of local KEKs is {said}")), "{}", daemon.log());
}

//! One row of the table of outages, lived through by a real kube-apiserver.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_kms_state::outage::{self, OnRefused, Policy, Row, Rules, Seen, State};
use casemate_lab::fault_proxy::Mode;
use casemate_lab::plugin::casemate;
use casemate_lab::softhsm::SoftHsm;
use casemate_lab::{Apiserver, Lab, OpenBao, Plugin};
use casemate_wire::kms_v2::stored;
use serde_json::{Value, json};

use super::fault::{Fault, Site};

/// A row, and how it comes about.
pub(crate) struct Drill {
    state: State,
    rules: Rules,
    fault: Fault,
}

/// One for each row, those first that take longest.
pub(crate) fn all() -> Vec<Drill> {
    let (day, soon) = (Duration::from_secs(24 * 3600), Duration::from_secs(20));
    let coast = Policy::Coast { until: None };
    let drill = |state, policy, fault| Drill { state, rules: Rules { policy, ..Rules::default() }, fault };
    let wipe = Rules { on_refused: OnRefused::Wipe, policy: coast };
    let throttled = Mode::Throttle { retry_after: Some(1) };
    vec![
        drill(State::Refused, coast, Fault::Forbidden { open_only: false }),
        Drill { state: State::Refused, rules: wipe, fault: Fault::Forbidden { open_only: true } },
        drill(State::Reused, coast, Fault::OlderPutBack),
        drill(State::OutageEnded, Policy::FailAfter(soon), Fault::Way(Mode::WrongBytes)),
        drill(State::OtherKey, coast, Fault::MadeAnew),
        drill(State::Outage, coast, Fault::Way(Mode::BlackHole)),
        drill(State::Outage, Policy::FailAfter(day), Fault::Way(throttled)),
        drill(State::Outage, Policy::FailClosed, Fault::Way(Mode::Refuse)),
        // The strictest rules: the row says that they don't matter.
        drill(State::Credential, Policy::FailClosed, Fault::CredentialRevoked),
        drill(State::Starting, coast, Fault::StartedMeanwhile(Mode::Cut)),
        drill(State::Well, Policy::FailClosed, Fault::None),
    ]
}

/// All of them at once, since they wait by nature. `lasting` is how long each is to last for what the table says of later;
/// without it, only what is seen at once is compared.
pub(crate) fn side_by_side(drills: &[Drill], lasting: Option<Duration>) {
    let services = Lab::builder("outage services").apiservers(0).start().unwrap();
    let bao = OpenBao::dev(&services).unwrap();
    bao.transit("transit").unwrap();
    bao.auth("approle", "approle").unwrap();
    // As the page for admins says: who is locked out for a quarter of an hour is not well when his secret id is.
    let no_lockout = json!({"user_lockout_config": {"lockout_disable": true}});
    bao.write("sys/mounts/auth/approle/tune", &no_lockout).unwrap();
    let failed: Vec<String> = thread::scope(|scope| {
        let running = drills.iter().map(|drill| {
            let bao = &bao;
            scope.spawn(move || catch_unwind(AssertUnwindSafe(|| drill.run(bao, lasting))))
        });
        let running: Vec<_> = running.collect();
        let ended = drills.iter().zip(running);
        ended.filter_map(|(drill, thread)| thread.join().unwrap().is_err().then(|| drill.name())).collect()
    });
    assert!(failed.is_empty(), "not as the table says (see above): {failed:?}");
}

impl Drill {
    /// What the table says.
    pub(crate) fn row(&self) -> &'static Row {
        outage::row(self.state, &self.rules)
    }

    fn name(&self) -> String {
        format!("{:?} {:?}", self.state, self.row().when)
    }

    fn run(&self, bao: &OpenBao<'_>, lasting: Option<Duration>) {
        let seen = self.row().seen();
        let lab = Lab::builder(&self.name()).apiservers(0).start().unwrap();
        let key = self.name().to_lowercase().replace(' ', "-");
        let hsm = SoftHsm::create(&lab.dir().join("hsm")).unwrap();
        let mut site = Site::new(bao, &hsm, &key, self.fault);
        let plugin = Plugin::start_with(&lab, "kms", |folder, config| {
            let provider = &mut config["providers"][0];
            provider["rootKeys"] = json!([site.key_service().root_key("main", folder)?]);
            (provider["outage"], provider["onRefused"]) = self.rules();
            Ok(())
        });
        let plugin = plugin.unwrap();
        let server = one_at_a_time(|| lab.add_apiserver(plugin.encryption()).unwrap());
        let mut cluster = Cluster::new(&lab, server, &plugin);
        cluster.write("before").unwrap();

        site.fail(self.fault, &lab, &plugin, &cluster.server);
        let begun = self.wait_for(&plugin, self.row());
        eprintln!("{}: it is so", self.name());
        self.expect("ready", seen.ready, cluster.is_ready(seen.ready, &plugin));
        let written = cluster.write("at-once");
        self.expect(&format!("writes at once ({written:?})"), seen.writes_at_once, written.is_ok());
        self.reads(&mut cluster, &seen);
        if let Some(lasting) = lasting {
            let written = cluster.keeps_writing(begun, lasting, seen.writes_after_three_minutes);
            eprintln!("{}: after three minutes: {written:?}", self.name());
            self.expect(
                &format!("writes after three minutes ({written:?})"),
                seen.writes_after_three_minutes,
                written.is_ok(),
            );
            if let Err(why) = written {
                assert!(
                    why.contains("encryptedDEKSource") && why.contains("expired"),
                    "{}: {why}",
                    self.name()
                );
            }
            assert!(is_in(&plugin, self.row().metric), "{}: it did not last", self.name());
            self.expect("ready later", seen.ready, cluster.is_ready(seen.ready, &plugin));
            self.reads(&mut cluster, &seen);
        }

        site.heal(self.fault, &plugin);
        self.wait_for(&plugin, outage::row(State::Well, &self.rules));
        assert!(cluster.gets_ready(true), "{}: the API server has not got over it", self.name());
        cluster.write("afterwards").unwrap();
        // Nothing that either has in memory helps.
        cluster.server.kill9();
        plugin.kill9();
        plugin.start_again().unwrap();
        one_at_a_time(|| cluster.server.start().unwrap());
        cluster.reads_everything();
        eprintln!("{}: over, and all is read", self.name());
    }

    /// As the configuration has them: `outage` and `onRefused`.
    fn rules(&self) -> (Value, Value) {
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let outage = match self.rules.policy {
            Policy::Coast { until: None } => json!({"policy": "coast"}),
            Policy::Coast { until: Some(time) } => json!({"policy": "coast", "after": seconds(time)}),
            Policy::FailAfter(time) => json!({"policy": "failAfter", "after": seconds(time)}),
            Policy::FailClosed => json!({"policy": "failClosed"}),
        };
        let on_refused = match self.rules.on_refused {
            OnRefused::KeepReads => "keepReads",
            OnRefused::Wipe => "wipe",
        };
        (outage, on_refused.into())
    }

    /// Waits until the plugin says by metric and log that it follows this row; answers since when that is known.
    fn wait_for(&self, plugin: &Plugin<'_>, row: &Row) -> Instant {
        for _ in 0..600 {
            plugin.refresh().unwrap();
            let log = fs::read_to_string(plugin.process().log()).unwrap();
            if is_in(plugin, row.metric) && log.contains(row.log) {
                return Instant::now();
            }
            thread::sleep(Duration::from_secs(1));
        }
        panic!("{}: never {}; its log ends:\n{}", self.name(), row.metric, plugin.process().log_tail(20));
    }

    fn reads(&self, cluster: &mut Cluster<'_>, seen: &Seen) {
        let known = cluster.read("secret", "before");
        self.expect(&format!("reads from memory ({known:?})"), seen.reads_from_memory, known.is_ok());
        cluster.put_unseen();
        let unseen = cluster.read("configmap", UNSEEN);
        self.expect(&format!("reads by asking ({unseen:?})"), seen.reads_by_asking, unseen.is_ok());
    }

    fn expect(&self, what: &str, told: bool, found: bool) {
        assert_eq!(found, told, "{}: {what}: the table says {told}, kube-apiserver {found}", self.name());
    }
}

/// An API server, and what it has acknowledged.
struct Cluster<'lab> {
    lab: &'lab Lab,
    server: Arc<Apiserver>,
    /// Values of the ConfigMap [`UNSEEN`] whose keys the server has never had in memory.
    unseen: Vec<Vec<u8>>,
    acknowledged: Vec<String>,
}

/// A ConfigMap that another server writes, as far as this one can see.
const UNSEEN: &str = "unseen";
const UNSEEN_AT: &str = "/registry/configmaps/default/unseen";

impl<'lab> Cluster<'lab> {
    fn new(lab: &'lab Lab, server: Arc<Apiserver>, plugin: &Plugin<'_>) -> Self {
        server.kubectl(&["create", "configmap", UNSEEN, &word(UNSEEN)]).unwrap();
        let value = lab.etcd().get(UNSEEN_AT).unwrap().unwrap();
        let unseen = vec![sealed_again(plugin, &value), sealed_again(plugin, &value)];
        server.kubectl(&["delete", "configmap", UNSEEN]).unwrap();
        Self { lab, server, unseen, acknowledged: Vec::new() }
    }

    /// Another server would have written it just now.
    fn put_unseen(&mut self) {
        let value = self.unseen.pop().unwrap();
        self.lab.etcd().put(UNSEEN_AT, &value).unwrap();
    }

    fn write(&mut self, name: &str) -> Result<(), String> {
        let written = self.server.kubectl(&["create", "secret", "generic", name, &word(name)]);
        written.map_err(|error| error.to_string())?;
        self.acknowledged.push(name.to_owned());
        Ok(())
    }

    fn read(&self, kind: &str, name: &str) -> Result<(), String> {
        let template = match kind {
            "secret" => "go-template={{.data.word | base64decode}}",
            _ => "go-template={{.data.word}}",
        };
        let read = self.server.kubectl(&["get", kind, name, "-o", template]);
        let read = read.map_err(|error| error.to_string())?;
        assert_eq!(read, format!("word-of-{name}"));
        Ok(())
    }

    /// Whether `/readyz` is good: one that is expected to be has to stay so while Status is asked again; one that is not may
    /// take its time to notice.
    fn is_ready(&self, expected: bool, plugin: &Plugin<'_>) -> bool {
        if !expected {
            return !self.gets_ready(false);
        }
        let before = statuses(plugin);
        for _ in 0..300 {
            if !self.answers_ready() {
                return false;
            }
            if statuses(plugin) >= before + 2 {
                return self.answers_ready();
            }
            thread::sleep(Duration::from_secs(1));
        }
        panic!("kube-apiserver asks for no Status");
    }

    /// Waits until `/readyz` is so; false if it does not get there.
    fn gets_ready(&self, ready: bool) -> bool {
        (0..300).any(|_| {
            thread::sleep(Duration::from_secs(1));
            self.answers_ready() == ready
        })
    }

    fn answers_ready(&self) -> bool {
        self.server.kubectl(&["get", "--raw", "/readyz/kms-providers"]).is_ok()
    }

    /// Writes until it fails, or, if it is not expected to, until this state has lasted that long.
    fn keeps_writing(&mut self, begun: Instant, lasting: Duration, expected: bool) -> Result<(), String> {
        for number in 0..200 {
            if expected && begun.elapsed() > lasting {
                return Ok(());
            }
            self.write(&format!("later-{number}"))?;
            thread::sleep(Duration::from_secs(5));
        }
        Ok(())
    }

    fn reads_everything(&self) {
        assert!(self.acknowledged.len() >= 3, "{:?}", self.acknowledged);
        for name in &self.acknowledged {
            self.read("secret", name).unwrap();
        }
        self.read("configmap", UNSEEN).unwrap();
    }
}

/// Whether the metric names this state, and no other.
fn is_in(plugin: &Plugin<'_>, state: &str) -> bool {
    let mut stream = UnixStream::connect(plugin.admin_socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: lab\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let told: Vec<&str> = metrics.lines().filter(|line| line.starts_with("casemate_kms_state{")).collect();
    matches!(told[..], [one] if one.contains(&format!("state=\"{state}\"")) && one.ends_with(" 1"))
}

/// How often Status named a key id.
fn statuses(plugin: &Plugin<'_>) -> u64 {
    let status = plugin.status().unwrap();
    let served = status["providers"][0]["requests"].as_array().unwrap().iter();
    let named = served.filter(|one| one["method"] == "Status" && one["code"] == "OK");
    named.map(|one| one["count"].as_u64().unwrap()).sum()
}

/// What stands in etcd, with its seed sealed once more by the plugin: an API server knows seeds by what they were sealed to.
fn sealed_again(plugin: &Plugin<'_>, value: &[u8]) -> Vec<u8> {
    let mut stored = stored::parse(value).unwrap();
    let object = &mut stored.object;
    let annotations: serde_json::Map<_, _> = object
        .annotations
        .iter()
        .map(|(name, value)| (name.clone(), STANDARD.encode(value).into()))
        .collect();
    let reply = json!({
        "key_id": object.key_id,
        "ciphertext": STANDARD.encode(&object.encrypted_dek_source),
        "annotations": annotations,
    });
    let [first, seed, again] =
        ["first", "seed", "again"].map(|name| plugin.dir().join(name).display().to_string());
    let kms = |verb: &str, from: &str, to: &str| {
        let socket = format!("unix://{}", plugin.socket().display());
        casemate(&["kms", verb, "--socket", &socket, "--in", from, "--out", to, "--yes"]).unwrap();
    };
    fs::write(&first, reply.to_string()).unwrap();
    kms("decrypt", &first, &seed);
    kms("encrypt", &seed, &again);
    let again: Value = serde_json::from_slice(&fs::read(again).unwrap()).unwrap();
    assert_eq!(again["annotations"], reply["annotations"], "another local KEK");
    object.encrypted_dek_source = STANDARD.decode(again["ciphertext"].as_str().unwrap()).unwrap().into();
    stored.encode()
}

fn word(name: &str) -> String {
    format!("--from-literal=word=word-of-{name}")
}

/// A server that starts uses all processors for some seconds: many at once would come late to their Status.
fn one_at_a_time<T>(start: impl FnOnce() -> T) -> T {
    static STARTS: Mutex<()> = Mutex::new(());
    let _turn: MutexGuard<'_, ()> = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    start()
}

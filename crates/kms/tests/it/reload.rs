//! The real program, whose configuration changes while it is called.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use casemate_keys::crypto_module::FIPS_BUILD;
use casemate_keyservice::file::{FileKeyId, KeyFile, Keyring, Secret};
use casemate_kms::admin::status::{ConfigurationStatus, Document};
use casemate_wire::kms_v2::StatusRequest;
use jiff::Timestamp;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::admin::get;
use crate::node::{Client, Stored, connect};
use crate::process::{Daemon, Host, deliver, encrypt, opens, program, until};
use crate::sockets::passed::activate;

const DEK: [u8; 32] = [0x3c; 32];

/// A running plugin with an admin socket, whose configuration is written anew as a whole.
struct Plugin {
    host: Host,
    daemon: Daemon,
    text: String,
}

impl Plugin {
    async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more fields of the file.
    async fn start_with(more: &str) -> Self {
        let host = Host::new();
        let admin = host.folder().join("admin.sock");
        let text = fs::read_to_string(host.config()).unwrap()
            + &format!("admin: {{endpoint: unix://{}}}\n{more}", admin.display());
        fs::write(host.config(), &text).unwrap();
        let mut daemon = host.serve();
        daemon.healthy().await;
        Self { host, daemon, text }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.folder().join(name)
    }

    async fn client(&self) -> Client {
        connect(&self.host.socket()).await.unwrap()
    }

    async fn status(&self) -> Document {
        serde_json::from_str(&get(&self.path("admin.sock"), "/status").await.1).unwrap()
    }

    async fn held(&self) -> ConfigurationStatus {
        self.status().await.configuration.unwrap()
    }

    /// Delivers a configuration as most programs do, and asks for it.
    async fn deliver(&self, text: &str) {
        deliver(text.as_bytes(), &self.host.config());
        self.daemon.signal(Signal::HUP);
    }

    /// Delivers it and waits until it holds.
    async fn change(&self, text: &str) {
        let before = self.held().await.reloads;
        self.deliver(text).await;
        let mut said = None;
        until("it holds", async || {
            let held = self.held().await;
            said = held.refused.clone();
            held.reloads > before
        })
        .await;
        assert_eq!(said, None);
    }

    /// Waits until what is there is refused; says why.
    async fn refusal(&self) -> String {
        let mut why = None;
        until("it is refused", async || {
            why = self.held().await.refused;
            why.is_some()
        })
        .await;
        why.unwrap()
    }

    async fn refused(&self, text: &str) -> String {
        self.deliver(text).await;
        self.refusal().await
    }

    /// The key ids in the provider's ledger.
    fn ledger(&self) -> String {
        fs::read_to_string(self.path("state/casemate/ledger")).unwrap_or_default()
    }

    fn with(&self, from: &str, to: &str) -> String {
        assert!(self.text.contains(from), "{from}");
        self.text.replace(from, to)
    }

    /// Ends it; gives its log.
    fn end(self) -> String {
        self.daemon.signal(Signal::TERM);
        let (status, log) = self.daemon.end();
        assert!(status.success(), "{log}");
        log
    }
}

/// A client that never stops to write and read, and takes no failure.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    task: JoinHandle<Vec<Stored>>,
}

impl Load {
    fn on(mut client: Client) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), done.clone());
        let task = tokio::spawn(async move {
            let mut written: Vec<Stored> = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let key_id = client.status(StatusRequest {}).await.unwrap().into_inner().key_id;
                let stored = encrypt(&mut client, &DEK).await.unwrap();
                assert_eq!(stored.key_id, key_id, "what Status names writes");
                opens(&mut client, &stored, &DEK).await;
                if written.last().is_none_or(|last| last.annotation != stored.annotation) {
                    written.push(stored);
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
            for stored in &written {
                opens(&mut client, stored, &DEK).await;
            }
            written
        });
        Self { stop, done, task }
    }

    /// Some calls that begin after now.
    async fn goes_on(&self) {
        let now = self.done.load(Ordering::SeqCst);
        until("calls are served", async || {
            assert!(!self.task.is_finished(), "a call failed");
            self.done.load(Ordering::SeqCst) > now + 3
        })
        .await;
    }

    /// What was written, one of each record.
    async fn end(self) -> Vec<Stored> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

/// A key file of its own, and its id.
fn key_file(path: &Path) -> FileKeyId {
    let id = FileKeyId::generate();
    KeyFile::at(path).create(&Keyring::new(id, None, Secret::generate(), Timestamp::now())).unwrap();
    id
}

#[tokio::test]
async fn what_is_no_configuration_is_not_taken_over_and_calls_go_on() {
    let plugin = Plugin::start().await;
    let load = Load::on(plugin.client().await);
    let config = plugin.host.config();
    let replace = |with: &dyn Fn(&Path)| {
        let aside = plugin.path("aside");
        with(&aside);
        if config.is_dir() {
            fs::remove_dir(&config).unwrap();
        }
        fs::rename(&aside, &config).unwrap_or_else(|_| {
            // A folder takes no file's place.
            fs::remove_file(&config).unwrap();
            fs::rename(&aside, &config).unwrap();
        });
    };
    let text = plugin.text.clone();
    let cut = text.find("rootKeys").unwrap() + 3;
    let whole_lines = text.find("admin:").unwrap();
    let write = |path: &Path, bytes: &[u8]| fs::write(path, bytes).unwrap();
    type Bad<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>, &'a str);
    let bad: [Bad; 9] = [
        ("nonsense", Box::new(|path| write(path, b"\x00\xff%%%{{{")), "UTF-8"),
        ("text", Box::new(|path| write(path, b"Lorem ipsum: dolor\n")), "unknown field"),
        ("nothing", Box::new(|path| write(path, b"")), "the file is empty"),
        ("half of it", Box::new(|path| write(path, &text.as_bytes()[..cut])), "config.yaml:"),
        (
            "half a line",
            Box::new(|path| write(path, text[..whole_lines].trim_end().as_bytes())),
            "the last line has no end",
        ),
        ("a folder", Box::new(|path| fs::create_dir(path).unwrap()), "it is a folder"),
        ("a loop", Box::new(|path| symlink("config.yaml", path).unwrap()), "symbolic links"),
        ("a link to nothing", Box::new(|path| symlink("absent", path).unwrap()), "No such file"),
        (
            "a pipe",
            Box::new(|path| {
                let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
                assert!(made.success());
            }),
            "it is no file",
        ),
    ];
    for (what, make, said) in &bad {
        let before = plugin.held().await;
        replace(make);
        plugin.daemon.signal(Signal::HUP);
        let mut why = String::new();
        until(what, async || {
            let held = plugin.held().await;
            assert_eq!((&held.sha256, held.reloads), (&before.sha256, before.reloads));
            why = held.refused.unwrap_or_default();
            why.contains(said)
        })
        .await;
        load.goes_on().await;
        assert!(
            get(&plugin.path("admin.sock"), "/metrics").await.1.contains("casemate_kms_config_refused 1")
        );
    }
    // Nobody has to ask: it is looked at again and again.
    replace(&|path| write(path, text.as_bytes()));
    until("it says again what holds", async || plugin.held().await.refused.is_none()).await;
    load.goes_on().await;
    load.end().await;
    let log = plugin.end();
    assert_eq!(log.matches("is not taken over, what held goes on").count(), bad.len(), "{log}");
}

#[tokio::test]
async fn a_changed_configuration_is_taken_over_without_a_failed_call_or_a_closed_connection() {
    let plugin = Plugin::start().await;
    let second = key_file(&plugin.path("second.key"));
    let load = Load::on(plugin.client().await);
    load.goes_on().await;
    let first_key = |role: &str| {
        let rest = plugin.text.split("rootKeys:\n").nth(1).unwrap();
        format!("    {role}:\n{}", rest.split("admin:").next().unwrap())
    };
    let second_key = |role: &str| {
        format!(
            "    {role}:\n      - name: other\n        file: {{path: {}, id: \"{second}\"}}\n",
            plugin.path("second.key").display()
        )
    };
    let old_keys = first_key("rootKeys");
    let both = plugin.with(&old_keys, &(old_keys.clone() + &second_key("readKeys")));
    plugin.change(&both).await;
    load.goes_on().await;
    let before = plugin.status().await.providers.remove(0).next_write.unwrap().key_id;
    let turned = plugin.with(&old_keys, &(second_key("rootKeys") + &first_key("readKeys")));
    plugin.change(&turned).await;
    load.goes_on().await;
    let after = plugin.status().await.providers.remove(0).next_write.unwrap().key_id;
    assert_ne!(before, after);
    // The connection is told at its next Status; what it was told ten seconds ago still writes until then.
    let written = load.end().await;
    assert_eq!(written.iter().map(|stored| &stored.key_id).collect::<Vec<_>>(), [&before, &after]);

    // A reader may not be forgotten, and may go when it is said.
    let alone = plugin.with(&old_keys, &second_key("rootKeys"));
    let why = plugin.refused(&alone).await;
    assert!(why.contains("root key main") && why.contains("removedReadKeys"), "{why}");
    assert!(why.contains(&format!("of what this process has read, {before} needs it")), "{why}");
    let id = plugin.text.split('"').nth(1).unwrap();
    let said = format!("{}    removedReadKeys:\n      - file: {{id: \"{id}\"}}\n", second_key("rootKeys"));
    plugin.change(&plugin.with(&old_keys, &said)).await;
    let mut client = plugin.client().await;
    assert!(client.decrypt(written[0].request()).await.is_err());
    opens(&mut client, &written[1], &DEK).await;
    let log = plugin.end();
    for line in ["changed: providers[casemate].readKeys: - ->", "a changed configuration holds now changes="]
    {
        assert!(log.contains(line), "{line:?} is not in\n{log}");
    }
}

#[tokio::test]
async fn providers_come_and_go_beside_one_that_is_called() {
    let plugin = Plugin::start().await;
    let id = key_file(&plugin.path("second.key"));
    let load = Load::on(plugin.client().await);
    let second = format!(
        "  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - name: b\n        file: {{path: {}, id: \"{id}\"}}\n",
        plugin.path("second.sock").display(),
        plugin.path("second.key").display()
    );
    let both = plugin.with("admin:", &format!("{second}admin:"));
    plugin.change(&both).await;
    let mut other = None;
    until("the second one serves", async || {
        other = connect(&plugin.path("second.sock")).await.ok();
        match &mut other {
            Some(client) => client.status(StatusRequest {}).await.is_ok(),
            None => false,
        }
    })
    .await;
    let mut other = other.unwrap();
    let stored = encrypt(&mut other, &DEK).await.unwrap();
    load.goes_on().await;
    assert_eq!(plugin.status().await.providers.len(), 2);

    let why = plugin.refused(&plugin.text).await;
    assert!(why.contains("provider second is missing"), "{why}");
    opens(&mut other, &stored, &DEK).await;
    let gone = plugin.with("providers:", "removedProviders: [second]\nproviders:");
    plugin.change(&gone).await;
    until("its socket is gone", async || !plugin.path("second.sock").exists()).await;
    load.goes_on().await;
    assert_eq!(plugin.status().await.providers.len(), 1);

    // It may come back, with all that it knew.
    let back = async || {
        plugin.deliver(&both).await;
        plugin.held().await.sha256
    };
    let removed = plugin.held().await.sha256;
    until("it is back", async || back().await != removed).await;
    let mut other = None;
    until("it serves again", async || {
        other = connect(&plugin.path("second.sock")).await.ok();
        match &mut other {
            Some(client) => client.status(StatusRequest {}).await.is_ok(),
            None => false,
        }
    })
    .await;
    let mut other = other.unwrap();
    opens(&mut other, &stored, &DEK).await;
    assert_eq!(encrypt(&mut other, &DEK).await.unwrap().annotation, stored.annotation);
    load.end().await;
    plugin.end();
}

#[tokio::test]
async fn the_door_changes_behind_which_a_provider_goes_on() {
    let plugin = Plugin::start().await;
    let mut client = plugin.client().await;
    let stored = encrypt(&mut client, &DEK).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&plugin.host.socket()), 0o600);
    plugin
        .change(
            &plugin.with("    rootKeys:", "    socketMode: \"0660\"\n    maxConnections: 1\n    rootKeys:"),
        )
        .await;
    assert_eq!(mode(&plugin.host.socket()), 0o660);
    opens(&mut client, &stored, &DEK).await;
    let extra = connect(&plugin.host.socket()).await;
    let refused = match extra {
        Ok(mut extra) => extra.status(StatusRequest {}).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "one connection is there");
    // Bound again after its loss, it has the new mode.
    fs::remove_file(plugin.host.socket()).unwrap();
    until("it is bound again", async || plugin.host.socket().exists()).await;
    assert_eq!(mode(&plugin.host.socket()), 0o660);

    // Who else connects is refused from now on; who is connected stays.
    plugin.change(&plugin.with("    rootKeys:", "    allowedPeers: {uids: [54321]}\n    rootKeys:")).await;
    assert!(match connect(&plugin.host.socket()).await {
        Ok(mut other) => other.status(StatusRequest {}).await.is_err(),
        Err(_) => true,
    });
    opens(&mut client, &stored, &DEK).await;

    let moved = plugin.path("moved.sock");
    plugin.change(&plugin.with("kms.sock", "moved.sock")).await;
    until("the old file is gone", async || !plugin.host.socket().exists()).await;
    let mut client = connect(&moved).await.unwrap();
    opens(&mut client, &stored, &DEK).await;
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, stored.annotation);

    // The admin socket too.
    let held = plugin.held().await;
    plugin.deliver(&plugin.with("kms.sock", "moved.sock").replace("admin.sock", "window.sock")).await;
    until("it is elsewhere", async || plugin.path("window.sock").exists()).await;
    let (code, body) = get(&plugin.path("window.sock"), "/status").await;
    let now: Document = serde_json::from_str(&body).unwrap();
    assert_eq!((code, now.configuration.unwrap().reloads), (200, held.reloads + 1));
    until("the old one is gone", async || !plugin.path("admin.sock").exists()).await;
    plugin.end();
}

#[tokio::test]
async fn what_this_process_gave_up_needs_a_restart() {
    let plugin = Plugin::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let key = elsewhere.path().join("moved.key");
    fs::copy(plugin.host.key(), &key).unwrap();
    let why = plugin
        .refused(&plugin.with(&plugin.host.key().display().to_string(), &key.display().to_string()))
        .await;
    assert!(why.contains("needs a restart"), "{why}");
    let confined = why.contains(&*elsewhere.path().to_string_lossy());
    let landlock = fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|lsm| lsm.contains("landlock"));
    assert!(confined || !landlock, "{why}");
    for (from, to) in [("clusterId: prod", "clusterId: other"), ("/state", "/state2")] {
        plugin.deliver(&plugin.text).await;
        until("it is as it was", async || plugin.held().await.refused.is_none()).await;
        let why = plugin.refused(&plugin.with(from, to)).await;
        assert!(why.contains("needs a restart"), "{why}");
    }
    plugin.end();
}

/// Killed at any moment after somebody was told a key id, it does not go back to the one before.
#[tokio::test]
async fn a_key_id_is_in_the_ledger_when_it_is_told() {
    let plugin = Plugin::start().await;
    let mut client = plugin.client().await;
    let mut told = client.status(StatusRequest {}).await.unwrap().into_inner().key_id;
    for epoch in 1..=20 {
        let before = told.clone();
        plugin.deliver(&plugin.with("    rootKeys:", &format!("    epoch: {epoch}\n    rootKeys:"))).await;
        // At once, without a breath between.
        let is_told = async {
            while told == before {
                told = client.status(StatusRequest {}).await.unwrap().into_inner().key_id;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_told).await.unwrap();
        assert!(plugin.ledger().contains(&told), "{told} is not in the ledger");
    }
    plugin.end();
}

/// Whoever delivers the file chooses what is in it, but not what else the log seems to say, nor how long it gets.
#[tokio::test]
async fn a_configuration_writes_no_lines_of_its_own_into_the_log() {
    let plugin = Plugin::start().await;
    let evil = r"\nERROR fake\e[31m\x9b1m\u202e\x7f";
    let state = plugin.path("state").display().to_string();
    let evil_path = format!("\"{state}{evil}\"");
    let many: String = (0..2000)
        .map(|number| {
            format!(
                "  - name: p{number}\n    endpoint: unix:///x/{number}\n    rootKeys:\n      - name: k\n        file: {{path: /k, id: \
                 \"{number:032}\"}}\n"
            )
        })
        .collect();
    for text in [
        format!("{}\"a{evil}\": 1\n", plugin.text),
        format!("{}\"{}\": 1\n", plugin.text, "a".repeat(500_000)),
        plugin.with(&state, &evil_path),
        plugin.with("name: main", &format!("name: \"{evil}\"")),
        plugin.with("admin:", &format!("{many}admin:")),
    ] {
        plugin.deliver(&plugin.text).await;
        until("it is as it was", async || plugin.held().await.refused.is_none()).await;
        let why = plugin.refused(&text).await;
        assert!(why.chars().count() <= 1100, "{} characters", why.len());
        assert!(!why.chars().any(|c| c.is_control() || c == '\u{202e}'), "{why:?}");
    }
    plugin.deliver(&plugin.text).await;
    until("it is as it was", async || plugin.held().await.refused.is_none()).await;
    // What is taken over has as many lines as people read.
    let groups = |from: u32| {
        format!("allowedPeers: {{uids: [0], gids: {:?}}}", (from..from + 5000).collect::<Vec<_>>())
    };
    plugin.change(&plugin.with("    rootKeys:", &format!("    {}\n    rootKeys:", groups(1)))).await;
    let log = plugin.end();
    assert!(log.lines().all(|line| line.len() < 3000 && !line.starts_with("ERROR fake")), "{log}");
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "{log:?}");
}

/// A folder that is slow holds it up, and whoever delivered it corrects it meanwhile.
#[tokio::test]
async fn what_the_file_does_not_say_any_more_is_not_taken_over() {
    let plugin = Plugin::start().await;
    let mut client = plugin.client().await;
    let written = encrypt(&mut client, &DEK).await.unwrap();
    let record = plugin.path("state/casemate/record");
    fs::remove_file(&record).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&record).status().unwrap().success());
    plugin.deliver(&plugin.with("    rootKeys:", "    epoch: 1\n    rootKeys:")).await;
    let mut pipe = None;
    until("it reads the record", async || {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        // Fails while nobody reads.
        pipe = fs::OpenOptions::new().write(true).custom_flags(flags).open(&record).ok();
        pipe.is_some()
    })
    .await;
    deliver(plugin.text.as_bytes(), &plugin.host.config());
    drop(pipe);
    until("it goes on", async || plugin.daemon.log().contains("it changed again")).await;
    until("it says again what holds", async || plugin.held().await.refused.is_none()).await;
    assert_eq!(plugin.held().await.reloads, 0);
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, written.annotation);
    until("a restart finds it", async || fs::read(&record).is_ok_and(|kept| kept == written.annotation))
        .await;
    plugin.end();
}

/// Descriptors, tasks (each has some), files and calls: after many changes of every kind it is what it was.
#[tokio::test]
async fn many_changes_leave_nothing_behind() {
    let plugin = Plugin::start().await;
    let id = key_file(&plugin.path("second.key"));
    let load = Load::on(plugin.client().await);
    let key =
        format!("name: b\n        file: {{path: {}, id: \"{id}\"}}\n", plugin.path("second.key").display());
    let second = |socket: &str| {
        let at = plugin.path(socket);
        format!("  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - {key}admin:", at.display())
    };
    let read = format!("    readKeys:\n      - {key}admin:");
    let gone = format!("    removedReadKeys:\n      - file: {{id: \"{id}\"}}\nadmin:");
    let audit = format!("audit: {{path: {}}}\n", plugin.path("state").join("a.log").display());
    // Whether it is taken over.
    let texts = |round: u32| {
        let fields = |fields: &str| plugin.with("    rootKeys:", &format!("    {fields}\n    rootKeys:"));
        let text = fields(&format!("epoch: {round}"));
        let access = fields(&format!("socketMode: \"0660\"\n    epoch: {round}"));
        [
            (text.replace("admin:", &read), true),
            (access.replace("admin:", &gone), true),
            (text.clone() + &audit, true),
            // After its successor was prepared and another socket was bound.
            (fields("epoch: 999").replace("admin:", &second("absent/second.sock")), false),
            (text.replace("admin:", &second("second.sock")), true),
            (text.replace("admin:", &second("third.sock")), true),
            (text.replace("providers:", "removedProviders: [second]\nproviders:"), true),
        ]
    };
    let pid = plugin.daemon.pid();
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    // Locks of sockets stay, one for each path.
    let files = || {
        let names = fs::read_dir(plugin.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.filter(|name| !name.to_string_lossy().ends_with(".lock")).collect();
        names.sort();
        names
    };
    load.goes_on().await;
    let (had, before) = (descriptors(), files());
    for round in 1..=3 {
        for (text, is_taken) in texts(round) {
            if is_taken {
                plugin.change(&text).await;
            } else {
                assert!(plugin.refused(&text).await.contains("no such folder"));
            }
            load.goes_on().await;
        }
        until("all is what it was", async || descriptors() <= had && files() == before).await;
    }
    load.end().await;
    plugin.end();
}

/// It is tried again every ten seconds: each time it would begin a log.
#[tokio::test]
async fn what_is_refused_begins_no_audit_log() {
    let plugin = Plugin::start().await;
    let log = plugin.path("state").join("new.log");
    let text = plugin.with("/kms.sock", "/absent/kms.sock");
    let why = plugin.refused(&format!("{text}audit: {{path: {}}}\n", log.display())).await;
    assert!(why.contains("no such folder"), "{why}");
    assert!(!log.exists());
    plugin.end();
}

/// YAML calls it a number.
#[tokio::test]
async fn a_provider_whose_name_is_a_number_changes_too() {
    let host = Host::new();
    let text = fs::read_to_string(host.config()).unwrap().replace("name: casemate", "name: 7")
        + &format!("admin: {{endpoint: unix://{}}}\n", host.folder().join("admin.sock").display());
    fs::write(host.config(), &text).unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let writes = async || plugin.status().await.providers.remove(0).next_write.unwrap().key_id;
    let before = writes().await;
    plugin.change(&plugin.with("    rootKeys:", "    epoch: 1\n    rootKeys:")).await;
    assert_ne!(writes().await, before);
    assert!(plugin.end().contains("changed: providers[7].epoch: - -> 1"));
}

/// As the kubelet does with a ConfigMap.
#[tokio::test]
async fn a_link_that_is_turned_is_seen() {
    let host = Host::new();
    let text = fs::read_to_string(host.config()).unwrap()
        + &format!("admin: {{endpoint: unix://{}}}\n", host.folder().join("admin.sock").display());
    fs::remove_file(host.config()).unwrap();
    let version = |name: &str, text: &str| {
        let folder = host.folder().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("config.yaml"), text).unwrap();
        let aside = host.folder().join("..data_tmp");
        symlink(name, &aside).unwrap();
        fs::rename(&aside, host.folder().join("..data")).unwrap();
    };
    version("..1", &text);
    symlink("..data/config.yaml", host.config()).unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let version = |name: &str, text: &str| {
        let folder = plugin.path(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("config.yaml"), text).unwrap();
        symlink(name, plugin.path("..data_tmp")).unwrap();
        fs::rename(plugin.path("..data_tmp"), plugin.path("..data")).unwrap();
    };
    version("..2", &plugin.with("    rootKeys:", "    maxConnections: 7\n    rootKeys:"));
    fs::remove_dir_all(plugin.path("..1")).unwrap();
    // Without a signal.
    until("it holds", async || plugin.held().await.reloads == 1).await;
    assert!(plugin.end().contains("changed: providers[casemate].maxConnections: - -> 7"));
}

#[tokio::test]
async fn an_audit_log_begins_moves_and_ends_while_calls_run() {
    let plugin = Plugin::start().await;
    let load = Load::on(plugin.client().await);
    let log = |name: &str| plugin.path("state").join(name);
    let audit = |name: &str| format!("{}audit: {{path: {}}}\n", plugin.text, log(name).display());
    let lines = |name: &str| fs::read_to_string(log(name)).unwrap_or_default().lines().count();
    for name in ["one.log", "two.log"] {
        plugin.change(&audit(name)).await;
        let before = lines(name);
        load.goes_on().await;
        until("calls are in it", async || lines(name) > before + 3).await;
    }
    assert!(plugin.status().await.audit.is_some());
    // In the same file it goes on, with a key from now on.
    let key = plugin.path("audit.key");
    deliver("7e".repeat(32).as_bytes(), &key);
    let keyed = format!(
        "{}audit: {{path: {}, checkpointKey: {{path: {}}}}}\n",
        plugin.text,
        log("two.log").display(),
        key.display()
    );
    plugin.change(&keyed).await;
    load.goes_on().await;
    until("a checkpoint has a MAC", async || fs::read_to_string(log("two.log")).unwrap().contains("macKey"))
        .await;
    assert_eq!(fs::read_dir(plugin.path("state")).unwrap().count(), 3, "two logs and the provider's folder");
    plugin.change(&plugin.text).await;
    assert!(plugin.status().await.audit.is_none());
    load.goes_on().await;
    load.end().await;
    plugin.end();
}

#[test]
fn a_dry_run_says_what_would_change_and_whether_it_would() {
    let host = Host::new();
    let held = host.folder().join("held.yaml");
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(&held, &text).unwrap();
    let check = |text: &str| {
        fs::write(host.config(), text).unwrap();
        let output = host.run(&["check", "--replaces", held.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = check(&text);
    assert!(code == Some(0) && said.contains("takeover: nothing would change"), "{said}");
    let (code, said) = check(&text.replace("    rootKeys:", "    maxConnections: 3\n    rootKeys:"));
    assert!(
        code == Some(0) && said.contains("would change: providers[casemate].maxConnections: - -> 3"),
        "{said}"
    );
    let (code, said) = check(&text.replace("clusterId: prod", "clusterId: other"));
    assert!(code == Some(1) && said.contains("takeover: clusterId changed from prod to other"), "{said}");
    let (code, said) = check(text.trim_end());
    assert!(code == Some(1) && said.contains("the last line has no end"), "{said}");
}

#[tokio::test]
async fn a_provider_that_can_not_be_started_holds_up_no_other_and_is_tried_again() {
    let host = Host::new();
    let id = key_file(&host.folder().join("second.key"));
    let more = format!(
        "  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - name: b\n        file: {{path: {}, id: \"{id}\"}}\n\
         admin: {{endpoint: unix://{}}}\n",
        host.folder().join("second.sock").display(),
        host.folder().join("second.key").display(),
        host.folder().join("admin.sock").display(),
    );
    let text = fs::read_to_string(host.config()).unwrap() + &more;
    fs::write(host.config(), &text).unwrap();
    // A file where its folder should be.
    fs::create_dir(host.state()).unwrap();
    fs::write(host.state().join("second"), "").unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let not_started = plugin.held().await.not_started;
    assert_eq!((not_started.len(), &*not_started[0].name), (1, "second"));
    let (code, body) = get(&plugin.path("admin.sock"), "/readyz").await;
    assert!(code == 503 && body.contains("[-] provider second: is not started: "), "{body}");
    assert!(body.contains("[+] provider casemate: ok"), "{body}");

    // A change for another one is taken over meanwhile.
    plugin.change(&plugin.text.replacen("    rootKeys:", "    maxConnections: 9\n    rootKeys:", 1)).await;
    assert_eq!(plugin.held().await.not_started.len(), 1);
    fs::remove_file(plugin.path("state/second")).unwrap();
    until("it is started", async || plugin.held().await.not_started.is_empty()).await;
    let mut client = connect(&plugin.path("second.sock")).await.unwrap();
    until("it writes", async || client.status(StatusRequest {}).await.is_ok()).await;
    assert_eq!(get(&plugin.path("admin.sock"), "/readyz").await.0, 200);
    plugin.end();
}

#[tokio::test]
async fn a_socket_that_a_service_manager_holds_is_left_by_a_restart_only() {
    let host = Host::new();
    let listener = std::os::unix::net::UnixListener::bind(host.socket()).unwrap();
    let admin = host.folder().join("admin.sock");
    let text = fs::read_to_string(host.config()).unwrap()
        + &format!("admin: {{endpoint: unix://{}}}\n", admin.display());
    fs::write(host.config(), &text).unwrap();
    let mut daemon = host.serve_by(activate(&program(), &host, &listener, "casemate"));
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let why = plugin.refused(&plugin.with("kms.sock", "moved.sock")).await;
    assert!(why.contains("which a service manager has bound") && why.contains("needs a restart"), "{why}");
    assert!(plugin.client().await.status(StatusRequest {}).await.is_ok());
    // What else is said of it is taken over.
    plugin.change(&plugin.with("    rootKeys:", "    maxConnections: 5\n    rootKeys:")).await;
    plugin.end();
}

/// Nothing but a changed key id makes kube-apiserver write anew.
#[tokio::test]
async fn a_recovery_recipient_that_comes_or_goes_is_a_new_key_id_in_status() {
    let plugin = Plugin::start().await;
    let status = async || plugin.status().await.providers.remove(0).next_write.unwrap();
    let mut client = plugin.client().await;
    let mut told = async || client.status(StatusRequest {}).await.unwrap().into_inner().key_id;
    let none = told().await;
    let with = |names: &[(&str, &str)]| {
        let recipients: String =
            names.iter().map(|(name, age)| format!("      - {{name: {name}, age: {age}}}\n")).collect();
        plugin.text.replacen(
            "    rootKeys:",
            &format!("    recoveryRecipients:\n{recipients}    rootKeys:"),
            1,
        )
    };
    let safe = ("safe", "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2");
    let second = ("second", "age14w2g4gmmvj3sunzrcaw4nxufpkuhvskjs9qt4jdsj75fs0kh9v0s5pxk66");
    if FIPS_BUILD {
        let why = plugin.refused(&with(&[safe])).await;
        assert!(why.contains("not available in a FIPS build"), "{why}");
        return;
    }
    let mut seen = vec![none];
    for recipients in [vec![safe], vec![safe, second], vec![second]] {
        plugin.change(&with(&recipients)).await;
        let key_id = told().await;
        assert!(!seen.contains(&key_id), "{key_id} was seen before");
        let next = status().await;
        assert_eq!((&next.key_id, next.recovery_recipients.len()), (&key_id, recipients.len()));
        seen.push(key_id);
    }
    // Without any again: that key id was active before.
    let why = plugin.refused(&plugin.text).await;
    assert!(why.contains("raise `epoch`"), "{why}");
    plugin.end();
}

//! The real program, whose configuration changes while it is called.

mod providers;
mod refused;

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
    let text = plugin.with("kms.sock", "moved.sock");
    let why = plugin.refused(&text).await;
    assert!(why.contains("allowedPeers of provider casemate is missing, or part of it"), "{why}");
    plugin.change(&whole(&text)).await;
    until("the old file is gone", async || !plugin.host.socket().exists()).await;
    let mut client = connect(&moved).await.unwrap();
    opens(&mut client, &stored, &DEK).await;
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, stored.annotation);

    // The admin socket too.
    let held = plugin.held().await;
    plugin.deliver(&whole(&text.replace("admin.sock", "window.sock"))).await;
    until("it is elsewhere", async || plugin.path("window.sock").exists()).await;
    // It is open before it is said that it is.
    until("it says so", async || {
        let (code, body) = get(&plugin.path("window.sock"), "/status").await;
        let now: Document = serde_json::from_str(&body).unwrap();
        (code, now.configuration.unwrap().reloads) == (200, held.reloads + 1)
    })
    .await;
    until("the old one is gone", async || !plugin.path("admin.sock").exists()).await;
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
    let texts = |round| texts(round).map(|(text, is_taken)| (whole(&text), is_taken));
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

/// With the mark of its end, which half a file does not have.
fn whole(text: &str) -> String {
    format!("{text}...\n")
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
    // Half a file would lack it too.
    let why = plugin.refused(&plugin.text).await;
    assert!(why.contains("audit is missing") && why.contains("the line `...`"), "{why}");
    assert!(plugin.status().await.audit.is_some());
    plugin.change(&whole(&plugin.text)).await;
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
    assert!(
        code == Some(1) && said.contains("NOTE  -  needs a restart: clusterId changed from prod to other"),
        "{said}"
    );
    let (code, said) = check(text.trim_end());
    assert!(code == Some(1) && said.contains("the last line has no end"), "{said}");
}

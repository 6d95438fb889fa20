//! Reboots and stand-stills of a control plane: who waits for whom, and what is read afterwards.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use casemate_lab::{Apiserver, Lab, Plugin, Proof, demo};
use rustix::process::{Pid, Signal, kill_process};

/// Names of what the API server has acknowledged; each Secret holds its own name.
#[derive(Default)]
struct Acknowledged(Mutex<Vec<String>>);

impl Acknowledged {
    fn write(&self, server: &Apiserver, name: &str) -> casemate_lab::Result<()> {
        let word = format!("--from-literal=word={name}");
        server.kubectl(&["create", "secret", "generic", name, &word])?;
        self.0.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// No cache helps: through a restarted plugin, by a server that has never read anything.
    fn read_by_fresh(&self, lab: &Lab, plugin: &Plugin<'_>) {
        assert!(self.count() > 0, "nothing was acknowledged: nothing is shown");
        plugin.kill9();
        plugin.start_again().unwrap();
        let fresh = lab.start_fresh(0).unwrap();
        let template =
            r#"go-template={{range .items}}{{.metadata.name}}={{.data.word | base64decode}}{{"\n"}}{{end}}"#;
        let all = fresh.kubectl(&["get", "secrets", "-o", template]).unwrap();
        let found: HashSet<&str> = all.lines().collect();
        for name in &*self.0.lock().unwrap() {
            assert!(found.contains(format!("{name}={name}").as_str()), "{name} is lost");
        }
        fresh.stop().unwrap();
    }
}

/// What a power cut leaves: files, and nothing that runs.
fn power_cut(lab: &Lab, plugin: &Plugin<'_>) {
    for server in lab.apiservers() {
        server.kill9();
    }
    plugin.kill9();
    lab.etcd().process().kill9();
    assert!(plugin.socket().exists(), "nobody tidied up");
}

/// Field complaint 18: after a reboot the plugin waits for the API server, which waits for the plugin
/// (k3s-io/k3s#10058, #14600; canonical/k8s-snap#2530).
#[test]
fn after_a_reboot_neither_waits_for_the_other_in_whichever_order_they_start() {
    let lab = Lab::builder("reboot").apiservers(0).start().unwrap();
    // It names a key id while there is no API server anywhere.
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let acknowledged = Acknowledged::default();
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    acknowledged.write(&server, "before").unwrap();

    // The API server first. It is not ready, and it does not end.
    power_cut(&lab, &plugin);
    lab.etcd().start().unwrap();
    thread::scope(|scope| {
        let starting = scope.spawn(|| server.start());
        let complains = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(100));
            let answer = server.kubectl(&["get", "--raw", "/readyz"]);
            answer.is_err_and(|error| error.to_string().contains("kms-providers"))
        });
        plugin.start_again().unwrap();
        starting.join().unwrap().unwrap();
        assert!(complains, "the API server did not miss its plugin");
    });
    acknowledged.write(&server, "server-first").unwrap();

    // The plugin first: all that it needs is on this host.
    power_cut(&lab, &plugin);
    plugin.start_again().unwrap();
    lab.etcd().start().unwrap();
    server.start().unwrap();
    acknowledged.write(&server, "plugin-first").unwrap();
    acknowledged.read_by_fresh(&lab, &plugin);
}

#[test]
fn what_was_acknowledged_while_the_plugin_stood_still_or_was_down_is_read_again() {
    let lab = Lab::builder("still").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    let (acknowledged, over) = (Acknowledged::default(), AtomicBool::new(false));
    let some_more = || {
        let before = acknowledged.count();
        let written = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(50));
            acknowledged.count() > before + 3
        });
        assert!(written, "the API server writes no more; its plugin: {}", plugin.process().log_tail(20));
    };
    let signal = |signal| {
        let pid = Pid::from_raw(plugin.process().pid().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // One that fails is not acknowledged.
                let _ = acknowledged.write(&server, &format!("still-{number}"));
            }
        });
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            some_more();
            // A new version arrives, and it can't look.
            let before = plugin.key_id().unwrap();
            signal(Signal::STOP);
            plugin.rotate().unwrap();
            some_more();
            signal(Signal::CONT);
            let after = plugin.wait_for_switch(&before).unwrap();
            let ready = (0..600).any(|_| {
                thread::sleep(Duration::from_millis(100));
                server.kubectl(&["get", "--raw", "/readyz"]).is_ok()
            });
            assert!(ready, "the API server has not got over it");
            demo::adopted(&|args| Ok(server.kubectl(args)?), &lab, &after).unwrap();

            plugin.terminate().unwrap();
            some_more();
            plugin.start_again().unwrap();
            some_more();
        }));
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        told.unwrap();
    });
    acknowledged.read_by_fresh(&lab, &plugin);
    let proof = Proof::read(lab.etcd(), &["/registry/secrets/"]).unwrap();
    assert!(proof.by_key_id.len() > 1 && proof.not_encrypted.is_empty(), "{proof}");
}

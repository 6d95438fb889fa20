//! The main job on real servers, with faults, and its proof.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, thread};

use casemate_lab::{Encryption, Lab, Plugin, Proof, demo};

const SECRETS: &[&str] = &["/registry/secrets/"];

fn word_of(number: usize) -> String {
    format!("word-{number}-of-the-story")
}

#[test]
fn the_demo_tells_its_story() {
    let told = Command::new(crate::program()).args(["demo", "--once"]).output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{text}\n{}", String::from_utf8_lossy(&told.stderr));
    assert!(text.contains("proof from etcd") && text.contains("The story is told"), "{text}");
}

#[test]
fn the_proof_fails_where_nothing_is_encrypted() {
    let lab = Lab::builder("proof").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let key_id = plugin.key_id().unwrap();
    assert!(!Proof::read(lab.etcd(), SECRETS).unwrap().all_under(&key_id), "nothing proves nothing");

    let plain = lab.add_apiserver(Encryption::Identity).unwrap();
    plain.kubectl(&["create", "secret", "generic", "one"]).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(!proof.all_under(&key_id), "{proof}");
    assert_eq!(proof.not_encrypted, ["/registry/secrets/default/one"]);

    // With the plugin, new data is encrypted and the old one still spoils the proof; then it is migrated.
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    server.kubectl(&["create", "secret", "generic", "two"]).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(!proof.all_under(&key_id), "{proof}");
    assert_eq!(proof.by_key_id.get(&key_id), Some(&1));
    let all = server.kubectl(&["get", "secrets", "-A", "-o", "json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], all.as_bytes()).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(proof.all_under(&key_id), "{proof}");

    // A value that is cut, and one that was written under another key id.
    lab.etcd().put("/registry/secrets/default/cut", b"k8s:enc:kms:v2:casemate:\x0a\xff").unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert_eq!((proof.malformed.len(), proof.all_under(&key_id)), (1, false), "{proof}");
}

/// Two API servers, each with a plugin of its own and its own copy of the key file, as two nodes.
struct ControlPlane<'lab> {
    lab: &'lab Lab,
    plugins: [Plugin<'lab>; 2],
    acknowledged: Mutex<Vec<usize>>,
    next: AtomicUsize,
    over: AtomicBool,
    reads: AtomicUsize,
}

impl ControlPlane<'_> {
    fn write_until_over(&self, server: usize) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let word = format!("--from-literal=word={}", word_of(number));
            let name = format!("story-{number}");
            if self.lab.kubectl(server, &["create", "secret", "generic", &name, &word]).is_ok() {
                self.acknowledged.lock().unwrap().push(number);
            }
        }
    }

    /// A read may fail while its plugin is down; it must never give anything else than what was written.
    fn read_until_over(&self, server: usize) {
        for turn in (0..).step_by(7) {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let known = self.acknowledged.lock().unwrap().clone();
            let Some(number) = known.get(turn % known.len().max(1)) else { continue };
            if let Ok(word) = self.read(server, *number) {
                assert_eq!(word, word_of(*number));
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, server: usize, number: usize) -> casemate_lab::Result<String> {
        let template = "go-template={{.data.word | base64decode}}";
        self.lab.kubectl(server, &["get", "secret", &format!("story-{number}"), "-o", template])
    }

    /// Stage, deliver, activate on one node, deliver late to the other.
    fn rotate(&self) {
        let [one, two] = &self.plugins;
        let (before_one, before_two) = (one.key_id().unwrap(), two.key_id().unwrap());
        let version = one.stage().unwrap();
        one.deliver_to(two).unwrap();
        one.activate(version).unwrap();
        let after = one.wait_for_switch(&before_one).unwrap();
        one.deliver_to(two).unwrap();
        assert_eq!(two.wait_for_switch(&before_two).unwrap(), after, "both nodes come to the same key id");
    }

    fn faults_and_rotations(&self) {
        for round in 0..5 {
            match round {
                1 | 3 => {
                    let plugin = &self.plugins[round / 2];
                    plugin.kill9();
                    plugin.start_again().unwrap();
                }
                2 => {
                    let socket = self.plugins[0].socket();
                    fs::remove_file(&socket).unwrap();
                    self.plugins[0].process().wait_until("its socket was back", || socket.exists()).unwrap();
                }
                _ => {}
            }
            self.rotate();
        }
    }
}

#[test]
fn what_was_acknowledged_is_read_by_a_fresh_server_after_every_fault() {
    let lab = Lab::builder("faults").apiservers(0).start().unwrap();
    let one = Plugin::start(&lab, "node-1").unwrap();
    let two = Plugin::start_beside(&one, "node-2").unwrap();
    for plugin in [&one, &two] {
        lab.add_apiserver(plugin.encryption()).unwrap();
    }
    let plane = ControlPlane {
        lab: &lab,
        plugins: [one, two],
        acknowledged: Mutex::default(),
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        reads: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        let workers = [
            scope.spawn(|| plane.write_until_over(0)),
            scope.spawn(|| plane.write_until_over(1)),
            scope.spawn(|| plane.read_until_over(0)),
            scope.spawn(|| plane.read_until_over(1)),
        ];
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plane.faults_and_rotations()));
        plane.over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        told.unwrap();
    });
    let acknowledged = plane.acknowledged.lock().unwrap().clone();
    assert!(
        acknowledged.len() > 50 && plane.reads.load(Ordering::Relaxed) > 50,
        "the story had too little load"
    );

    // No cache helps: a restarted plugin, and a server that has never read anything, one for each node.
    for node in 0..2 {
        plane.plugins[node].kill9();
        plane.plugins[node].start_again().unwrap();
        let fresh = lab.start_fresh(node).unwrap();
        let template =
            r#"go-template={{range .items}}{{.metadata.name}}={{.data.word | base64decode}}{{"\n"}}{{end}}"#;
        let all = fresh.kubectl(&["get", "secrets", "-o", template]).unwrap();
        let found: std::collections::HashSet<&str> = all.lines().collect();
        for number in &acknowledged {
            let expected = format!("story-{number}={}", word_of(*number));
            assert!(found.contains(expected.as_str()), "node {node} lost {expected}");
        }
        fresh.stop().unwrap();
    }

    // Writes went on through the rotations: etcd holds several key ids, and nothing in clear.
    let last = plane.plugins[0].key_id().unwrap();
    demo::adopted(&|args| Ok(lab.kubectl(0, args)?), &lab, &last).unwrap();
    let proof = Proof::read(lab.etcd(), SECRETS).unwrap();
    assert!(
        proof.by_key_id.len() > 1 && proof.not_encrypted.is_empty() && proof.malformed.is_empty(),
        "{proof}"
    );
    eprintln!(
        "{} acknowledged, {} read while it happened; {proof}",
        acknowledged.len(),
        plane.reads.load(Ordering::Relaxed)
    );
}

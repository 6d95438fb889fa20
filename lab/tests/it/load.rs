//! Writers and readers of Secrets that never pause, and what was acknowledged to them.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use casemate_lab::{Lab, Plugin};

/// One writer and one reader at each of some API servers.
pub(crate) struct Load<'lab> {
    lab: &'lab Lab,
    servers: usize,
    acknowledged: Mutex<Vec<usize>>,
    next: AtomicUsize,
    over: AtomicBool,
    reads: AtomicUsize,
}

fn name_of(number: usize) -> String {
    format!("story-{number}")
}

fn word_of(number: usize) -> String {
    format!("word-{number}-of-the-story")
}

impl<'lab> Load<'lab> {
    pub(crate) fn on(lab: &'lab Lab, servers: usize) -> Self {
        Self {
            lab,
            servers,
            acknowledged: Mutex::default(),
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
        }
    }

    /// Runs while `story` is told, however it ends.
    pub(crate) fn during(&self, story: impl FnOnce()) {
        thread::scope(|scope| {
            for server in 0..self.servers {
                scope.spawn(move || self.write_until_over(server));
                scope.spawn(move || self.read_until_over(server));
            }
            let told = catch_unwind(AssertUnwindSafe(story));
            self.over.store(true, Ordering::Relaxed);
            if let Err(panic) = told {
                resume_unwind(panic);
            }
        });
    }

    /// Waits for some writes and reads that begin after now.
    pub(crate) fn goes_on(&self) {
        let (writes, reads) = (self.writes(), self.reads());
        let went_on = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(50));
            self.writes() > writes + 3 && self.reads() > reads + 3
        });
        assert!(went_on, "{} writes and {} reads, and no more", self.writes(), self.reads());
    }

    /// How many were acknowledged.
    pub(crate) fn writes(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// How many were read while it went on.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// No cache helps: through a restarted plugin, by a server that has never read anything, everything is compared.
    pub(crate) fn is_read_by_fresh(&self, server: usize, plugin: &Plugin<'_>) {
        plugin.kill9();
        plugin.start_again().unwrap();
        let fresh = self.lab.start_fresh(server).unwrap();
        let template =
            r#"go-template={{range .items}}{{.metadata.name}}={{.data.word | base64decode}}{{"\n"}}{{end}}"#;
        let all = fresh.kubectl(&["get", "secrets", "-o", template]).unwrap();
        let found: HashSet<&str> = all.lines().collect();
        for number in &*self.acknowledged.lock().unwrap() {
            let expected = format!("{}={}", name_of(*number), word_of(*number));
            assert!(found.contains(expected.as_str()), "server {server} lost {expected}");
        }
        fresh.stop().unwrap();
    }

    fn write_until_over(&self, server: usize) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let word = format!("--from-literal=word={}", word_of(number));
            if self.lab.kubectl(server, &["create", "secret", "generic", &name_of(number), &word]).is_ok() {
                self.acknowledged.lock().unwrap().push(number);
            }
        }
    }

    /// A read may fail while its plugin or server is down; it must never give anything else than what was written.
    fn read_until_over(&self, server: usize) {
        let template = "go-template={{.data.word | base64decode}}";
        for turn in (0..).step_by(7) {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let known = self.acknowledged.lock().unwrap().clone();
            let Some(number) = known.get(turn % known.len().max(1)) else {
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if let Ok(word) = self.lab.kubectl(server, &["get", "secret", &name_of(*number), "-o", template])
            {
                assert_eq!(word, word_of(*number));
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

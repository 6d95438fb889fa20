//! A control group that limits memory, of whichever version the system has: for one process, and gone with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Host, program};

pub(super) struct MemoryGroup {
    folder: PathBuf,
    is_v2: bool,
}

impl MemoryGroup {
    /// Takes root, or a group that was delegated to this user.
    pub(super) fn of(bytes: u64) -> io::Result<Self> {
        let (parent, is_v2) = parent()?;
        let group = Self { folder: parent.join(format!("casemate-test-{}", std::process::id())), is_v2 };
        fs::create_dir(&group.folder)?;
        if is_v2 {
            group.set("memory.max", bytes)?;
            // Without swap there is no such file.
            let _ = group.set("memory.swap.max", 0);
        } else {
            group.set("memory.limit_in_bytes", bytes)?;
            let _ = group.set("memory.swappiness", 0);
        }
        Ok(group)
    }

    /// Starts the program in the group, from its first page on.
    pub(super) fn command(&self, host: &Host) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$2" && exec "$0" serve --config "$1""#]);
        command.arg(program()).arg(host.config()).arg(self.folder.join("cgroup.procs"));
        command
    }

    /// How often the system has ended a process of the group.
    pub(super) fn killed(&self) -> u64 {
        let events = self.text(if self.is_v2 { "memory.events" } else { "memory.oom_control" });
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap_or_else(|| panic!("{events}")).parse().unwrap()
    }

    /// The most that it had at a time.
    pub(super) fn peak(&self) -> u64 {
        let text = self.text(if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" });
        text.trim().parse().unwrap()
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        fs::write(self.folder.join(file), value.to_string())
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended is counted for a moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Where a group can be made, and whether that is version 2.
fn parent() -> io::Result<(PathBuf, bool)> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own_of = |controllers: &str| {
        own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (listed, path) = rest.split_once(':')?;
            listed.split(',').any(|one| one == controllers).then(|| path.to_owned())
        })
    };
    if let (Some(path), Some((root, mounted))) = (own_of("memory"), mount(&mounts, "cgroup", "memory")) {
        return Ok((below(&mounted, &root, &path), false));
    }
    let (Some(path), Some((root, mounted))) = (own_of(""), mount(&mounts, "cgroup2", "")) else {
        return Err(io::Error::other("there are no control groups"));
    };
    // A group with processes has no children that are limited; one that is limited itself may have a brother.
    let own = below(&mounted, &root, &path);
    let limits_children = |group: &Path| {
        fs::read_to_string(group.join("cgroup.subtree_control"))
            .is_ok_and(|enabled| enabled.split_whitespace().any(|one| one == "memory"))
    };
    let found =
        own.ancestors().take_while(|group| group.starts_with(&mounted)).find(|group| limits_children(group));
    found.map(|group| (group.to_owned(), true)).ok_or_else(|| io::Error::other("no group limits memory"))
}

/// Root and place of a mounted hierarchy (`man 5 proc_pid_mountinfo`).
fn mount(mounts: &str, kind: &str, controller: &str) -> Option<(String, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let has_controller = after.next()? == kind
            && (controller.is_empty() || after.nth(1)?.split(',').any(|option| option == controller));
        let mut before = before.split(' ').skip(3);
        has_controller.then_some((before.next()?.to_owned(), PathBuf::from(before.next()?)))
    })
}

fn below(mounted: &Path, root: &str, path: &str) -> PathBuf {
    mounted.join(path.strip_prefix(root).unwrap_or(path).trim_start_matches('/'))
}

//! A process that holds a lab is killed: nothing may be left.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::program;

/// Process ids of everything that was started with `dir` on its command line.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let of_ours = |entry: fs::DirEntry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        // Gone meanwhile, or dead and not reaped: an empty command line, or none.
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(dir).then_some(pid)
    };
    let all = fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| of_ours(entry.ok()?)).collect()
}

/// `casemate-lab up`, with its standard input kept open, and the folder of its run.
fn up() -> (Child, PathBuf) {
    let mut lab = Command::new(program())
        .args(["up", "--apiservers", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let dir = PathBuf::from(first.strip_prefix("folder\t").unwrap());
    // To the last line, so that it does not die of a closed pipe.
    assert!(lines.any(|line| line.unwrap().starts_with("kubectl\t")));
    (lab, dir)
}

fn assert_nothing_is_left(dir: &Path) {
    for _ in 0..200 {
        if processes_of(dir).is_empty() && !dir.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("left behind: processes {:?}, folder there: {}", processes_of(dir), dir.exists());
}

#[test]
fn a_killed_process_leaves_no_server_and_no_folder() {
    let (mut lab, dir) = up();
    // etcd, kube-apiserver, and the janitor of the folder.
    assert_eq!(processes_of(&dir).len(), 3);
    lab.kill().unwrap();
    lab.wait().unwrap();
    assert_nothing_is_left(&dir);
}

#[test]
fn the_end_of_its_input_ends_it_well() {
    let (mut lab, dir) = up();
    assert!(dir.join("logs/etcd.log").is_file());
    drop(lab.stdin.take());
    assert!(lab.wait().unwrap().success());
    assert_nothing_is_left(&dir);
}

//! The folder of the socket is taken away and made again.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::Acknowledged;
use crate::node::connect;
use crate::process::{Host, program, until};

const UNIT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd/casemate-kms.service"));

/// Field complaint 32: a service manager makes the runtime directory anew, and who has mounted the old one waits there
/// for ever (found in the unit file of Cosmian/kms).
#[test]
fn the_unit_keeps_its_folder_and_starts_the_program_again_whatever_happens() {
    for line in [
        "RuntimeDirectory=casemate-kms",
        "RuntimeDirectoryPreserve=yes",
        "Restart=always",
        "StartLimitIntervalSec=0",
    ] {
        assert!(UNIT.lines().any(|found| found == line), "{line} is missing");
    }
}

/// An open folder stands for one that a pod has mounted: both are the folder itself, not its name.
#[tokio::test]
async fn who_holds_the_folder_reaches_each_process_that_serves_there() {
    let (mut host, acknowledged) = (Host::new(), Acknowledged::default());
    host.move_socket("run/kms.sock");
    let mounted = fs::File::open(host.folder().join("run")).unwrap();
    let through_it = PathBuf::from(format!("/proc/self/fd/{}/kms.sock", mounted.as_raw_fd()));
    for _ in 0..3 {
        let mut daemon = host.serve();
        daemon.healthy().await;
        acknowledged.encrypt(&mut connect(&through_it).await.unwrap()).await.unwrap();
        daemon.signal(Signal::TERM);
        assert!(daemon.end().0.success());
    }
    acknowledged.read_after_a_restart(&host).await;
}

/// A confined process can't use the new folder, whoever made it: it ends, to be started again.
#[tokio::test]
async fn where_the_folder_is_another_one_a_new_process_serves() {
    let (mut host, acknowledged) = (Host::new(), Acknowledged::default());
    host.move_socket("run/kms.sock");
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    acknowledged.encrypt(&mut client).await.unwrap();

    let run = host.folder().join("run");
    fs::remove_dir_all(&run).unwrap();
    until("it says so", async || daemon.log().contains("can't be bound again yet")).await;
    assert!(daemon.is_running(), "who is connected is served");
    acknowledged.encrypt(&mut client).await.unwrap();

    fs::create_dir(&run).unwrap();
    let (ended, log) = daemon.end();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("run was replaced by another one since the start"), "{log}");

    let mut daemon = host.serve();
    acknowledged.encrypt(&mut daemon.healthy().await).await.unwrap();
    daemon.kill();
    acknowledged.read_after_a_restart(&host).await;
}

#[tokio::test]
async fn a_process_that_is_not_confined_binds_again() {
    let (mut host, acknowledged) = (Host::new(), Acknowledged::default());
    host.move_socket("run/kms.sock");
    let mut command = Command::new(program());
    command.args(["serve", "--no-confinement", "--config"]).arg(host.config());
    let mut daemon = host.serve_by(command);
    acknowledged.encrypt(&mut daemon.healthy().await).await.unwrap();
    fs::remove_dir_all(host.folder().join("run")).unwrap();
    fs::create_dir(host.folder().join("run")).unwrap();
    until("it is served again", async || connect(&host.socket()).await.is_ok()).await;
    acknowledged.encrypt(&mut daemon.healthy().await).await.unwrap();
    daemon.kill();
    acknowledged.read_after_a_restart(&host).await;
}

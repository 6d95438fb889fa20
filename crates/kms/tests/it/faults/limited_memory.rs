//! As little memory as a static pod may be given.

use super::memory_group::MemoryGroup;
use super::{Acknowledged, Load};
use crate::process::{Host, until};

/// Leaves the test out where no group can be made. Not by itself: nobody would notice.
const LEAVE_OUT: &str = "CASEMATE_TEST_WITHOUT_CGROUPS";

#[tokio::test]
async fn in_24_mebibytes_five_hundred_calls_at_a_time_are_served() {
    if std::env::var_os(LEAVE_OUT).is_some() {
        eprintln!("LEFT OUT, as {LEAVE_OUT} says: nothing shows that the program fits into 24 MiB");
        return;
    }
    let group = MemoryGroup::of(24 << 20).unwrap_or_else(|error| {
        panic!(
            "no control group with a limit of memory can be made: {error}; run this test as root, or set {LEAVE_OUT}=1 \
             to leave it out"
        )
    });
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve_by(group.command(&host));
    daemon.healthy().await;
    let load = Load::on(&host.socket(), 500, &acknowledged).await;
    until("calls were made", async || acknowledged.count() > 20_000 || !daemon.is_running()).await;
    let failed = load.end().await;
    assert!(failed.is_empty(), "{} of them, as {:?}", failed.len(), failed.first());
    assert!(daemon.is_running() && group.killed() == 0, "{} KiB at most", group.peak() / 1024);
    eprintln!("{} acknowledged; {} KiB at most", acknowledged.count(), group.peak() / 1024);
    daemon.kill();
    acknowledged.read_after_a_restart(&host).await;
}

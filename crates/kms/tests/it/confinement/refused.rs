//! What was refused is logged where an admin can read it; and what others are refused who would look into the process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use casemate_wire::kms_v2::StatusRequest;
use nix::sys::ptrace;
use rustix::process::geteuid;

use super::{FATAL, probe};
use crate::process::{Daemon, Host, encrypt, opens, program, set_mode, until};
use crate::sockets::{NOBODY, as_another_user};

const DEK: [u8; 32] = *b"<the one DEK source of the test>";

/// The kernel does it, whether its audit is switched on or not.
#[test]
fn what_ends_the_process_is_in_the_kernel_s_log() {
    let host = Host::new();
    // Who may not read that log, has an audit daemon that empties it, or a kernel without audit, is told so.
    let readable = File::open("/dev/kmsg").is_ok_and(|mut log| log.read(&mut [0; 16 * 1024]).is_ok());
    let audited = fs::read_dir("/proc").unwrap().any(|process| {
        fs::read_to_string(process.unwrap().path().join("comm")).is_ok_and(|name| name == "auditd\n")
    });
    let has_audit = Path::new("/proc/self/loginuid").exists()
        && !fs::read_to_string("/proc/cmdline").unwrap().contains("audit=0");
    let expected = match (readable, has_audit && !audited) {
        (false, _) => "the kernel's log can't be read: ",
        (true, false) => "not in the kernel's log",
        (true, true) => "in the kernel's log, type 1326",
    };
    let mut last = Vec::new();
    // The kernel writes ten such lines in five seconds, and others may write them too.
    let all_are_logged = (0..30).any(|_| {
        last = probe(&host, &[]).1;
        let mut fatal = last.iter().filter(|one| FATAL.contains(&&*one.attempt));
        let logged = fatal.all(|one| one.logged.starts_with(expected));
        if !logged {
            std::thread::sleep(Duration::from_secs(1));
        }
        logged
    });
    assert!(all_are_logged && last.iter().all(|one| one.held), "{expected:?} is expected: {last:#?}");
}

/// The system says that it is forbidden, and permissions don't say why.
#[tokio::test]
async fn a_file_that_confinement_refuses_is_named_in_the_daemon_s_log_and_why() {
    let (host, elsewhere) = (Host::new(), tempfile::tempdir().unwrap());
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let stored = encrypt(&mut client, &DEK).await.unwrap();

    let target = elsewhere.path().join("main.key");
    fs::copy(host.key(), &target).unwrap();
    fs::rename(host.key(), host.key().with_extension("kept")).unwrap();
    symlink(&target, host.key()).unwrap();
    let refused = format!("{} is refused by confinement: it is {}", host.key().display(), target.display());
    let readable = format!("below {}", host.folder().display());
    until("the refusal is logged", async || {
        daemon.log().lines().any(|line| line.contains(&refused) && line.contains(&readable))
    })
    .await;
    until("the read fails", async || daemon.log().contains("Permission denied")).await;
    // What is open already goes on.
    opens(&mut client, &stored, &DEK).await;
    encrypt(&mut client, &DEK).await.unwrap();

    fs::rename(host.key().with_extension("kept"), host.key()).unwrap();
    until("its end is logged", async || daemon.log().contains("this file can be read again")).await;
    let log = daemon.kill();
    assert_eq!(log.matches("is refused by confinement").count(), 1, "said once\n{log}");

    let mut daemon = host.serve();
    opens(&mut daemon.healthy().await, &stored, &DEK).await;
}

/// Starts it as a user without rights, if this is root.
fn serve_unprivileged(host: &Host, arguments: &[&str]) -> Daemon {
    let here = host.folder().join("casemate-kms");
    fs::copy(program(), &here).unwrap();
    set_mode(&here, 0o755);
    let mut command = Command::new(here);
    command.arg("serve").args(arguments).arg("--config").arg(host.config());
    if geteuid().is_root() {
        for owned in [host.folder().to_owned(), host.config(), host.key()] {
            chown(owned, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        command.uid(NOBODY).gid(NOBODY);
    }
    host.serve_by(command)
}

/// What the same user gets who tries to look into process `pid`.
fn look_into(pid: u32) -> Vec<(&'static str, Result<(), io::ErrorKind>)> {
    let debug =
        move || ptrace::seize(nix::unistd::Pid::from_raw(pid.cast_signed()), ptrace::Options::empty());
    let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).map(drop).map_err(|error| error.kind());
    let look = || {
        vec![
            ("mem", open("mem")),
            ("environ", open("environ")),
            ("fd", fs::read_dir(format!("/proc/{pid}/fd")).map(drop).map_err(|error| error.kind())),
            ("debug", debug().map_err(|errno| io::Error::from(errno).kind())),
        ]
    };
    if geteuid().is_root() { as_another_user(NOBODY, look) } else { look() }
}

#[tokio::test]
async fn another_process_of_the_same_user_can_not_look_into_it() {
    let host = Host::new();
    let mut daemon = serve_unprivileged(&host, &[]);
    let mut client = daemon.healthy().await;
    for (what, came) in look_into(daemon.pid()) {
        assert_eq!(came, Err(io::ErrorKind::PermissionDenied), "{what}");
    }
    assert!(client.status(StatusRequest {}).await.is_ok(), "and it does not notice");
    daemon.kill();

    // Or else this would show nothing.
    let mut daemon = serve_unprivileged(&host, &["--no-confinement"]);
    daemon.healthy().await;
    for (what, came) in look_into(daemon.pid()) {
        assert_eq!(came, Ok(()), "{what}");
    }
}

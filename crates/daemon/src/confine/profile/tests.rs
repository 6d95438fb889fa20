//! A test confines its own thread for good, so each is run once more, by itself, in a process of its own.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, socket};

use super::*;

const INSIDE: &str = "CASEMATE_TEST_FOLDER";

/// Runs `inside` with a folder of its own in another process, and fails as it does.
fn apart(test: &str, inside: impl FnOnce(&Path)) {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return inside(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["read", "write", "outside"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("file"), name).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("confine::profile::tests::{test}"), "--test-threads=1"]);
    let output = command.env(INSIDE, folder.path()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "it did not run: {printed}");
}

fn kind<T>(done: io::Result<T>) -> Option<ErrorKind> {
    done.err().map(|error| error.kind())
}

/// What comes of sockets that reach the kernel, a hypervisor or the wire itself.
fn families_but_local_and_internet() -> [Option<ErrorKind>; 4] {
    // AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK.
    [16, 17, 38, 40].map(|family| {
        let family = AddressFamily::from_raw(family);
        [SocketType::STREAM, SocketType::DGRAM, SocketType::RAW, SocketType::SEQPACKET]
            .into_iter()
            .map(|of_type| kind(socket(family, of_type, None).map_err(io::Error::from)))
            .reduce(|one, other| if one == other { one } else { None })?
    })
}

#[test]
fn foreign_code_reaches_what_is_named_and_nothing_else() {
    apart("foreign_code_reaches_what_is_named_and_nothing_else", |folder| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Profile::default().read(folder.join("read")).write(folder.join("write")).confine().unwrap();

        let denied = Some(ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(folder.join("read/file")).unwrap(), "read");
        assert_eq!(kind(fs::write(folder.join("read/file"), "")), denied);
        fs::write(folder.join("write/new"), "").unwrap();
        fs::rename(folder.join("write/new"), folder.join("write/newer")).unwrap();
        assert_eq!(kind(fs::read(folder.join("outside/file"))), denied);
        assert_eq!(kind(fs::write(folder.join("outside/new"), "")), denied);
        assert_eq!(kind(fs::read("/etc/shadow")), denied);

        assert_eq!(kind(Command::new("/bin/true").status()), denied, "no program");
        assert_eq!(kind(TcpStream::connect(address)), denied, "no network");
        assert_eq!(kind(UdpSocket::bind("127.0.0.1:0")), denied);
        UnixStream::pair().unwrap();
        assert_eq!(families_but_local_and_internet(), [denied; 4]);
        // Libraries can be loaded, and it can look at itself.
        assert!(fs::read_dir("/usr/lib").unwrap().count() > 0);
        assert!(fs::read_dir("/proc/self/fd").unwrap().count() > 0);
        std::thread::spawn(|| ()).join().unwrap();
    });
}

#[test]
fn who_starts_one_program_starts_no_other_and_gives_it_no_more_than_it_has() {
    apart("who_starts_one_program_starts_no_other_and_gives_it_no_more_than_it_has", |folder| {
        let programs = ["/bin/cat", "/bin/ls"].map(|program| Path::new(program).canonicalize().unwrap());
        let [cat, ls] = &programs;
        Profile::default().read(folder.join("read")).starts(cat).confine().unwrap();
        let run = |file: &str| Command::new(cat).arg(folder.join(file)).output().unwrap();
        assert_eq!(run("read/file").stdout, b"read");
        assert!(!run("outside/file").status.success());
        assert_eq!(kind(Command::new(ls).status()), Some(ErrorKind::PermissionDenied));
    });
}

#[test]
fn a_network_is_there_for_whom_it_is_named() {
    apart("a_network_is_there_for_whom_it_is_named", |folder| {
        let one = Profile::default().network();
        Profile::default().read(folder.join("read")).and(one).confine().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        UnixStream::pair().unwrap();
        assert_eq!(
            families_but_local_and_internet(),
            [Some(ErrorKind::PermissionDenied); 4],
            "not what was named"
        );
        assert_eq!(kind(fs::read(folder.join("outside/file"))), Some(ErrorKind::PermissionDenied));
        assert_eq!(fs::read_to_string(folder.join("read/file")).unwrap(), "read");
    });
}

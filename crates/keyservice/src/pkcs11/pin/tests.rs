use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

fn file(content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pin");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

pub(in super::super) fn read(content: &[u8]) -> Result<Pin, Failure> {
    let (_folder, path) = file(content);
    Pin::read(&path)
}

#[test]
fn what_editors_add_is_left_out_and_said() {
    for (content, left_out) in [
        (&b"12345"[..], &[][..]),
        (b"12345\n", &["the end of line"]),
        (b"12345\r\n", &["the end of line (CR LF)"]),
        (b"\xef\xbb\xbf12345", &["a byte order mark"]),
        (b"\xef\xbb\xbf12345\r\n", &["a byte order mark", "the end of line (CR LF)"]),
    ] {
        let pin = read(content).unwrap();
        assert_eq!((pin.expose(), &pin.left_out[..]), ("12345", left_out), "{content:?}");
    }
    // A space may be part of it.
    assert_eq!(read(b" 1 ").unwrap().expose(), " 1 ");
}

#[test]
fn what_is_no_pin_is_refused() {
    for (content, why) in [
        (&b""[..], "it is empty"),
        (b"\n", "it is empty"),
        (b"\xef\xbb\xbf\r\n", "it is empty"),
        (b"1\n2\n", "more than one line"),
        (b"1\n\n", "more than one line"),
        (b"\xff\xfe1\0", "not UTF-8"),
        (&[b'1'; 5000], "too long"),
    ] {
        let failure = read(content).err().unwrap();
        assert_eq!(failure.class, Class::Credential);
        assert!(failure.what.contains(why), "{failure}");
    }
}

#[test]
fn others_must_not_read_it() {
    let (_folder, path) = file(b"12345");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(Pin::read(&path).err().unwrap().class, Class::Credential);
}

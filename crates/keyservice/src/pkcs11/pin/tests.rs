use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

fn file(content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pin");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

fn read(content: &[u8]) -> Result<Pin, Failure> {
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

#[test]
fn a_refused_pin_is_not_tried_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let guard = Guard::at(&folder.path().join("guard"));
    let (wrong, changed) = (read(b"wrong").unwrap(), read(b"wrong\n").unwrap());
    guard.allow(&wrong, "serial").unwrap().refused().unwrap();
    // As after a restart.
    let guard = Guard::at(&folder.path().join("guard"));
    let refused = guard.allow(&wrong, "serial").err().unwrap();
    assert_eq!(refused.class, Class::Credential);
    assert!(!format!("{refused}").contains("wrong\""), "the PIN is not shown");
    let kept = fs::read_to_string(folder.path().join("guard")).unwrap();
    assert!(!kept.contains("wrong"), "the PIN is not kept");

    guard.allow(&changed, "serial").unwrap().dropped();
    guard.allow(&wrong, "another token").unwrap().dropped();
    assert!(guard.allow(&wrong, "serial").is_err(), "what is neither refused nor accepted changes nothing");
    guard.allow(&changed, "serial").unwrap().accepted();
    guard.allow(&wrong, "serial").unwrap().dropped();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["guard.turn"]);
}

#[test]
fn no_login_while_a_refusal_could_not_be_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let pin = read(b"12345").unwrap();
    let nowhere = Guard::at(&folder.path().join("absent/guard"));
    assert_eq!(nowhere.allow(&pin, "serial").err().unwrap().class, Class::Credential);
    fs::write(folder.path().join("guard"), "{torn").unwrap();
    let torn = Guard::at(&folder.path().join("guard"));
    assert!(torn.allow(&pin, "serial").err().unwrap().remedy.contains("delete"));
}

#[test]
fn what_root_writes_is_the_folders_owners() {
    let folder = tempfile::tempdir().unwrap();
    // Whoever is not root can't give files away, and need not.
    let owner = if geteuid().is_root() { 12345 } else { geteuid().as_raw() };
    std::os::unix::fs::chown(folder.path(), Some(owner), None).unwrap();
    let guard = Guard::at(&folder.path().join("guard"));
    guard.allow(&read(b"wrong").unwrap(), "serial").unwrap().refused().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().uid(), owner);
    }
}

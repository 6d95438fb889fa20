//! What the misbehaving PKCS#11 module does, as `pkcs11-tool` sees it.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use casemate_lab::{
    MisbehavingModule, SoftHsm,
    misbehaving::{Misbehaviour, ckr},
    python,
    softhsm::Token,
};
use tempfile::TempDir;

const PIN: &str = "1234";

struct Host {
    module: MisbehavingModule,
    token: Token,
    // Removed last. Who hangs then goes on: there is no control file any more.
    folder: TempDir,
}

impl Host {
    fn with_a_key() -> Self {
        let folder = TempDir::new().unwrap();
        let hsm = SoftHsm::create(&folder.path().join("hsm")).unwrap();
        let token = hsm.init_token("main", PIN).unwrap();
        token.new_aes_key(PIN, "kek").unwrap();
        let module = MisbehavingModule::create(&folder.path().join("misbehaving")).unwrap();
        Self { module, token, folder }
    }

    fn tool(&self, args: &[&str]) -> Command {
        let mut command = self.token.pkcs11_tool_with(self.module.path());
        command.args(["--login", "--pin", PIN]).args(args).envs(self.module.env());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn list(&self) -> Output {
        self.tool(&["--list-objects"]).output().unwrap()
    }

    /// Starts it, and waits until it has called `function`.
    fn list_until(&self, function: &str) -> Child {
        let before = self.module.calls(function).unwrap();
        let mut child = self.tool(&["--list-objects"]).spawn().unwrap();
        for _ in 0..600 {
            if self.module.calls(function).unwrap() > before {
                return child;
            }
            thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        panic!("{function} was never called: {:?}", child.wait());
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn it_behaves_until_it_is_told_to_and_counts_calls() {
    let host = Host::with_a_key();
    let sound = host.token.pkcs11_tool().args(["--login", "--pin", PIN, "--list-objects"]).output().unwrap();
    assert!(said(&sound).contains("kek"));
    assert_eq!(said(&host.list()), said(&sound));
    assert_eq!(host.module.calls("C_Login").unwrap(), 1);
    host.list();
    assert_eq!(host.module.calls("C_Login").unwrap(), 2);
    assert_eq!(host.module.calls("C_Sign").unwrap(), 0);

    // Without its two variables it says what it needs.
    let alone =
        Command::new("pkcs11-tool").arg("--module").arg(host.module.path()).arg("-L").output().unwrap();
    assert!(!alone.status.success());
    assert!(said(&alone).contains("MISBEHAVING_PKCS11_CONTROL must be set"), "{}", said(&alone));
}

#[test]
fn it_returns_what_it_is_told_as_often_as_it_is_told() {
    let host = Host::with_a_key();
    for (function, value, named) in [
        ("C_Login", ckr::PIN_INCORRECT, "CKR_PIN_INCORRECT"),
        ("C_Login", ckr::DEVICE_REMOVED, "CKR_DEVICE_REMOVED"),
        ("C_FindObjectsInit", ckr::OPERATION_ACTIVE, "CKR_OPERATION_ACTIVE"),
        ("C_FindObjects", ckr::SESSION_HANDLE_INVALID, "CKR_SESSION_HANDLE_INVALID"),
        ("C_OpenSession", ckr::FUNCTION_FAILED, "CKR_FUNCTION_FAILED"),
    ] {
        host.module.misbehave(function, Misbehaviour::Return(value), Some(2)).unwrap();
        for _ in 0..2 {
            let output = host.list();
            assert!(said(&output).contains(named), "{function}: {}", said(&output));
            assert!(!output.status.success());
        }
        assert!(said(&host.list()).contains("kek"), "{function}");
    }
    host.module.misbehave("C_Login", Misbehaviour::Return(ckr::PIN_LOCKED), None).unwrap();
    for _ in 0..3 {
        assert!(said(&host.list()).contains("CKR_PIN_LOCKED"));
    }
    host.module.behave().unwrap();
    assert!(said(&host.list()).contains("kek"));
}

#[test]
fn it_crashes() {
    let host = Host::with_a_key();
    for (how, signal) in [(Misbehaviour::Abort, 6), (Misbehaviour::Segfault, 11)] {
        host.module.misbehave("C_FindObjectsInit", how, Some(1)).unwrap();
        assert_eq!(host.list().status.signal(), Some(signal), "{how:?}");
        assert!(said(&host.list()).contains("kek"));
    }
}

#[test]
fn it_hangs_until_it_behaves_and_is_slow() {
    let host = Host::with_a_key();
    host.module.misbehave("C_Login", Misbehaviour::Hang, None).unwrap();
    let mut child = host.list_until("C_Login");
    assert!(child.try_wait().unwrap().is_none());
    host.module.behave().unwrap();
    assert!(said(&child.wait_with_output().unwrap()).contains("kek"));

    host.module.misbehave("C_FindObjects", Misbehaviour::Slow(Duration::from_millis(20)), None).unwrap();
    assert!(said(&host.list()).contains("kek"));
    // One that rests for an hour has not ended when it is killed.
    host.module.misbehave("C_Login", Misbehaviour::Slow(Duration::from_secs(3600)), None).unwrap();
    let mut child = host.list_until("C_Login");
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn it_puts_out_wrong_bytes() {
    let host = Host::with_a_key();
    let hash = |to: &Path| {
        let args = ["--hash", "--mechanism", "SHA256", "--output-file", to.to_str().unwrap(), "--input-file"];
        let input = host.folder.path().join("input");
        fs::write(&input, "casemate").unwrap();
        let output = host.tool(&args).arg(input).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        fs::read(to).unwrap()
    };
    let sound = hash(&host.folder.path().join("sound"));
    for function in ["C_Digest", "C_DigestFinal"] {
        host.module.misbehave(function, Misbehaviour::WrongBytes, None).unwrap();
    }
    let wrong = hash(&host.folder.path().join("wrong"));
    assert_eq!(wrong, sound.iter().map(|byte| !byte).collect::<Vec<u8>>());
}

#[test]
fn it_leaks_descriptors() {
    let host = Host::with_a_key();
    let open_at_login = || {
        host.module.misbehave("C_Login", Misbehaviour::Hang, None).unwrap();
        let child = host.list_until("C_Login");
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
        let null = |at: std::path::PathBuf| at == Path::new("/dev/null");
        let count =
            open.filter(|entry| fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(null)).count();
        host.module.behave().unwrap();
        child.wait_with_output().unwrap();
        (count, host.module.calls("C_GetTokenInfo").unwrap())
    };
    let (sound, before) = open_at_login();
    host.module.misbehave("C_GetTokenInfo", Misbehaviour::LeakDescriptor, None).unwrap();
    let (leaking, after) = open_at_login();
    assert!(after > before);
    assert_eq!(leaking - sound, after - before);
}

#[test]
fn it_leaks_sessions() {
    let host = Host::with_a_key();
    let client = |expected: &str| {
        let mut command = Command::new(python().unwrap());
        command.args(["-c", SESSION]).arg(host.module.path()).arg(host.token.slot().to_string());
        let environment = host.token.pkcs11_tool();
        let (conf, path) = environment.get_envs().next().unwrap();
        let output = command.env(conf, path.unwrap()).envs(host.module.env()).output().unwrap();
        assert_eq!(said(&output).trim(), expected);
    };
    client("closed: 0, looked at: 0xb3");
    host.module.misbehave("C_CloseSession", Misbehaviour::Return(0), None).unwrap();
    client("closed: 0, looked at: 0x0");
}

/// Opens a session, closes it, and looks at it.
const SESSION: &str = r#"
import ctypes, sys
module, slot, table, session = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), ctypes.c_void_p(), ctypes.c_ulong()
assert module.C_GetFunctionList(ctypes.byref(table)) == 0
words = (ctypes.c_void_p * 68).from_address(table.value + 8)
def function(index, *kinds):
    return ctypes.CFUNCTYPE(ctypes.c_ulong, *kinds)(words[index])
word, pointer = ctypes.c_ulong, ctypes.c_void_p
assert function(0, pointer)(None) == 0
assert function(12, word, word, pointer, pointer, pointer)(slot, 4, None, None, ctypes.addressof(session)) == 0
closed = function(13, word)(session)
print(f"closed: {closed}, looked at: {function(15, word, pointer)(session, ctypes.addressof((word * 4)())):#x}")
"#;

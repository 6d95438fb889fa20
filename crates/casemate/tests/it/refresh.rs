//! `casemate kms refresh`: against a casemate-kms, and against what is none.
#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::Value;

use crate::admin::AdminSocket;
use crate::daemon::Host;
use crate::program::casemate;

/// Exit code, stdout, stderr.
fn refresh(admin: &str, more: &str) -> (i32, String, String) {
    let done = casemate(&format!("kms refresh {more} --timeout 10s --admin {admin}")).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

#[test]
fn it_waits_until_what_was_activated_writes_and_says_which_key_id_that_is() {
    let host = Host::new();
    let _daemon = host.serve();
    let (code, shown, told) = refresh(&host.admin(), "");
    assert_eq!((code, shown.as_str()), (0, "casemate  looks at its root keys\n"), "{told}");

    let before = host.status().unwrap();
    host.rotate();
    let (code, shown, told) = refresh(&host.admin(), "--wait");
    assert_eq!(code, 0, "{shown}{told}");
    let key_id = shown.strip_prefix("casemate  writes under key id ").unwrap().trim_end();
    let after = host.status().unwrap();
    assert!(after.contains(key_id) && !before.contains(key_id), "{key_id}\n{before}\n{after}");

    let (code, json, _) = refresh(&host.admin(), "--wait --provider casemate --output json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json[0]["provider"], &json[0]["writes"]), (0, &"casemate".into(), &key_id.into()));
    assert_eq!((&json[0]["on_its_way"], &json[0]["wrong"]), (&Value::Null, &Value::Array(Vec::new())));

    let (code, _, told) = refresh(&host.admin(), "--provider other");
    assert!(code == 2 && told.contains("there is no provider \"other\"; there are casemate"), "{told}");

    fs::remove_file(host.file("main.key")).unwrap();
    let (code, shown, _) = refresh(&host.admin(), "--wait");
    assert!(code == 1 && shown.contains(&format!("writes under key id {key_id}\n")), "{shown}");
    assert!(shown.contains("  wrong   there is no key file"), "{shown}");
}

#[test]
fn what_can_t_be_asked_is_exit_code_3() {
    for (status, body, text) in [
        ("405 Method Not Allowed", "only GET\n", "upgrade it"),
        ("404 Not Found", "there are /livez, /readyz, /metrics and /status\n", "upgrade it"),
        ("503 Service Unavailable", "", "is busy"),
        (
            "429 Too Many Requests",
            r#"{"provider": "casemate", "retry_after_seconds": 57}"#,
            "provider casemate were looked at as often as can be asked for, and somebody may pay for each look; ask again in \
             57 s",
        ),
        ("200 OK", "{}", "is not the admin socket of a casemate-kms"),
        ("202 Accepted", "{}", "is not understood"),
        // A program that was started again meanwhile counts anew: here it never says how far it is.
        ("202 Accepted", r#"{"providers": [{"name": "casemate", "refresh": 1}]}"#, "is not the admin socket"),
    ] {
        let socket = AdminSocket::saying(status, body);
        let (code, shown, told) = refresh(&socket.url, "--wait");
        assert!(code == 3 && shown.is_empty() && told.contains(text), "{text}: {code} {told}");
    }
    let (code, _, told) = refresh("unix:///nowhere/admin.sock", "");
    assert!(code == 3 && told.contains("does not exist"), "{told}");
    casemate("kms refresh").assert().code(2);
    casemate("kms refresh --admin unix:///a --wait=0s").assert().code(2);
}

//! `casemate census`: command lines and files that are wrong. What is told of right ones is compared with a real cluster
//! in the lab.
#![allow(clippy::unwrap_used)]

use std::fs;

use assert_cmd::assert::Assert;
use serde_json::Value;

use crate::program::{casemate, path};

fn said(done: &Assert) -> String {
    let output = done.get_output();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn what_is_wrong_on_the_command_line_is_told_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("config.yaml"), "kind: EncryptionConfiguration\n").unwrap();
    fs::write(at("policy.yaml"), "kind: CensusPolicy\nrules: []\n").unwrap();
    fs::write(at("empty.yaml"), "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules: []\n")
        .unwrap();
    fs::create_dir(at("nothing")).unwrap();
    for (arguments, says) in [
        ("census snapshot".to_owned(), "<FILE>"),
        (
            "census etcd --endpoints http://127.0.0.1:1 --watch 1s --html a.html".to_owned(),
            "cannot be used with",
        ),
        ("census snapshot a.db --needs key1".to_owned(), "aescbc:NAME"),
        ("census snapshot a.db --may-go local-kek:00".to_owned(), "64 hex digits"),
        ("census snapshot a.db --have kms:v3:a".to_owned(), "its kind is not known"),
        (format!("census snapshot a.db --encryption-config {}", at("config.yaml")), "apiVersion"),
        (format!("census snapshot a.db --encryption-config {}", at("absent.yaml")), "can't be read"),
        (format!("census snapshot a.db --policy {}", at("policy.yaml")), "apiVersion"),
        (format!("census snapshot a.db --policy {}", at("empty.yaml")), "rules is empty"),
        (format!("census snapshot {}", at("nothing")), "no file in this folder"),
        ("census object a.db default".to_owned(), "NAMESPACE/NAME"),
        ("census residue".to_owned(), "<PATH>"),
        ("census residue a.db --resource *".to_owned(), "is not a pattern"),
        (format!("census residue {}", at("nothing")), "no file in this folder"),
    ] {
        let said = said(&casemate(&arguments).assert().code(2));
        assert!(said.contains(says), "{arguments}: {said}");
    }
}

#[test]
fn a_kubeconfig_that_is_of_no_use_is_told_without_what_is_in_it() {
    const WORD: &str = "word-of-somebody";
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let broken = file("broken", &format!("users: [{{name: a, user: {{token: {WORD}}}\n"));
    let other = file("other", &format!("users: {WORD}\n"));
    let empty = file("empty", "kind: Config\n");
    let good = file(
        "good",
        &format!(
            "kind: Config\ncurrent-context: a\ncontexts:\n- {{name: a, context: {{cluster: a, user: a}}}}\n\
             - {{name: lost, context: {{cluster: a, user: gone}}}}\n\
             - {{name: file, context: {{cluster: a, user: file}}}}\n\
             - {{name: program, context: {{cluster: a, user: program}}}}\n\
             - {{name: authority, context: {{cluster: authority, user: a}}}}\n\
             clusters:\n- {{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}\n\
             - {{name: authority, cluster: {{server: 'https://127.0.0.1:1', certificate-authority: /absent/ca.crt}}}}\n\
             users:\n- {{name: a, user: {{token: {WORD}}}}}\n- {{name: file, user: {{tokenFile: /absent/token}}}}\n\
             - {{name: program, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: /absent/program, \
             args: [{WORD}], interactiveMode: Never}}}}}}\n"
        ),
    );
    for (arguments, code, says) in [
        ("--kubeconfig /absent/kubeconfig".to_owned(), 2, "/absent/kubeconfig can't be read"),
        (format!("--kubeconfig {broken}"), 2, "is no kubeconfig: line 1"),
        (format!("--kubeconfig {other}"), 2, "is no kubeconfig: line 1"),
        (format!("--kubeconfig {empty}"), 2, "no current context"),
        (format!("--kubeconfig {good} --context absent"), 2, "has no context \"absent\""),
        (format!("--kubeconfig {good} --context lost"), 2, "has no user \"gone\""),
        (format!("--kubeconfig {good} --context file"), 2, "token file /absent/token"),
        (format!("--kubeconfig {good} --context program"), 2, "its program can't be started"),
        (format!("--kubeconfig {good} --context authority"), 2, "/absent/ca.crt"),
        (format!("--kubeconfig {good} --server 127.0.0.1:1"), 2, "https://HOST:PORT"),
        (format!("--kubeconfig {good} --server http://10.0.0.1:1"), 2, "in clear"),
        (format!("--kubeconfig {good} --resource secrets/a"), 2, "is no resource"),
        (format!("--kubeconfig {good}"), 3, "can't be reached"),
    ] {
        let said = said(&casemate(&format!("census api {arguments}")).assert().code(code));
        assert!(said.contains(says), "{arguments}: {said}");
        assert!(!said.contains(WORD), "{arguments}: {said}");
    }
    // Nothing where kubectl looks, and no pod.
    let nowhere = casemate("census api")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("HOME", folder.path())
        .assert()
        .code(2);
    assert!(said(&nowhere).contains("--kubeconfig"), "{}", said(&nowhere));
}

#[test]
fn what_is_no_file_of_etcd_leaves_every_question_open() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("notes.txt"), "no database").unwrap();
    let (notes, absent) = (at("notes.txt"), at("absent.db"));
    for arguments in [
        format!("census snapshot {notes}"),
        format!("census snapshot {absent} --needs aescbc:key1"),
        format!("census snapshot {} --may-go aescbc:key1", folder.path().display()),
        format!("census object {notes} default/a"),
        format!("census residue {notes}"),
        format!("census diff {notes} {absent}"),
    ] {
        casemate(&arguments).assert().code(3);
    }
    let done =
        casemate(&format!("census snapshot {notes} --may-go aescbc:key1 --output json")).assert().code(3);
    let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(answer["may_go"]["verdict"], "unknown");
    assert_eq!(answer["failed"][0]["file"], notes.as_str());
    let told = said(&casemate(&format!("census snapshot {notes}")).assert().code(3));
    assert!(told.contains("NOT READ") && told.contains("notes.txt"), "{told}");
}

/// Nothing in a folder of backups is passed over in silence: what was not read may need the key.
#[test]
fn what_is_in_a_folder_and_can_not_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("backups/2026/november")).unwrap();
    fs::create_dir(at("backups/empty")).unwrap();
    fs::create_dir(at("elsewhere")).unwrap();
    fs::write(at("backups/2026/november/notes.txt"), "no database").unwrap();
    fs::write(at("backups/.hidden"), "no database").unwrap();
    fs::write(at("backups/zero.db"), "").unwrap();
    for (link, to) in
        [("backups/dangling.db", "absent.db"), ("backups/linked", "../elsewhere"), ("backups/loop", "loop")]
    {
        std::os::unix::fs::symlink(to, at(link)).unwrap();
    }
    // Would wait for ever, were it opened to be read.
    rustix::fs::mkfifoat(rustix::fs::CWD, at("backups/fifo.db"), 0o600.into()).unwrap();
    let line = format!("census snapshot {} --may-go aescbc:key1 --output json", at("backups").display());
    let done = casemate(&line).assert().code(3);
    let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let told: Vec<(String, String)> = answer["failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let file = one["file"].as_str().unwrap().strip_prefix(folder.path().to_str().unwrap()).unwrap();
            (file.trim_start_matches("/backups/").to_owned(), one["error"].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [
        ("2026/november/notes.txt", "of another program"),
        ("dangling.db", "can't be opened"),
        ("fifo.db", "is a FIFO"),
        ("linked", "is a folder"),
        ("loop", "can't be opened"),
        ("zero.db", "is empty (0 bytes)"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for ((file, error), (name, says)) in told.iter().zip(expected) {
        assert!(file == name && error.contains(says), "{name}: {file} {error}");
    }
    assert_eq!(answer["may_go"]["unclear"].as_array().unwrap().len(), 1 + expected.len(), "{answer:#}");
}

/// A name of a file is somebody's text, too.
#[test]
fn what_is_not_read_is_told_without_commands_for_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\u{9b}\u{202e}\u{200b}b\nc.db";
    fs::write(folder.path().join(name), "no database").unwrap();
    let path = folder.path().display();
    for line in [
        format!("census snapshot {path}"),
        format!("census snapshot {path} --output json"),
        format!("census snapshot {path} --may-go aescbc:key1"),
        format!("census residue {path}"),
        format!("census residue {path} --output json"),
    ] {
        let said = said(&casemate(&line).assert().code(3));
        let odd = |character: &char| character.is_control() && *character != '\n' || !character.is_ascii();
        assert_eq!(said.chars().filter(odd).collect::<String>(), "", "{line}: {said:?}");
        assert!(said.contains("u{1b}[2J") || said.contains("\\u001b[2J"), "{line}: {said:?}");
    }
}

#[test]
fn a_kept_answer_is_compared_if_it_is_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let survey = |live: u64| {
        let tally = |values: u64| {
            format!(
                r#"{{"values": {values}, "bytes": 0, "annotation_bytes": 0, "oldest": 2, "newest": 2, "examples": []}}"#
            )
        };
        format!(
            r#"{{"survey": {{"prefix": "/registry", "revision": 9, "compacted": null, "live": {live}, "deleted": 0, "past": 0,
                "outside": 0, "ungrouped": 0, "malformed": [], "groups": [{{"resource": {{"name": "secrets", "group": ""}},
                "encryption": {{"kind": "local", "cipher": "aescbc", "key": "key1"}}, "live": {}, "past": {}}}]}}}}"#,
            tally(live),
            tally(0)
        )
    };
    let file = |name: &str, surveys: &[String]| {
        fs::write(at(name), format!(r#"{{"files": [{}], "failed": []}}"#, surveys.join(", "))).unwrap();
        at(name)
    };
    let (one, more) = (file("one.json", &[survey(1)]), file("more.json", &[survey(3)]));
    casemate(&format!("census diff {one} {one}")).assert().code(0);
    let told = said(&casemate(&format!("census diff {one} {more}")).assert().code(1));
    assert!(told.contains("aescbc:key1") && told.contains("1 -> 3"), "{told}");
    let two = file("two.json", &[survey(1), survey(3)]);
    let told = said(&casemate(&format!("census diff {one} {two}")).assert().code(2));
    assert!(told.contains("about 2 files"), "{told}");
    fs::write(at("other.json"), "{}").unwrap();
    let told = said(&casemate(&format!("census diff {one} {}", at("other.json"))).assert().code(2));
    assert!(told.contains("is no answer of"), "{told}");
}

#[test]
fn a_report_replaces_nothing_but_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("notes.db"), "no database").unwrap();
    fs::write(at("empty.html"), "").unwrap();
    std::os::unix::fs::symlink(at("absent"), at("link")).unwrap();
    for (flag, file, says) in [
        ("--html", "notes.db", "no such report"),
        ("--prometheus", "notes.db", "no such report"),
        ("--html", "link", "symbolic link"),
        ("--prometheus", "absent/file.prom", "folder exists"),
    ] {
        let refused = said(
            &casemate(&format!("census snapshot {} {flag} {}", at("notes.db"), at(file))).assert().code(2),
        );
        assert!(refused.contains(says) && refused.contains(file), "{refused}");
    }
    // Nothing could be read: that is told, too, and the exit code is what it was.
    let (html, gauges) = (at("empty.html"), at("census.prom"));
    for _ in 0..2 {
        let line = format!("census snapshot {} --html {html} --prometheus {gauges}", at("notes.db"));
        casemate(&line).assert().code(3);
        let page = fs::read_to_string(&html).unwrap();
        assert!(page.contains("1 file could not be read") && page.contains("--prometheus"), "{page}");
        let gauges = fs::read_to_string(&gauges).unwrap();
        assert!(
            gauges.contains("casemate_census_exit_code 3") && gauges.contains("unread_files 1"),
            "{gauges}"
        );
    }
    let refused =
        said(&casemate(&format!("census snapshot {} --html {gauges}", at("notes.db"))).assert().code(2));
    assert!(refused.contains("no such report"), "{refused}");
    assert_eq!(fs::read(at("notes.db")).unwrap(), b"no database");
}

/// A disk that is full: what was there before stays, and nothing of what was begun.
#[test]
fn a_report_that_has_no_room_is_told_and_the_last_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("notes.db"), "no database").unwrap();
    casemate(&format!("census snapshot {} --html {}", at("notes.db"), at("last.html"))).assert().code(3);
    fs::create_dir(at("small")).unwrap();
    // A file system of its own, which is gone with the shell: the report fits, and a second one beside it does not.
    let script = r#"set -e
        mount -t tmpfs -o size="$4" none "$1"
        cp "$2" "$1/census.html"
        code=0; "$3" census snapshot "$5" --html "$1/census.html" || code=$?
        cmp "$2" "$1/census.html"
        test "$(ls -A "$1" | wc -l)" = 1
        exit $code"#;
    let bytes = fs::metadata(at("last.html")).unwrap().len();
    let program = path().display().to_string();
    let run = |size: u64| {
        let mut shell = assert_cmd::Command::new("unshare");
        shell.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        shell.args([&at("small"), &at("last.html"), &program, &size.to_string(), &at("notes.db")]);
        shell.assert()
    };
    let full = said(&run(bytes.next_multiple_of(4096) + 4096).code(3));
    assert!(full.contains("census.html"), "{full}");
}

/// What etcd could have left: the folders of a stopped member, without a database.
#[test]
fn plaintext_in_a_log_is_counted_and_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["member/wal", "member/snap"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let secret = b"k8s\0\n\x0c\n\x02v1\x12\x06Secret\x12\x06HIDDEN";
    fs::write(
        at("member/wal/0000000000000000-0000000000000000.wal"),
        [&[0; 4000][..], secret, secret].concat(),
    )
    .unwrap();
    fs::write(at("member/wal/0.tmp"), [0; 4000]).unwrap();
    fs::write(at("member/snap/0000000000000002-0000000000000009.snap"), secret).unwrap();
    fs::write(at("member/snap/db"), "cut off").unwrap();
    let path = folder.path().display();
    let done = casemate(&format!("census residue {path} --output json")).assert().code(1);
    let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(
        (&answer["copies"], answer["failed"].as_array().unwrap().len()),
        (&Value::from(3), 1),
        "{answer:#}"
    );
    let remedies: Vec<&str> =
        answer["remedies"].as_array().unwrap().iter().map(|one| one["place"].as_str().unwrap()).collect();
    assert_eq!(remedies, ["write_ahead_log", "other_file"]);
    let shown = said(&casemate(&format!("census residue {path}")).assert().code(1));
    for told in ["3 copies", "2 secrets", "write-ahead log", "byte 4000", "NOT READ", "a restart"] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert!(!shown.contains("HIDDEN") && !answer.to_string().contains("HIDDEN"));
    // Of other resources there is none, as far as it could be read.
    casemate(&format!("census residue {path} --resource pods")).assert().code(4);
    casemate(&format!("census residue {}/member/wal --resource pods", path)).assert().code(0);
    casemate(&format!("census residue {}/member/wal --resource *.*", path)).assert().code(1);
}

//! Folders that are no place for secrets, or have no place for them.

use std::process::Command;
use std::{fs, os::unix::fs::PermissionsExt as _};

use casemate_lab::{Lab, plugin::product};

use super::written::Written;
use super::{encryption, files, recover, snapshot, text};

#[test]
fn a_folder_that_others_see_or_that_is_full_is_told_and_no_half_a_file_stays() {
    let lab = Lab::builder("recover folder").apiservers(0).start().unwrap();
    let server = lab.add_apiserver(encryption(&["identity"], None)).unwrap();
    Written::define_things(&server);
    let mut written = Written::default();
    for number in 0..40 {
        written.write(&server, &format!("object-{number}"));
    }
    let file = snapshot(&lab, "all.db");
    let file = text(&file);

    let at = |name: &str| lab.dir().join(name);
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o755)).unwrap();
    let run = recover(["snapshot", file, "--out", text(&at("open"))]).expect(2);
    assert!(run.said.contains("mode 0755"), "{}", run.said);
    assert!(files(&at("open")).is_empty());

    // A file system of its own, which is gone with the shell.
    let (place, copy) = (at("small"), at("copy"));
    fs::create_dir(&place).unwrap();
    let script = r#"set -e
        mount -t tmpfs -o size=192k,mode=0700 none "$1"
        code=0; "$2" recover snapshot "$3" --out "$1/out" || code=$?
        find "$1/out" -name '.partial*' | grep . && exit 90
        cp -r "$1/out" "$4"
        exit $code"#;
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(&place)
        .arg(product("casemate").unwrap())
        .arg(file)
        .arg(&copy)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("there is no room") && said.contains("files are whole"), "{said}");
    // What is there is as it was written, and says that it is not all.
    let mut found = files(&copy);
    let marker = found.iter().position(|name| name == "_INCOMPLETE.txt").unwrap();
    found.remove(marker);
    assert!(!found.is_empty() && found.len() < 200, "{} files", found.len());
    let whole = at("whole");
    recover(["snapshot", file, "--out", text(&whole)]).expect(0);
    assert!(!whole.join("_INCOMPLETE.txt").exists());
    for name in found {
        assert_eq!(fs::read(copy.join(&name)).unwrap(), fs::read(whole.join(&name)).unwrap(), "{name}");
    }
}

/// Whoever writes etcd must not be able to stop a recovery.
#[test]
fn objects_that_would_have_one_file_and_hostile_names_have_files_of_their_own() {
    let lab = Lab::builder("recover names").apiservers(0).start().unwrap();
    let long = "x".repeat(1000);
    let keys = [
        "/registry/minions/one",
        "/registry/nodes/one",
        "/registry/leases/default/one",
        "/registry/coordination.k8s.io/leases/default/one",
        "/registry/things.example.com/things/default/../../../etc/passwd",
        "/registry/configmaps/../..//one",
        "/registry/configmaps/default/\u{1b}[2J\u{202e}\r\n",
        "/registry/configmaps/_INCOMPLETE.txt/one",
        "/registry/configmaps/default/One",
        "/registry/configmaps/default/one",
        &format!("/registry/configmaps/default/{long}"),
        &format!("/registry/configmaps/default/{long}y"),
    ];
    for (place, key) in keys.iter().enumerate() {
        let object = format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"one"}},"place":"here {place}."}}"#
        );
        lab.etcd().put(key, object.as_bytes()).unwrap();
    }
    let out = lab.dir().join("out");
    let run = recover(["snapshot", text(&snapshot(&lab, "all.db")), "--out", text(&out)]).expect(0);
    assert!(!run.said.contains('\u{1b}') && !run.out.contains('\u{1b}'));
    let names = files(&out);
    assert_eq!(names.len(), keys.len(), "{names:?}");
    let all: Vec<String> = names.iter().map(|name| fs::read_to_string(out.join(name)).unwrap()).collect();
    for (place, key) in keys.iter().enumerate() {
        let found = all.iter().filter(|manifest| manifest.contains(&format!("here {place}."))).count();
        assert_eq!(found, 1, "{key}: {names:?}");
    }

    // A Secret with a field that a later Kubernetes may have is YAML, and beside it all of what was stored.
    let later = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x0d\x0a\x07\x0a\x05later\x32\x02hi";
    lab.etcd().put("/registry/secrets/default/later", later).unwrap();
    let out = lab.dir().join("later");
    let words = ["--resource", "secrets", "--output", "json", "--out", text(&out)];
    let answer =
        recover(["snapshot", text(&snapshot(&lab, "later.db"))].into_iter().chain(words)).expect(0).json();
    assert_eq!((answer["incomplete"].as_u64(), answer["opened"].as_u64()), (Some(1), Some(1)));
    assert_eq!(files(&out), ["default/secrets/later.pb", "default/secrets/later.yaml"]);
    assert_eq!(fs::read(out.join("default/secrets/later.pb")).unwrap(), later);

    // Where its name is taken by another object's protobuf, it has names of its own.
    let other = b"k8s\0\x0a\x0a\x0a\x02v1\x12\x04Node\x12\x00";
    lab.etcd().put("/registry/minions/both", later).unwrap();
    lab.etcd().put("/registry/nodes/both", other).unwrap();
    let out = lab.dir().join("both");
    let words = ["--resource", "nodes", "--resource", "minions", "--output", "json", "--out", text(&out)];
    recover(["snapshot", text(&snapshot(&lab, "both.db"))].into_iter().chain(words)).expect(0);
    let all: Vec<Vec<u8>> = files(&out).iter().map(|name| fs::read(out.join(name)).unwrap()).collect();
    for stored in [&later[..], &other[..]] {
        assert_eq!(all.iter().filter(|file| file[..] == *stored).count(), 1, "{:?}", files(&out));
    }
}

//! The committed files, each in a folder that says when it is accepted.

use std::{fs, path::Path};

use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};

/// Every setting of the flags.
pub(crate) const FLAGS: [ServerFlags; 4] = [
    ServerFlags { automatic_reload: false, kms_v1: false },
    ServerFlags { automatic_reload: true, kms_v1: false },
    ServerFlags { automatic_reload: false, kms_v1: true },
    ServerFlags { automatic_reload: true, kms_v1: true },
];

/// Each file: its folder and name, and its bytes.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files = Vec::new();
    for folder in fs::read_dir(&corpus).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.strip_prefix(&corpus).unwrap().to_str().unwrap().to_owned();
            files.push((name, fs::read(path).unwrap()));
        }
    }
    files.sort();
    files
}

fn is_accepted(name: &str, flags: ServerFlags) -> bool {
    match name.split('/').next().unwrap() {
        "accepted" => true,
        "refused" => false,
        "kms-v1" => flags.kms_v1,
        "kms-v1-without-reload" => flags.kms_v1 && !flags.automatic_reload,
        folder => panic!("nothing is known of the folder {folder}"),
    }
}

#[test]
fn each_file_is_accepted_when_its_folder_says_so() {
    let files = files();
    assert!(files.len() > 250, "{}", files.len());
    for (name, file) in &files {
        for flags in FLAGS {
            let read = EncryptionConfiguration::read(file, flags);
            assert_eq!(read.is_ok(), is_accepted(name, flags), "{name}, {flags:?}: {read:?}");
        }
    }
}

/// Every refusal says where, unless there is no place, and what to do.
#[test]
fn each_refusal_has_a_place_and_a_remedy() {
    for (name, file) in files().iter().filter(|(name, _)| name.starts_with("refused/")) {
        let refused = EncryptionConfiguration::read(file, ServerFlags::default()).unwrap_err();
        assert!(!refused.problems().is_empty(), "{name}");
        for problem in refused.problems() {
            let of_the_whole = matches!(name.as_str(), "refused/empty.yaml" | "refused/not-utf-8.yaml");
            assert_eq!(problem.position.is_none(), of_the_whole, "{name}: {problem}");
            assert!(problem.fault.to_string().contains(": "), "{name}: {problem}");
        }
    }
}

#[test]
fn accepted_files_are_written_and_read_back_the_same() {
    let flags = ServerFlags { automatic_reload: false, kms_v1: true };
    for (name, file) in files().iter().filter(|(name, _)| !name.starts_with("refused/")) {
        let config = EncryptionConfiguration::read(file, flags).unwrap();
        let written = config.to_yaml();
        let again = EncryptionConfiguration::read(written.as_bytes(), flags).unwrap();
        assert_eq!(again, config, "{name}");
        assert_eq!(again.to_yaml(), written, "{name}");
    }
}

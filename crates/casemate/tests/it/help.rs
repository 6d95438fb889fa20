//! The words of the command line: help, usage errors, man pages, completion.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::program::{self, casemate};

/// Each file in `cmd/` is one command and all that it prints. `TRYCMD=overwrite` writes them anew.
#[test]
fn the_command_line_is_what_the_files_say() {
    let cases = trycmd::TestCases::new();
    cases.register_bin("casemate", program::path());
    cases.env("COLUMNS", "100");
    cases.case("tests/it/cmd/*.toml");
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    casemate("man").arg(folder.path()).assert().success();
    let mut pages: Vec<_> = fs::read_dir(&folder).unwrap().map(|page| page.unwrap().file_name()).collect();
    pages.sort();
    for page in [
        "casemate.1",
        "casemate-inspect.1",
        "casemate-kms.1",
        "casemate-kms-probe.1",
        "casemate-kms-status.1",
        "casemate-man.1",
    ] {
        assert!(pages.iter().any(|found| found == page), "{page} is not among {pages:?}");
    }
    let page = fs::read_to_string(folder.path().join("casemate-kms-decrypt.1")).unwrap();
    assert!(page.contains("mode 0600"), "{page}");
    casemate("man").arg(folder.path().join("absent")).assert().code(2);
}

#[test]
fn shells_complete_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let done = casemate("completion").arg(shell).assert().success();
        let script = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(script.contains("probe"), "{shell}");
    }
    casemate("completion nosuchshell").assert().code(2);
}

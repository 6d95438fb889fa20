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
        "casemate-kms-probe.1",
        "casemate-kms-status.1",
        "casemate-man.1",
        "casemate-kms.8",
        "casemate-kms-serve.8",
    ] {
        assert!(pages.iter().any(|found| found == page), "{page} is not among {pages:?}");
    }
    // `man casemate-kms` is about the plugin.
    assert!(!pages.iter().any(|found| found == "casemate-kms.1"), "{pages:?}");
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let decrypt = page("casemate-kms-decrypt.1");
    let foot = concat!("\"casemate ", env!("CARGO_PKG_VERSION"), "\"");
    for part in ["mode 0600", "\\-\\-socket <URL> ", "[\\-\\-yes]", "EXIT STATUS", foot] {
        assert!(decrypt.contains(part), "{part}: {decrypt}");
    }
    assert!(page("casemate.1").contains("kms\\-status"), "{}", page("casemate.1"));
    casemate("man").arg(folder.path().join("absent")).assert().code(2);
}

#[test]
fn shells_complete_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let done = casemate("completion").arg(shell).assert().success();
        let script = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(script.contains("probe"), "{shell}");
        let done = casemate("completion --program casemate-kms").arg(shell).assert().success();
        let script = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(script.contains("accept-reuse"), "{shell}");
    }
    casemate("completion nosuchshell").assert().code(2);
}

//! Where the programs come from.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use casemate_lab::{Tool, python};
use tempfile::TempDir;

use crate::program;

/// `casemate-lab tools` with an empty cache and these folders looked at first: what it printed.
fn tools(assets: &Path, first_on_path: &Path) -> String {
    let cache = TempDir::new().unwrap();
    let rest = env::var_os("PATH").unwrap_or_default();
    let path = [first_on_path.to_owned()].into_iter().chain(env::split_paths(&rest));
    let output = Command::new(program())
        .arg("tools")
        .env("KUBEBUILDER_ASSETS", assets)
        .env("PATH", env::join_paths(path).unwrap())
        .env("CASEMATE_CACHE", cache.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing was built");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn installed_programs_of_exactly_the_version_are_used() {
    let (assets, path) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for tool in Tool::LAB {
        let program = tool.path().unwrap();
        let linked = |folder: &Path| std::os::unix::fs::symlink(&program, folder.join(tool.name()));
        linked(path.path()).unwrap();
        if tool != Tool::Kubectl {
            linked(assets.path()).unwrap();
        }
    }
    // Another version, in the folder that is looked at first.
    let other = assets.path().join("kubectl");
    fs::write(&other, "#!/bin/sh\necho 'Client Version: v1.0.0'\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();

    let printed = tools(assets.path(), path.path());
    for tool in Tool::LAB {
        let folder = if tool == Tool::Kubectl { &path } else { &assets };
        let line = format!("{tool}\t{}\n", folder.path().join(tool.name()).display());
        assert!(printed.contains(&line), "{line} is not in\n{printed}");
    }
}

#[test]
fn the_python_has_exactly_what_is_pinned() {
    let pinned = include_str!("../../requirements.txt");
    let script = "from importlib.metadata import version; import sys
for name in sys.argv[1:]: print(name + '==' + version(name))";
    let pins: Vec<&str> = pinned.lines().filter(|line| line.contains("==")).collect();
    let names = pins.iter().filter_map(|pin| pin.split("==").next());

    let output = Command::new(python().unwrap()).args(["-c", script]).args(names).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found.lines().collect::<Vec<_>>(), pins);
    assert!(pins.iter().any(|pin| pin.starts_with("cryptography==")));
}

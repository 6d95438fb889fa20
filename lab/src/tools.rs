//! The programs that the lab starts: found here if their version fits exactly, else built once.
//!
//! Which version that is, is said in one place: the `go.mod` files under `lab/tools`. They are part
//! of this library, so a built lab needs no source tree.

mod build;

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use crate::{Result, process};

/// A program that the lab starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tool {
    /// The store.
    Etcd,
    /// Its command line, through which the lab reads the store.
    Etcdctl,
    /// The API server.
    KubeApiserver,
    /// Kubernetes' command line.
    Kubectl,
    /// Opens and makes age files, as recovery wraps are: by age's author, in another language.
    Age,
    /// Calls a KMS v2 plugin through the client of kube-apiserver 1.31, the last that sends the socket's
    /// path as `:authority`. A program of ours.
    KmsClient31,
    /// The same through the client of today's kube-apiserver.
    KmsClient37,
    /// The API server of that older generation.
    KubeApiserver31,
    /// Reads EncryptionConfigurations through kube-apiserver's own loader. A program of ours.
    EncryptionConfig,
    /// The store of the line before: its files are read, too.
    Etcd35,
    /// Its command line.
    Etcdctl35,
    /// What k3s has in place of etcd: etcd's API on SQLite.
    Kine,
    /// A KMS v1 plugin. A program of ours.
    KmsV1,
    /// What `casemate-kms` is measured against: a plugin of ours in Go, on `k8s.io/kms`.
    KmsPeer,
}

/// A Go module of ours that names the commands to build, or is one, and pins all that they need.
struct GoModule {
    /// `go.mod` and `go.sum`.
    files: [&'static str; 2],
    /// The module that has the version we call the tool's.
    versioned: &'static str,
    /// Its `main.go`, if the program is ours.
    program: Option<&'static str>,
}

const ETCD: GoModule = GoModule {
    files: [include_str!("../tools/etcd/go.mod"), include_str!("../tools/etcd/go.sum")],
    versioned: "go.etcd.io/etcd/server/v3",
    program: None,
};

const ETCD_35: GoModule = GoModule {
    files: [include_str!("../tools/etcd-35/go.mod"), include_str!("../tools/etcd-35/go.sum")],
    versioned: "go.etcd.io/etcd/server/v3",
    program: None,
};

const KINE: GoModule = GoModule {
    files: [include_str!("../tools/kine/go.mod"), include_str!("../tools/kine/go.sum")],
    versioned: "github.com/k3s-io/kine",
    program: None,
};

const KUBERNETES: GoModule = GoModule {
    files: [include_str!("../tools/kubernetes/go.mod"), include_str!("../tools/kubernetes/go.sum")],
    versioned: "k8s.io/kubernetes",
    program: None,
};

const KUBERNETES_31: GoModule = GoModule {
    files: [include_str!("../tools/kubernetes-31/go.mod"), include_str!("../tools/kubernetes-31/go.sum")],
    versioned: "k8s.io/kubernetes",
    program: None,
};

const AGE: GoModule = GoModule {
    files: [include_str!("../tools/age/go.mod"), include_str!("../tools/age/go.sum")],
    versioned: "filippo.io/age",
    program: None,
};

const KMS_CLIENT: &str = include_str!("../tools/kms-client/main.go");

const KMS_CLIENT_31: GoModule = GoModule {
    files: [include_str!("../tools/kms-client-31/go.mod"), include_str!("../tools/kms-client-31/go.sum")],
    versioned: "k8s.io/apiserver",
    program: Some(KMS_CLIENT),
};

const KMS_CLIENT_37: GoModule = GoModule {
    files: [include_str!("../tools/kms-client-37/go.mod"), include_str!("../tools/kms-client-37/go.sum")],
    versioned: "k8s.io/apiserver",
    program: Some(KMS_CLIENT),
};

const ENCRYPTION_CONFIG: GoModule = GoModule {
    files: [
        include_str!("../tools/encryption-config/go.mod"),
        include_str!("../tools/encryption-config/go.sum"),
    ],
    versioned: "k8s.io/apiserver",
    program: Some(include_str!("../tools/encryption-config/main.go")),
};

const KMS_V1: GoModule = GoModule {
    files: [include_str!("../tools/kms-v1/go.mod"), include_str!("../tools/kms-v1/go.sum")],
    versioned: "k8s.io/kms",
    program: Some(include_str!("../tools/kms-v1/main.go")),
};

const KMS_PEER: GoModule = GoModule {
    files: [include_str!("../../bench/peer/go.mod"), include_str!("../../bench/peer/go.sum")],
    versioned: "k8s.io/kms",
    program: Some(include_str!("../../bench/peer/main.go")),
};

impl GoModule {
    /// As in the `require` line, without the `v`.
    fn version(&self) -> &'static str {
        let [go_mod, _] = self.files;
        go_mod
            .lines()
            .find_map(|line| {
                let mut words = line.split_whitespace();
                (words.next()? == self.versioned).then_some(words.next()?)
            })
            .and_then(|version| version.strip_prefix('v'))
            .expect("each go.mod requires its versioned module: a test looks")
    }
}

impl Tool {
    /// What every lab needs, in the order in which it builds fastest. The others are for single tests.
    pub const LAB: [Tool; 4] = [Tool::Etcd, Tool::Etcdctl, Tool::KubeApiserver, Tool::Kubectl];

    /// What `./dev bench plugin` needs.
    pub const BENCH: [Tool; 3] = [Tool::KmsClient31, Tool::KmsClient37, Tool::KmsPeer];

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Etcd | Tool::Etcd35 => "etcd",
            Tool::Etcdctl | Tool::Etcdctl35 => "etcdctl",
            Tool::Kine => "kine",
            Tool::KubeApiserver | Tool::KubeApiserver31 => "kube-apiserver",
            Tool::Kubectl => "kubectl",
            Tool::Age => "age",
            Tool::KmsClient31 => "kms-client-31",
            Tool::KmsClient37 => "kms-client-37",
            Tool::EncryptionConfig => "encryption-config",
            Tool::KmsPeer => "kms-peer",
            Tool::KmsV1 => "kms-v1",
        }
    }

    /// The version that the lab wants, as in `1.37.2`.
    pub fn version(self) -> &'static str {
        self.module().version()
    }

    /// The program's path. It is, in this order, the one in the folder `KUBEBUILDER_ASSETS` or on
    /// `PATH`, if its version is exactly ours; the one in the cache; one that is built now.
    pub fn path(self) -> Result<PathBuf> {
        static KNOWN: Mutex<Vec<(Tool, PathBuf)>> = Mutex::new(Vec::new());

        // Held during a build too: the threads of one test binary then build one after another.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, path)) = known.iter().find(|(tool, _)| *tool == self) {
            return Ok(path.clone());
        }
        let path = match self.installed() {
            Some(path) => path,
            None => build::cached(self)?,
        };
        known.push((self, path.clone()));
        Ok(path)
    }

    /// Looks in `KUBEBUILDER_ASSETS` and on `PATH`, but for programs of ours: what we wrote last must run.
    fn installed(self) -> Option<PathBuf> {
        if self.module().program.is_some() {
            return None;
        }
        let assets = env::var_os("KUBEBUILDER_ASSETS").into_iter();
        let path = env::var_os("PATH").unwrap_or_default();
        assets
            .map(PathBuf::from)
            .chain(env::split_paths(&path))
            .map(|folder| folder.join(self.name()))
            .find(|program| program.is_file() && self.fits(program))
    }

    /// Whether `program` says that it has exactly our version.
    fn fits(self, program: &Path) -> bool {
        let mut command = Command::new(program);
        command.args(match self {
            Tool::Age
            | Tool::Etcd
            | Tool::Etcd35
            | Tool::Kine
            | Tool::KubeApiserver
            | Tool::KubeApiserver31 => &["--version"][..],
            Tool::Etcdctl
            | Tool::Etcdctl35
            | Tool::EncryptionConfig
            | Tool::KmsClient31
            | Tool::KmsClient37
            | Tool::KmsPeer
            | Tool::KmsV1 => &["version"],
            Tool::Kubectl => &["version", "--client"],
        });
        process::run(&command, b"")
            .is_ok_and(|output| self.is_named_in(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Only the first line counts: versions of other things follow.
    fn is_named_in(self, answer: &str) -> bool {
        let first = answer.lines().next().unwrap_or_default();
        first.split_whitespace().any(|word| word.strip_prefix('v').unwrap_or(word) == self.version())
    }

    fn module(self) -> &'static GoModule {
        match self {
            Tool::Etcd | Tool::Etcdctl => &ETCD,
            Tool::Etcd35 | Tool::Etcdctl35 => &ETCD_35,
            Tool::Kine => &KINE,
            Tool::KubeApiserver | Tool::Kubectl => &KUBERNETES,
            Tool::KubeApiserver31 => &KUBERNETES_31,
            Tool::Age => &AGE,
            Tool::KmsClient31 => &KMS_CLIENT_31,
            Tool::KmsClient37 => &KMS_CLIENT_37,
            Tool::EncryptionConfig => &ENCRYPTION_CONFIG,
            Tool::KmsPeer => &KMS_PEER,
            Tool::KmsV1 => &KMS_V1,
        }
    }

    /// What `go build` is asked for.
    fn package(self) -> &'static str {
        match self {
            Tool::Etcd | Tool::Etcd35 => "go.etcd.io/etcd/server/v3",
            Tool::Etcdctl | Tool::Etcdctl35 => "go.etcd.io/etcd/etcdctl/v3",
            Tool::Kine => "github.com/k3s-io/kine",
            Tool::KubeApiserver | Tool::KubeApiserver31 => "k8s.io/kubernetes/cmd/kube-apiserver",
            Tool::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Tool::Age => "filippo.io/age/cmd/age",
            Tool::EncryptionConfig | Tool::KmsClient31 | Tool::KmsClient37 | Tool::KmsPeer | Tool::KmsV1 => {
                "."
            }
        }
    }

    /// How long a cold build took on two cores.
    fn build_time(self) -> &'static str {
        match self {
            Tool::Etcd | Tool::Etcd35 => "about a minute",
            Tool::Etcdctl | Tool::Etcdctl35 => "some seconds",
            Tool::Kine => "one minute or two, with a C compiler",
            Tool::KubeApiserver | Tool::KubeApiserver31 => "about five minutes on two idle cores",
            Tool::Kubectl => "one minute or two",
            Tool::Age => "some seconds",
            Tool::EncryptionConfig | Tool::KmsClient31 | Tool::KmsClient37 | Tool::KmsPeer | Tool::KmsV1 => {
                "about half a minute"
            }
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_go_mod_says_the_version_and_names_the_command() {
        let others = [
            Tool::Age,
            Tool::EncryptionConfig,
            Tool::Etcd35,
            Tool::Etcdctl35,
            Tool::Kine,
            Tool::KubeApiserver31,
        ];
        for tool in [&Tool::LAB[..], &Tool::BENCH, &others].concat() {
            assert_eq!(tool.version().split('.').count(), 3, "{tool}");
            let [go_mod, _] = tool.module().files;
            let named = |line: &str| line.trim().trim_start_matches("tool ") == tool.package();
            let names_it = go_mod.lines().any(named);
            assert!(names_it || tool.module().program.is_some(), "{tool}");
        }
    }

    #[test]
    fn only_exactly_our_version_fits() {
        let ours = Tool::Kubectl.version();
        assert!(Tool::Kubectl.is_named_in(&format!("Client Version: v{ours}\n")));
        assert!(Tool::Etcd.is_named_in(&format!("etcd Version: {}\n", Tool::Etcd.version())));
        for answer in [
            format!("Client Version: v{ours}-dispatcher\n"),
            format!("Client Version: v1.0.0\nKustomize Version: v{ours}\n"),
            format!("Client Version: v{ours}0\n"),
            String::new(),
        ] {
            assert!(!Tool::Kubectl.is_named_in(&answer), "{answer}");
        }
    }
}

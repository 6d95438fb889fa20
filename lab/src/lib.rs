//! Starts real Kubernetes parts for tests and the demo, in seconds, and leaves nothing behind.
//!
//! ```no_run
//! use casemate_lab::{Encryption, Lab};
//!
//! # fn main() -> casemate_lab::Result<()> {
//! let lab = Lab::builder("story").apiservers(2).start()?;
//! lab.kubectl(0, &["create", "secret", "generic", "mine", "--from-literal=word=casemate"])?;
//!
//! // The other server reads it, and etcd shows what is really on disk.
//! lab.kubectl(1, &["get", "secret", "mine"])?;
//! let stored = lab.etcd().get("/registry/secrets/default/mine")?;
//! assert!(stored.is_some_and(|bytes| bytes.starts_with(b"k8s\0")));
//!
//! // A daemon of ours beside them, and a third server that writes through it.
//! let socket = lab.dir().join("kms.sock");
//! let mut plugin = std::process::Command::new("casemate-kms");
//! plugin.arg("serve").arg("--config").arg(lab.dir().join("kms.yaml"));
//! let plugin = lab.spawn("kms", &plugin)?;
//! plugin.wait_until("its socket was there", || socket.exists())?;
//! let server = lab.add_apiserver(Encryption::kms("casemate", &socket))?;
//! server.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=word=casemate"])?;
//!
//! // Faults.
//! plugin.kill9();
//! lab.apiserver(0)?.restart()?;
//! # Ok(())
//! # }
//! ```
//!
//! What it promises:
//!
//! * The servers are the real ones: etcd, kube-apiserver and kubectl, of the versions that the
//!   `go.mod` files in `lab/tools` pin. A program in `KUBEBUILDER_ASSETS` or on `PATH` is used if
//!   it has exactly that version; else it is built with Go once and cached by name and version in
//!   `$CASEMATE_CACHE`, by default `~/.cache/casemate`. Two runs that need the same build build it
//!   once. Who waits is told what for, about how long, and that it goes on.
//! * They listen on loopback only, on ports that no other lab of the machine uses. Any number of
//!   labs can run at once, in one process or many.
//! * Nothing stays: servers end and the run's folder goes when the [`Lab`] is dropped, when its test
//!   panics, and when its process is killed with SIGKILL.
//! * Of a failed run the logs stay: a lab that does not start, or is dropped in a panic, says where in
//!   the cache it kept them. The last ten are there.
//! * A failure names the program, shows its last log lines, and says what to do.
//!
//! It waits by bounded numbers of looks; nothing depends on the clock. Everything is blocking, and all
//! calls take `&self`, so that writers and readers in other threads can go on while a server restarts.
//!
//! | module | what is in it |
//! |---|---|
//! | `lab` | [`Lab`]: the servers of one run, and daemons beside them |
//! | `etcd`, `apiserver`, `encryption`, `identity` | the servers and what they are configured with |
//! | `kine` | [`Kine`]: what k3s has in place of etcd |
//! | `process` | [`Process`]: programs that can't outlive us |
//! | `ports`, `run_dir` | what keeps two labs apart, and what is left of one |
//! | [`plugin`] | [`Plugin`]: our daemon and command line beside them, on any [`KeyService`] |
//! | `proof` | [`Proof`]: what etcd really holds |
//! | [`openbao`] | [`OpenBao`]: the key service Transit |
//! | [`fault_proxy`] | [`FaultProxy`]: what networks and tired servers do, and counting what is asked |
//! | [`authority`] | [`Authority`]: certificates for who speaks TLS |
//! | [`softhsm`] | [`SoftHsm`]: PKCS#11 tokens |
//! | [`misbehaving`] | [`MisbehavingModule`]: a PKCS#11 module that hangs, crashes, lies and leaks |
//! | [`browser`] | [`Browser`]: a headless Chromium |
//! | [`demo`] | the main job, told step by step |
//! | [`bench`] | what a key service costs, and what it does to callers when it is slow or hangs |
//! | `tools`, `python`, `rage`, `cache` | where programs come from |

mod apiserver;
pub mod authority;
pub mod bench;
pub mod browser;
mod cache;
pub mod demo;
mod encryption;
mod error;
mod etcd;
pub mod fault_proxy;
mod identity;
mod kine;
mod lab;
pub mod misbehaving;
pub mod openbao;
pub mod plugin;
mod ports;
mod process;
mod proof;
mod python;
mod rage;
mod run_dir;
pub mod softhsm;
mod tools;

pub use self::{
    apiserver::Apiserver,
    authority::Authority,
    browser::Browser,
    cache::cache_dir,
    encryption::{Encryption, KmsProvider},
    error::{Error, Result},
    etcd::{Etcd, EtcdCluster},
    fault_proxy::FaultProxy,
    kine::Kine,
    lab::{Builder, Lab},
    misbehaving::MisbehavingModule,
    openbao::OpenBao,
    plugin::{KeyService, Plugin},
    process::Process,
    proof::Proof,
    python::python,
    rage::rage,
    softhsm::SoftHsm,
    tools::Tool,
};

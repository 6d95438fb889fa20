//! kube-apiserver, as alone in a control plane as it can be.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use crate::{
    Encryption, Error, Process, Result, Tool,
    identity::Identity,
    ports::{Port, retry_taken_port},
    process,
};

/// One kube-apiserver with its own `EncryptionConfiguration` file, which it re-reads by itself
/// (within about a minute) when it changes.
///
/// A new process has nothing cached: what it reads came from etcd and through its plugin.
#[derive(Debug)]
pub struct Apiserver {
    name: String,
    tool: Tool,
    dir: PathBuf,
    log: PathBuf,
    etcd: String,
    identity: Identity,
    port: Port,
    encryption: Mutex<Encryption>,
    process: Mutex<Process>,
}

impl Apiserver {
    /// Starts one on a port of its own, with its files in `dir`.
    pub(crate) fn create(
        tool: Tool,
        name: &str,
        run: &Path,
        log: &Path,
        etcd: &str,
        identity: &Identity,
        encryption: Encryption,
    ) -> Result<Self> {
        let dir = run.join(name);
        fs::create_dir(&dir).map_err(Error::file("make", &dir))?;
        write_encryption(&dir, &encryption)?;
        retry_taken_port(|| {
            let port = Port::claim()?;
            let process = launch(tool, name, &dir, log, etcd, identity, &port)?;
            Ok(Self {
                name: name.to_owned(),
                tool,
                dir: dir.clone(),
                log: log.to_owned(),
                etcd: etcd.to_owned(),
                identity: identity.clone(),
                port,
                encryption: Mutex::new(encryption.clone()),
                process: Mutex::new(process),
            })
        })
    }

    /// The name in messages and of its log, as in `apiserver-0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which program it is.
    pub fn tool(&self) -> Tool {
        self.tool
    }

    /// Where clients find it, as `https://127.0.0.1:…`.
    pub fn url(&self) -> String {
        url(&self.port)
    }

    /// The bearer token of its administrator.
    pub fn token(&self) -> &str {
        self.identity.token()
    }

    /// The certificate that its clients trust.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join(CERTIFICATE)
    }

    /// A kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(&self.dir)
    }

    /// Its `EncryptionConfiguration` file.
    pub fn encryption_file(&self) -> PathBuf {
        encryption_file(&self.dir)
    }

    /// What that file says.
    pub fn encryption(&self) -> Encryption {
        self.encryption.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the file. A running server takes it up within about a minute; a restart at once.
    pub fn set_encryption(&self, encryption: Encryption) -> Result<()> {
        write_encryption(&self.dir, &encryption)?;
        *self.encryption.lock().unwrap_or_else(PoisonError::into_inner) = encryption;
        Ok(())
    }

    /// The running process, or the one that ran last.
    pub fn process(&self) -> Process {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// SIGKILL, and waits for its end.
    pub fn kill9(&self) {
        self.process().kill9();
    }

    /// Ends it with SIGTERM, if it runs.
    pub fn stop(&self) -> Result<()> {
        self.process().terminate().map(drop)
    }

    /// Starts it again where it was, and waits until it is ready.
    pub fn start(&self) -> Result<()> {
        let started =
            launch(self.tool, &self.name, &self.dir, &self.log, &self.etcd, &self.identity, &self.port)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = started;
        Ok(())
    }

    /// `stop` and `start`.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// kubectl as this server's administrator; answers what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with_input(args, b"")
    }

    /// `kubectl`, with `input` on its standard input (`-f -`).
    pub fn kubectl_with_input(&self, args: &[&str], input: &[u8]) -> Result<String> {
        let mut command = kubectl(&self.dir)?;
        command.args(args);
        let printed = process::run_checked(&command, input)?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}

/// In the server's own folder: it makes the pair itself when it first starts.
const CERTIFICATE: &str = "apiserver.crt";

fn encryption_file(dir: &Path) -> PathBuf {
    dir.join("encryption.yaml")
}

fn kubeconfig(dir: &Path) -> PathBuf {
    dir.join("kubeconfig")
}

fn url(port: &Port) -> String {
    format!("https://127.0.0.1:{}", port.number())
}

/// By a rename: the server must never see half a file.
fn write_encryption(dir: &Path, encryption: &Encryption) -> Result<()> {
    let (path, partial) = (encryption_file(dir), dir.join("encryption.partial"));
    fs::write(&partial, encryption.to_yaml()).map_err(Error::file("write", &partial))?;
    fs::rename(&partial, &path).map_err(Error::file("replace", path))
}

fn write_kubeconfig(dir: &Path, identity: &Identity, port: &Port) -> Result<()> {
    let path = kubeconfig(dir);
    // JSON, which kubectl reads as the YAML that it is.
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        "clusters": [{"name": "lab", "cluster": {
            "server": url(port),
            "certificate-authority": dir.join(CERTIFICATE),
        }}],
        "users": [{"name": "admin", "user": {"token": identity.token()}}],
    });
    fs::write(&path, format!("{text:#}\n")).map_err(Error::file("write", path))
}

fn kubectl(dir: &Path) -> Result<Command> {
    let mut command = Command::new(Tool::Kubectl.path()?);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig(dir))
        // Nothing of the user's home, in or out.
        .arg("--cache-dir")
        .arg(dir.join("kubectl"))
        .env("KUBERC", "off")
        .arg("--request-timeout=60s");
    Ok(command)
}

fn launch(
    tool: Tool,
    name: &str,
    dir: &Path,
    log: &Path,
    etcd: &str,
    identity: &Identity,
    port: &Port,
) -> Result<Process> {
    write_kubeconfig(dir, identity, port)?;
    let mut command = Command::new(tool.path()?);
    command
        .args(["--etcd-servers", etcd])
        .args(["--bind-address", "127.0.0.1"])
        .args(["--advertise-address", "127.0.0.1"])
        .args(["--secure-port", &port.number().to_string()])
        .arg("--cert-dir")
        .arg(dir)
        .args(["--authorization-mode", "RBAC"])
        .arg("--token-auth-file")
        .arg(identity.token_file())
        .arg("--service-account-key-file")
        .arg(identity.key_file())
        .arg("--service-account-signing-key-file")
        .arg(identity.key_file())
        .args(["--service-account-issuer", "https://kubernetes.default.svc"])
        .args(["--service-cluster-ip-range", "10.0.0.0/24"])
        .args(["--endpoint-reconciler-type", "none"])
        // Where a configuration has a KMS v1 plugin, it is served.
        .args(["--feature-gates", "KMSv1=true"])
        .arg("--encryption-provider-config")
        .arg(encryption_file(dir))
        .arg("--encryption-provider-config-automatic-reload=true");
    let process = Process::spawn(name, &command, log)?;

    let mut look = kubectl(dir)?;
    look.args(["get", "--raw", "/readyz"]);
    let mut said = String::new();
    let ready = process.wait_until("it was ready", || {
        // Connecting first: starting kubectl for nothing would slow the server down.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port.number())).is_err() {
            return false;
        }
        match process::run_checked(&look, b"") {
            Ok(answer) => answer == b"ok",
            Err(error) => {
                said = failing_checks(&error.to_string());
                false
            }
        }
    });
    // Which of its checks fail stands in the answer, not in the log.
    ready.map_err(|error| error.with_last_answer(&format!("its /readyz: {said}")))?;
    Ok(process)
}

/// What matters of kubectl's complaint about `/readyz`: it quotes the whole answer, one check a line, on
/// one line.
fn failing_checks(complaint: &str) -> String {
    let failing: Vec<&str> = complaint.split("\\n").filter(|check| check.starts_with("[-]")).collect();
    if failing.is_empty() {
        return complaint.to_owned();
    }
    failing.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failing_checks_are_told_of() {
        let quoted = r#"an error ("[+]ping ok\n[-]kms-providers failed: x\n[-]informer-sync failed: y\nreadyz check failed")"#;
        assert_eq!(failing_checks(quoted), "[-]kms-providers failed: x, [-]informer-sync failed: y");
        assert_eq!(failing_checks("Unauthorized"), "Unauthorized");
    }
}

//! Several members of one etcd, beside the lab's own.

use std::{
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
};

use super::{etcdctl, url};
use crate::{
    Authority, Lab, Process, Result, Tool,
    authority::{Certified, Validity},
    ports::Port,
    process,
};

/// An etcd of one or several members. It ends with the lab.
#[derive(Debug)]
pub struct EtcdCluster<'lab> {
    lab: &'lab Lab,
    name: String,
    members: Vec<Member>,
    security: Option<Security>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: Port,
    peer: Port,
    process: Mutex<Option<Process>>,
}

/// TLS for clients, whose certificates are by the same authority.
#[derive(Debug)]
struct Security {
    authority: Authority,
    server: Certified,
    admin: Certified,
}

impl<'lab> EtcdCluster<'lab> {
    /// `members` that anybody may read and write.
    pub fn start(lab: &'lab Lab, name: &str, members: usize) -> Result<Self> {
        Self::launch(lab, name, members, None)
    }

    /// `members` that speak TLS with clients that have a certificate of [`Self::authority`].
    pub fn start_with_tls(lab: &'lab Lab, name: &str, members: usize) -> Result<Self> {
        let folder = lab.dir().join(format!("{name}-authority"));
        let authority = Authority::create(&folder, name)?;
        let server = authority.server("server", &["127.0.0.1", "localhost"], Validity::Now)?;
        let admin = authority.client("root", Validity::Now)?;
        Self::launch(lab, name, members, Some(Security { authority, server, admin }))
    }

    fn launch(lab: &'lab Lab, name: &str, members: usize, security: Option<Security>) -> Result<Self> {
        let member = |number| {
            let (client, peer) = (Port::claim()?, Port::claim()?);
            Ok(Member { name: format!("{name}-{number}"), client, peer, process: Mutex::default() })
        };
        let made: Vec<Member> = (0..members).map(member).collect::<Result<_>>()?;
        let cluster = Self { lab, name: name.to_owned(), members: made, security };
        for member in 0..members {
            cluster.spawn(member)?;
        }
        for member in 0..members {
            cluster.wait(member)?;
        }
        Ok(cluster)
    }

    /// Where clients find each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| self.endpoint(member)).collect()
    }

    /// Who signs certificates of servers and clients; `None` without TLS.
    pub fn authority(&self) -> Option<&Authority> {
        self.security.as_ref().map(|security| &security.authority)
    }

    /// Gives all members another certificate, for the connections to come.
    pub fn renew(&self, names: &[&str], validity: Validity) -> Result<()> {
        // etcd reads its files again for each handshake.
        self.authority().map_or(Ok(()), |authority| authority.server("server", names, validity).map(drop))
    }

    /// Kills a member.
    pub fn kill(&self, member: usize) {
        if let Some(process) = self.process(member) {
            process.kill9();
        }
    }

    /// Starts it again on the data that it had, and waits until it answers.
    pub fn restart(&self, member: usize) -> Result<()> {
        self.kill(member);
        self.spawn(member)?;
        self.wait(member)
    }

    /// What `etcdctl` prints. With TLS it comes as `root`.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        self.etcdctl_with_input(arguments, b"")
    }

    /// The same, with `input` on its standard input.
    pub fn etcdctl_with_input(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut command = self.client(&self.endpoints().join(","))?;
        command.args(arguments);
        process::run_checked(&command, input).map(|output| String::from_utf8_lossy(&output).into_owned())
    }

    /// Which member leads.
    pub fn leader(&self) -> Result<Option<usize>> {
        for (place, endpoint) in self.endpoints().iter().enumerate() {
            let mut command = self.client(endpoint)?;
            command.args(["endpoint", "status", "--write-out=fields"]);
            let Ok(told) = process::run_checked(&command, b"") else { continue };
            let told = String::from_utf8_lossy(&told).into_owned();
            let field = |name: &str| {
                told.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : ")).map(str::to_owned))
            };
            if field("MemberID").is_some_and(|id| field("Leader") == Some(id)) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Where a member keeps its data.
    pub fn data_dir(&self, member: usize) -> PathBuf {
        self.lab.dir().join(&self.members[member].name)
    }

    fn process(&self, member: usize) -> Option<Process> {
        self.members[member].process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn endpoint(&self, member: &Member) -> String {
        let plain = url(&member.client);
        if self.security.is_some() { plain.replacen("http:", "https:", 1) } else { plain }
    }

    fn client(&self, endpoints: &str) -> Result<Command> {
        let mut command = etcdctl(endpoints)?;
        if let Some(Security { authority, admin, .. }) = &self.security {
            command.arg("--cacert").arg(authority.certificate());
            command.arg("--cert").arg(&admin.certificate).arg("--key").arg(&admin.key);
        }
        Ok(command)
    }

    fn spawn(&self, place: usize) -> Result<()> {
        let member = &self.members[place];
        let peers: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name, url(&member.peer))).collect();
        let (client, peer) = (self.endpoint(member), url(&member.peer));
        let mut command = Command::new(Tool::Etcd.path()?);
        command
            .args(["--name", &member.name, "--unsafe-no-fsync", "--log-level", "warn"])
            .arg("--data-dir")
            .arg(self.data_dir(place))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.join(","), "--initial-cluster-token", &self.name]);
        if let Some(Security { authority, server, .. }) = &self.security {
            // The gateway would come to etcd with the server's certificate, which is none of a client.
            command.args(["--enable-grpc-gateway=false", "--client-cert-auth"]);
            command.arg("--trusted-ca-file").arg(authority.certificate());
            command.arg("--cert-file").arg(&server.certificate).arg("--key-file").arg(&server.key);
        }
        let process = self.lab.spawn(&member.name, &command)?;
        *member.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    fn wait(&self, place: usize) -> Result<()> {
        let Some(process) = self.process(place) else { return Ok(()) };
        let mut look = self.client(&self.endpoint(&self.members[place]))?;
        look.args(["get", "lab-looks"]);
        process.wait_until("it answered a read", || process::run_checked(&look, b"").is_ok())
    }
}

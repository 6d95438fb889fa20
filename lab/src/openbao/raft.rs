//! Several servers on one raft.

use std::{sync::Arc, thread, time::Duration};

use serde_json::{Value, json};

use super::{OpenBao, own_authority};
use crate::{Authority, Error, Lab, Result};

/// Looks for a leader: an election takes some seconds.
const LOOKS: u32 = 600;
const REST: Duration = Duration::from_millis(100);

/// Nodes that elect one of them.
#[derive(Debug)]
pub struct Raft<'lab> {
    nodes: Vec<OpenBao<'lab>>,
}

impl<'lab> Raft<'lab> {
    pub(super) fn start(lab: &'lab Lab, count: usize) -> Result<Self> {
        let authority = Arc::new(own_authority(lab)?);
        let first = OpenBao::sealed(lab, &authority)?.initialize()?;
        // Or for ten, until it counts as stable.
        let soon = json!({"server_stabilization_time": "100ms"});
        first.write("sys/storage/raft/autopilot/configuration", &soon)?;
        let mut raft = Self { nodes: vec![first] };
        for _ in 1..count {
            raft.join(OpenBao::sealed(lab, &authority)?)?;
        }
        Ok(raft)
    }

    fn join(&mut self, mut node: OpenBao<'lab>) -> Result<()> {
        let first = &self.nodes[0];
        node.keys = first.keys.clone();
        let ca = first.authority().map(Authority::pem);
        let to = json!({"leader_api_addr": first.address(), "leader_ca_cert": ca});
        node.write("sys/storage/raft/join", &to)?;
        node.unseal()?;
        self.nodes.push(node);
        self.until("each node had a vote", || self.voters().is_ok_and(|voters| voters == self.nodes.len()))
    }

    /// All nodes, also those that don't run.
    pub fn nodes(&self) -> &[OpenBao<'lab>] {
        &self.nodes
    }

    /// The node that leads, in the eyes of most.
    pub fn leader(&self) -> Result<&OpenBao<'lab>> {
        self.other_leader(None)
    }

    /// Makes the leader step down, and waits for another one, which is answered.
    pub fn step_down(&self) -> Result<&OpenBao<'lab>> {
        let old = self.leader()?;
        old.write("sys/step-down", &Value::Null)?;
        self.other_leader(Some(&old.address()))
    }

    /// A backup of the raft that runs.
    pub fn snapshot(&self) -> Result<Vec<u8>> {
        let leader = self.leader()?;
        leader.api().bytes("GET", "sys/storage/raft/snapshot", Some(leader.root_token()), None)
    }

    /// Goes back to `snapshot`, as who restores an older backup.
    pub fn restore(&self, snapshot: &[u8]) -> Result<()> {
        let leader = self.leader()?;
        let path = "sys/storage/raft/snapshot-force";
        leader.api().bytes("POST", path, Some(leader.root_token()), Some(snapshot))?;
        self.leader().map(drop)
    }

    fn other_leader(&self, than: Option<&str>) -> Result<&OpenBao<'lab>> {
        let mut found = None;
        self.until("the nodes agreed on a leader", || {
            found = self.agreed().filter(|leader| than != Some(leader.address().as_str()));
            found.is_some()
        })?;
        found.ok_or_else(|| Error::Answer { command: "bao".into(), found: "no leader".into() })
    }

    fn agreed(&self) -> Option<&OpenBao<'lab>> {
        let running: Vec<_> = self.nodes.iter().filter(|node| node.process().is_running()).collect();
        let named = running.iter().find_map(|node| node.leader_address())?;
        let leader = running.iter().copied().find(|node| node.address() == named)?;
        // 200 only from one that leads.
        let leads = leader.request("GET", "sys/health", None, None).is_ok_and(|answer| answer.status == 200);
        let sees = |node: &&&OpenBao| node.leader_address().as_ref() == Some(&named);
        (leads && running.iter().filter(sees).count() > self.nodes.len() / 2).then_some(leader)
    }

    fn voters(&self) -> Result<usize> {
        let told = self.nodes[0].read("sys/storage/raft/configuration")?;
        let servers = told.pointer("/data/config/servers").and_then(Value::as_array);
        Ok(servers.into_iter().flatten().filter(|server| server["voter"] == true).count())
    }

    fn until(&self, awaited: &str, mut reached: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..LOOKS {
            if reached() {
                return Ok(());
            }
            thread::sleep(REST);
        }
        let process = self.nodes[0].process();
        Err(Error::NotReady {
            program: "the raft of openbao".into(),
            awaited: awaited.to_owned(),
            looks: LOOKS,
            log_tail: process.log_tail(15),
            log: process.log().into(),
            remedy: "see in the logs why the nodes do not elect one".into(),
        })
    }
}

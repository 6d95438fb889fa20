//! Several nodes, each with a process of its own.

use casemate_wire::kms_v2::StatusRequest;

use super::{Acknowledged, Load};
use crate::node::connect;
use crate::process::{Host, deliver, until};

async fn key_id(host: &Host) -> Option<String> {
    let mut client = connect(&host.socket()).await.ok()?;
    Some(client.status(StatusRequest {}).await.ok()?.into_inner().key_id)
}

/// Field complaint 27: copies of a plugin disagree about the key id (openshift/enhancements#2000, #2005, #2041).
#[tokio::test]
async fn three_copies_come_to_the_same_key_id_and_read_what_the_others_wrote() {
    let hosts = [Host::new(), Host::new(), Host::new()];
    let [first, others @ ..] = &hosts;
    let deliver_all = || {
        let key = std::fs::read(first.key()).unwrap();
        others.iter().for_each(|host| deliver(&key, &host.key()));
    };
    deliver_all();
    let id =
        |host: &Host| std::fs::read_to_string(host.config()).unwrap().split('"').nth(1).unwrap().to_owned();
    for host in others {
        let config = std::fs::read_to_string(host.config()).unwrap();
        std::fs::write(host.config(), config.replace(&id(host), &id(first))).unwrap();
    }

    let acknowledged = Acknowledged::default();
    let (mut daemons, mut loads) = (Vec::new(), Vec::new());
    for host in &hosts {
        let mut daemon = host.serve();
        daemon.healthy().await;
        daemons.push(daemon);
        loads.push(Load::on(&host.socket(), 2, &acknowledged).await);
    }
    let before = key_id(first).await.unwrap();
    for host in others {
        assert_eq!(key_id(host).await.as_ref(), Some(&before));
    }

    // The delivery reaches one node after the other; each takes its time.
    first.rotate();
    deliver_all();
    until("all write under the new one", async || {
        let mut now = Vec::new();
        for host in &hosts {
            now.push(key_id(host).await.unwrap());
        }
        now.iter().all(|key_id| *key_id == now[0] && *key_id != before)
    })
    .await;
    for load in loads {
        let failed = load.end().await;
        assert!(failed.is_empty(), "{failed:?}");
    }
    for daemon in daemons {
        daemon.kill();
    }
    for host in &hosts {
        acknowledged.read_after_a_restart(host).await;
    }
}

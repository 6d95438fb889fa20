//! A root key that fails is one root key that fails.

use std::fs;

use casemate_wire::kms_v2::StatusRequest;
use tonic::Code;

use super::Acknowledged;
use crate::admin::get;
use crate::node::connect;
use crate::process::{Host, deliver, until};

/// Field complaint 6: one key that can't decrypt makes the health of all keys fail, and the plugin is restarted
/// (kubernetes-sigs/aws-encryption-provider#124, #144).
#[tokio::test]
async fn a_key_that_only_reads_and_is_broken_colours_neither_health_nor_the_other_key() {
    let (host, old) = (Host::new(), Host::new());
    // What was written under the old key, by the same cluster.
    let under_old = Acknowledged::default();
    let mut daemon = old.serve();
    under_old.encrypt(&mut daemon.healthy().await).await.unwrap();
    daemon.kill();

    let id = fs::read_to_string(old.config()).unwrap().split('"').nth(1).unwrap().to_owned();
    let admin = host.folder().join("admin.sock");
    let more = format!(
        "    readKeys:\n      - name: old\n        file: {{path: {}, id: \"{id}\"}}\nadmin: {{endpoint: unix://{}}}\n",
        host.folder().join("old.key").display(),
        admin.display()
    );
    fs::write(host.config(), fs::read_to_string(host.config()).unwrap() + &more).unwrap();
    let key = fs::read(old.key()).unwrap();
    deliver(&key, &host.folder().join("old.key"));

    let under_new = Acknowledged::default();
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    under_new.encrypt(&mut client).await.unwrap();
    daemon.kill();

    // Nothing is open yet, and the old key can't be read.
    deliver(b"not a key file", &host.folder().join("old.key"));
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    for _ in 0..50 {
        let (stored, _) = under_old.all().remove(0);
        let status = client.decrypt(stored.request()).await.unwrap_err();
        assert_ne!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("old.key"), "{status}");
        assert_eq!(client.status(StatusRequest {}).await.unwrap().into_inner().healthz, "ok");
        assert_eq!(get(&admin, "/livez").await, (200, "ok\n".into()));
        under_new.encrypt(&mut client).await.unwrap();
    }
    under_new.read_by(&client).await;

    deliver(&key, &host.folder().join("old.key"));
    until("it heals by itself", async || {
        let mut client = connect(&host.socket()).await.unwrap();
        let (stored, _) = under_old.all().remove(0);
        client.decrypt(stored.request()).await.is_ok()
    })
    .await;
    daemon.kill();
    under_new.read_after_a_restart(&host).await;
    under_old.read_after_a_restart(&host).await;
}

//! What is said of providers: that they come, go, change and can't be started.

use super::*;

#[tokio::test]
async fn providers_come_and_go_beside_one_that_is_called() {
    let plugin = Plugin::start().await;
    let id = key_file(&plugin.path("second.key"));
    let load = Load::on(plugin.client().await);
    let second = format!(
        "  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - name: b\n        file: {{path: {}, id: \"{id}\"}}\n",
        plugin.path("second.sock").display(),
        plugin.path("second.key").display()
    );
    let both = plugin.with("admin:", &format!("{second}admin:"));
    plugin.change(&both).await;
    let mut other = serving(&plugin.path("second.sock")).await;
    let stored = encrypt(&mut other, &DEK).await.unwrap();
    load.goes_on().await;
    assert_eq!(plugin.status().await.providers.len(), 2);

    let why = plugin.refused(&plugin.text).await;
    assert!(why.contains("provider second is missing"), "{why}");
    opens(&mut other, &stored, &DEK).await;
    let gone = plugin.with("providers:", "removedProviders: [second]\nproviders:");
    plugin.change(&gone).await;
    until("its socket is gone", async || !plugin.path("second.sock").exists()).await;
    load.goes_on().await;
    assert_eq!(plugin.status().await.providers.len(), 1);

    // It may come back, with all that it knew.
    let back = async || {
        plugin.deliver(&both).await;
        plugin.held().await.sha256
    };
    let removed = plugin.held().await.sha256;
    until("it is back", async || back().await != removed).await;
    let mut other = serving(&plugin.path("second.sock")).await;
    opens(&mut other, &stored, &DEK).await;
    assert_eq!(encrypt(&mut other, &DEK).await.unwrap().annotation, stored.annotation);
    load.end().await;
    plugin.end();
}

#[tokio::test]
async fn a_provider_that_can_not_be_started_holds_up_no_other_and_is_tried_again() {
    let host = Host::new();
    let id = key_file(&host.folder().join("second.key"));
    let more = format!(
        "  - name: second\n    endpoint: unix://{}\n    rootKeys:\n      - name: b\n        file: {{path: {}, id: \"{id}\"}}\n\
         admin: {{endpoint: unix://{}}}\n",
        host.folder().join("second.sock").display(),
        host.folder().join("second.key").display(),
        host.folder().join("admin.sock").display(),
    );
    let text = fs::read_to_string(host.config()).unwrap() + &more;
    fs::write(host.config(), &text).unwrap();
    // A file where its folder should be.
    fs::create_dir(host.state()).unwrap();
    fs::write(host.state().join("second"), "").unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let not_started = plugin.held().await.not_started;
    assert_eq!((not_started.len(), &*not_started[0].name), (1, "second"));
    let (code, body) = get(&plugin.path("admin.sock"), "/readyz").await;
    assert!(code == 503 && body.contains("[-] provider second: is not started: "), "{body}");
    assert!(body.contains("[+] provider casemate: ok"), "{body}");

    // A change for another one is taken over meanwhile.
    plugin.change(&plugin.text.replacen("    rootKeys:", "    maxConnections: 9\n    rootKeys:", 1)).await;
    assert_eq!(plugin.held().await.not_started.len(), 1);
    fs::remove_file(plugin.path("state/second")).unwrap();
    until("it is started", async || plugin.held().await.not_started.is_empty()).await;
    let mut client = connect(&plugin.path("second.sock")).await.unwrap();
    until("it writes", async || client.status(StatusRequest {}).await.is_ok()).await;
    assert_eq!(get(&plugin.path("admin.sock"), "/readyz").await.0, 200);
    plugin.end();
}

/// YAML calls it a number.
#[tokio::test]
async fn a_provider_whose_name_is_a_number_changes_too() {
    let host = Host::new();
    let text = fs::read_to_string(host.config()).unwrap().replace("name: casemate", "name: 7")
        + &format!("admin: {{endpoint: unix://{}}}\n", host.folder().join("admin.sock").display());
    fs::write(host.config(), &text).unwrap();
    let mut daemon = host.serve();
    daemon.healthy().await;
    let plugin = Plugin { host, daemon, text };
    let writes = async || plugin.status().await.providers.remove(0).next_write.unwrap().key_id;
    let before = writes().await;
    plugin.change(&plugin.with("    rootKeys:", "    epoch: 1\n    rootKeys:")).await;
    assert_ne!(writes().await, before);
    assert!(plugin.end().contains("changed: providers[7].epoch: - -> 1"));
}

/// Nothing but a changed key id makes kube-apiserver write anew.
#[tokio::test]
async fn a_recovery_recipient_that_comes_or_goes_is_a_new_key_id_in_status() {
    let plugin = Plugin::start().await;
    let status = async || plugin.status().await.providers.remove(0).next_write.unwrap();
    let mut client = plugin.client().await;
    let mut told = async || client.status(StatusRequest {}).await.unwrap().into_inner().key_id;
    let none = told().await;
    let with = |names: &[(&str, &str)]| {
        let recipients: String =
            names.iter().map(|(name, age)| format!("      - {{name: {name}, age: {age}}}\n")).collect();
        whole(&plugin.text.replacen(
            "    rootKeys:",
            &format!("    recoveryRecipients:\n{recipients}    rootKeys:"),
            1,
        ))
    };
    let safe = ("safe", "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2");
    let second = ("second", "age14w2g4gmmvj3sunzrcaw4nxufpkuhvskjs9qt4jdsj75fs0kh9v0s5pxk66");
    if FIPS_BUILD {
        let why = plugin.refused(&with(&[safe])).await;
        assert!(why.contains("not available in a FIPS build"), "{why}");
        return;
    }
    let mut seen = vec![none];
    for recipients in [vec![safe], vec![safe, second], vec![second]] {
        plugin.change(&with(&recipients)).await;
        let key_id = told().await;
        assert!(!seen.contains(&key_id), "{key_id} was seen before");
        let next = status().await;
        assert_eq!((&next.key_id, next.recovery_recipients.len()), (&key_id, recipients.len()));
        seen.push(key_id);
    }
    // Without any again: that key id was active before.
    let why = plugin.refused(&whole(&plugin.text)).await;
    assert!(why.contains("raise `epoch`"), "{why}");
    plugin.end();
}

/// A client of a socket, once it answers Status.
async fn serving(socket: &Path) -> Client {
    let mut found = None;
    until("it serves", async || {
        found = connect(socket).await.ok();
        match &mut found {
            Some(client) => client.status(StatusRequest {}).await.is_ok(),
            None => false,
        }
    })
    .await;
    found.unwrap()
}

//! kube-apiserver's own client, of two generations, while one plugin process follows another on the same socket.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use casemate_lab::plugin::product;
use casemate_lab::{Lab, Plugin, Tool};
use serde_json::Value;

const UPGRADES: usize = 5;
/// Calls that each process serves before it is replaced.
const CALLS: u64 = 500;

/// Calls until its standard input ends, which it does at the latest with us.
fn calling(client: Tool, socket: &Path) -> Child {
    let mut command = Command::new(client.path().unwrap());
    command.arg("calls").arg(format!("--endpoint=unix://{}", socket.display())).args([
        "--until-end-of-input",
        "--concurrency=8",
        "--timeout=3s",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What `kms-client calls` reports, when it is told to end.
fn report(client: Child) -> Value {
    let output = client.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"))
}

fn served(plugin: &Plugin<'_>) -> u64 {
    let status = plugin.status().unwrap();
    let requests = status["providers"][0]["requests"].as_array().unwrap();
    requests.iter().map(|one| one["count"].as_u64().unwrap()).sum()
}

fn wait_for_calls(plugin: &Plugin<'_>) {
    let enough = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        served(plugin) > CALLS
    });
    assert!(enough, "{} calls; its log ends:\n{}", served(plugin), plugin.process().log_tail(20));
}

#[test]
fn no_call_of_kube_apiserver_fails_while_the_plugin_is_upgraded() {
    let lab = Lab::builder("upgrade").apiservers(0).start().unwrap();
    let plugin = Plugin::start_activated(&lab, "kms").unwrap();
    let next = lab.dir().join("casemate-kms-next");
    fs::copy(product("casemate-kms").unwrap(), &next).unwrap();
    let versions = [product("casemate-kms").unwrap(), next];

    let clients =
        [Tool::KmsClient31, Tool::KmsClient37].map(|client| (client, calling(client, &plugin.socket())));
    for upgrade in 1..=UPGRADES {
        wait_for_calls(&plugin);
        plugin.upgrade_to(&versions[upgrade % versions.len()]).unwrap();
    }
    wait_for_calls(&plugin);
    for (client, child) in clients {
        let report = report(child);
        assert_eq!(
            (&report["failed"], &report["client"]),
            (&0.into(), &client.version().into()),
            "{report:#}"
        );
        assert!(report["succeeded"].as_u64().unwrap() > CALLS, "{report:#}");
        let slowest = &report["methods"];
        eprintln!("{client}: {} calls, {slowest}", report["succeeded"]);
    }
    assert!(!plugin.process().log_tail(500).contains("WARN"), "{}", plugin.process().log_tail(50));
}

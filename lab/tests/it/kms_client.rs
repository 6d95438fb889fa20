//! kube-apiserver's own client, of two generations, against the running plugin.

use std::path::Path;
use std::process::Command;

use casemate_lab::{Lab, Plugin, Tool};
use serde_json::Value;

/// 1.31 sends the socket's path as `:authority`, 1.37 `localhost`.
const GENERATIONS: [Tool; 2] = [Tool::KmsClient31, Tool::KmsClient37];

/// What `kms-client calls` reports.
fn calls(client: Tool, socket: &Path, options: &[&str]) -> Value {
    let mut command = Command::new(client.path().unwrap());
    command.arg("calls").arg(format!("--endpoint=unix://{}", socket.display())).args(options);
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{client}: {told}"));
    assert_eq!(report["client"], client.version());
    assert_eq!(output.status.success(), report["failed"] == 0);
    report
}

fn assert_all_succeeded(report: &Value, count: u64) {
    assert_eq!(report["succeeded"], count, "{report:#}");
    assert_eq!(report["errors"], serde_json::json!({}));
}

/// Field complaint 3: servers on h2 refuse a client whose `:authority` is the socket's path (kubernetes/kubernetes#126929,
/// k3s-io/k3s#10754, hyperium/tonic#243, #1876).
#[test]
fn each_call_on_one_connection_succeeds_whatever_its_deadline() {
    let lab = Lab::builder("clients").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    for client in GENERATIONS {
        // The encoder's table turns over as deadlines differ: the path is sent literally again and again.
        for (count, options) in [
            (5000, &["--mix=status", "--concurrency=1"][..]),
            (5000, &["--mix=status,encrypt,decrypt", "--concurrency=1"]),
            (5000, &["--mix=decrypt,status,encrypt,decrypt", "--concurrency=50"]),
        ] {
            let count_option = format!("--count={count}");
            let report = calls(
                client,
                &plugin.socket(),
                &[options, &[count_option.as_str(), "--distinct-deadlines"]].concat(),
            );
            assert_all_succeeded(&report, count);
        }
    }
    // Nothing was refused on the way, either.
    assert!(!plugin.process().log_tail(50).contains("WARN"), "{}", plugin.process().log_tail(50));
}

#[test]
fn a_path_may_have_any_character() {
    let lab = Lab::builder("paths").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms: [a]@b,c ~ü").unwrap();
    for client in GENERATIONS {
        assert_all_succeeded(&calls(client, &plugin.socket(), &["--count=300", "--distinct-deadlines"]), 300);
    }
}

#[test]
fn what_fails_is_counted_by_its_code() {
    let lab = Lab::builder("codes").apiservers(0).start().unwrap();
    let nobody = lab.dir().join("nobody.sock");
    for client in GENERATIONS {
        let options = ["--count=3", "--timeout=50ms", "--mix=status"];
        let report = calls(client, &nobody, &options);
        assert_eq!((&report["succeeded"], &report["failed"]), (&0.into(), &3.into()));
        assert_eq!(report["errors"]["DeadlineExceeded"]["count"], 3, "{report:#}");
    }
}

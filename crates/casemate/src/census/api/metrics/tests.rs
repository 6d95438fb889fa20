//! Lines as kube-apiserver 1.37 writes them, and lines that are none.
#![allow(clippy::unwrap_used)]
use super::*;

const PAGE: &str = r#"
# HELP apiserver_storage_transformation_operations_total [ALPHA] Total number of transformations.
# TYPE apiserver_storage_transformation_operations_total counter
apiserver_storage_transformation_operations_total{resource="configmaps",status="OK",transformation_type="from_storage",transformer_prefix="identity"} 6
apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="from_storage",transformer_prefix="k1:"} 5
apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="from_storage",transformer_prefix="k8s:enc:aescbc:v1:"} 5
apiserver_storage_transformation_operations_total{resource="secrets",status="Internal",transformation_type="from_storage",transformer_prefix="k8s:enc:aescbc:v1:"} 2
apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="to_storage",transformer_prefix="k8s:enc:aescbc:v1:"} 7
apiserver_encryption_config_controller_last_config_info{apiserver_id_hash="sha256:aa",hash="sha256:bb"} 1
apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="sha256:aa",key_id_hash="sha256:cc",provider_name="ours",transformation_type="from_storage"} 3
apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="sha256:aa",key_id_hash="sha256:cc",provider_name="ours",transformation_type="to_storage"} 4
apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="sha256:aa",key_id_hash="sha256:cc",provider_name="ours",transformation_type="to_storage"} 1.5e+09
apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="sha256:aa",key_id_hash="sha256:cc",provider_name="ours"} 1.6e+09
apiserver_envelope_encryption_dek_source_cache_size{provider_name="ours"} 2
etcd_requests_total{group="",operation="get",resource="secrets"} 13
etcd_requests_total{group="apps",operation="get",resource="deployments"} 4
etcd_requests_total{group="",operation="list",resource="secrets"} 1
process_start_time_seconds 1.79609851349e+09
of_no_interest{half
"#;

#[test]
fn a_page_of_kube_apiserver_is_read() {
    let metrics = Metrics::parse(PAGE).unwrap();
    let instance = Instance { started: Some(1.79609851349e9), id_hash: Some("sha256:aa".into()) };
    assert_eq!(metrics.instance(), instance);
    assert_eq!(metrics.configurations(), ["sha256:bb"]);
    assert_eq!(
        metrics.read("secrets"),
        BTreeMap::from([("k1:".to_owned(), 5), ("k8s:enc:aescbc:v1:".to_owned(), 5)])
    );
    assert_eq!(metrics.etcd_gets("secrets"), Some(13));
    assert_eq!(metrics.etcd_gets("deployments.apps"), Some(4));
    assert_eq!(metrics.etcd_gets("deployments"), Some(0));
    assert_eq!(metrics.dek_sources(), BTreeMap::from([("ours".to_owned(), 2)]));
    let used = KeyIdUse {
        provider: "ours".into(),
        hash: "sha256:cc".into(),
        encrypted: 4,
        decrypted: 3,
        last_status: Some(1.6e9),
        is_newest: true,
        last_encrypted: Some(1.5e9),
        ..KeyIdUse::default()
    };
    assert_eq!(metrics.key_ids(), [used]);
    assert_eq!(metrics.operations().len(), 5);
}

#[test]
fn a_server_that_does_not_tell_the_resource_is_read_as_a_whole() {
    let line = |prefix: &str, count: u64| {
        format!(
            "{OPERATIONS}{{status=\"OK\",transformation_type=\"from_storage\",transformer_prefix=\"{prefix}\"}} {count}\n"
        )
    };
    let metrics = Metrics::parse(&[line("identity", 2), line("k8s:enc:kms:v2:a:", 3)].concat()).unwrap();
    assert_eq!(metrics.read("secrets")["identity"], 2);
    assert_eq!(metrics.etcd_gets("secrets"), None);
    assert_eq!(metrics.instance(), Instance { started: None, id_hash: None });
}

#[test]
fn escapes_spaces_and_timestamps_are_the_format() {
    let line = format!(r#"{KEY_IDS} {{ provider_name = "a\"b\\c\nd" , key_id_hash="x", }} 1 1700000000000"#);
    let metrics = Metrics::parse(&line).unwrap();
    assert_eq!(metrics.key_ids()[0].provider, "a\"b\\c\nd");
}

#[test]
fn half_a_line_is_no_evidence() {
    for rest in
        ["", "{", "{a=\"b\"", "{a=\"b\"}", "{a=\"b} 1", "{a} 1", "{a=\"b\"c=\"d\"} 1", " x", " 1 x", " 1 2 3"]
    {
        let text = format!("{STARTED} 1\n{OPERATIONS}{rest}\n");
        assert_eq!(Metrics::parse(&text), Err(Malformed { line: 2 }), "{rest:?}");
    }
}

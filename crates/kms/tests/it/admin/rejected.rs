//! Calls that are none of KMS v2: counted and audited once each, and those that are served not twice.

use std::fs;
use std::path::Path;

use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use prost::Message;
use rustix::process::Signal;
use serde_json::Value;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};

use super::{DEK, get, value};
use crate::node::channel;
use crate::process::{Host, encrypt, opens, until};

const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// A message as it goes over the wire.
fn framed(compressed: bool, message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[u8::from(compressed)], &length[..], message].concat().into()
}

async fn post(channel: &mut Channel, path: &str, header: (&str, &str), body: Body) -> Option<Code> {
    let request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header(header.0, header.1)
        .body(body)
        .unwrap();
    let response = channel.ready().await.unwrap().call(request).await.ok()?;
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned();
    let status = Status::from_header_map(&head.headers).or_else(|| Status::from_header_map(&trailers?));
    Some(status.unwrap().code())
}

fn with_audit_and_admin(host: &Host) {
    fs::create_dir(host.folder().join("audit")).unwrap();
    let more = format!(
        "audit: {{path: {0}/audit/audit.log}}\nadmin: {{endpoint: unix://{0}/admin.sock}}\n",
        host.folder().display()
    );
    fs::write(host.config(), fs::read_to_string(host.config()).unwrap() + &more).unwrap();
}

async fn metrics(host: &Host) -> String {
    get(&host.folder().join("admin.sock"), "/metrics").await.1
}

fn counted(metrics: &str, method: &str, code: &str) -> f64 {
    let series =
        format!(r#"casemate_kms_requests_total{{provider="casemate",method="{method}",code="{code}"}}"#);
    value(metrics, &series).unwrap_or(0.0)
}

fn audited(log: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(log).unwrap();
    // A line may be half written.
    let (whole, _) = text.rsplit_once('\n').unwrap();
    let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let calls = lines.filter(|line| line["event"] == "call" && line["method"] != "Status");
    calls.map(|line| (text(&line["method"]), text(&line["outcome"]))).collect()
}

#[tokio::test]
async fn each_is_counted_and_audited_once() {
    let host = Host::new();
    with_audit_and_admin(&host);
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    let stored = encrypt(&mut client, &DEK).await.unwrap();
    opens(&mut client, &stored, &DEK).await;

    let request = stored.request().encode_to_vec();
    let (plain, packed, huge) =
        (framed(false, &request), framed(true, &request), framed(false, &[0; 70_000]));
    let cut = framed(false, &request[..50]);
    let cases = [
        ("/v2.KeyManagementService/Shred", &plain, "identity", "other", Code::Unimplemented),
        ("/v2.KeyManagementService/Decrypt/x", &plain, "identity", "other", Code::Unimplemented),
        ("/v1beta1.KeyManagementService/Encrypt", &plain, "identity", "other", Code::Unimplemented),
        ("/%0a%7d%20", &plain, "identity", "other", Code::Unimplemented),
        (DECRYPT, &cut, "identity", "Decrypt", Code::Internal),
        (ENCRYPT, &huge, "identity", "Encrypt", Code::OutOfRange),
        (DECRYPT, &packed, "zip", "Decrypt", Code::Unimplemented),
        (DECRYPT, &plain, "identity", "Decrypt", Code::Ok),
    ];
    let mut channel = channel(&host.socket()).await.unwrap();
    let mut expected = vec![("Encrypt".to_owned(), "OK".to_owned()), ("Decrypt".to_owned(), "OK".to_owned())];
    for (path, body, encoding, method, code) in cases {
        let found =
            post(&mut channel, path, ("grpc-encoding", encoding), Body::new(Full::new(body.clone()))).await;
        assert_eq!(found, Some(code), "{path} {encoding}");
        expected.push((method.into(), name(code).into()));
    }
    // No message, and one that does not end within its deadline.
    let nothing = post(&mut channel, DECRYPT, ("grpc-encoding", "identity"), Body::new(Empty::new())).await;
    assert_eq!(nothing, Some(Code::Internal));
    expected.push(("Decrypt".into(), "Internal".into()));
    // A client that is slow may give up before it has sent anything; and one that goes away is seen to do so first, or
    // its message to be cut off.
    let log = host.folder().join("audit/audit.log");
    let is_given_up =
        |call: &(String, String)| call.0 == "Encrypt" && ["Canceled", "Internal"].contains(&call.1.as_str());
    let given_up = async || {
        let metrics = metrics(&host).await;
        counted(&metrics, "Encrypt", "Canceled") + counted(&metrics, "Encrypt", "Internal")
    };
    until("what was given up is counted", async || {
        let half = tokio_stream::iter([Ok::<_, Status>(Frame::data(plain.slice(..20)))]);
        let endless = StreamBody::new(tokio_stream::StreamExt::chain(half, tokio_stream::pending()));
        let _ = post(&mut channel, ENCRYPT, ("grpc-timeout", "100m"), Body::new(endless)).await;
        given_up().await > 0.0
    })
    .await;
    until("the log tells the same", async || {
        given_up().await == audited(&log).into_iter().filter(is_given_up).count() as f64
    })
    .await;

    let metrics = metrics(&host).await;
    for (method, code) in &expected {
        let times = expected.iter().filter(|one| (&one.0, &one.1) == (method, code)).count();
        assert_eq!(counted(&metrics, method, code), times as f64, "{method} {code}\n{metrics}");
    }
    daemon.signal(Signal::TERM);
    assert!(daemon.end().0.success());
    let calls: Vec<_> = audited(&log).into_iter().filter(|call| !is_given_up(call)).collect();
    assert_eq!(calls, expected);
}

/// As metrics and the audit log write it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::OutOfRange => "OutOfRange",
        other => panic!("{other:?} is not expected"),
    }
}

//! KMS v2 over a real socket: bad input, faults of key services, codes and texts; cold and with a warm cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use casemate_keys::{Algorithm, LocalKek, RECORD_ANNOTATION, Record};
use casemate_keyservice::Class;
use casemate_wire::kms_v2::{DecryptRequest, EncryptRequest, StatusRequest};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use crate::double::{CAUSE, Calls, Lie, REMEDY, RootKeyDouble, guarded};
use crate::node::{Client, Node, Plugin, Stored, THEN, channel, settings};

pub(crate) const DEK: &[u8; 32] = b"\x01DEK source, of thirty-two bytes";

pub(crate) fn double(name: &str) -> Arc<RootKeyDouble> {
    Arc::new(RootKeyDouble::new(name, Algorithm::TRANSIT))
}

async fn encrypt(client: &mut Client, dek_source: &[u8]) -> Result<Stored, Status> {
    let request = EncryptRequest { plaintext: dek_source.to_vec().into(), uid: "uid-1".into() };
    let reply = client.encrypt(request).await?.into_inner();
    let names: Vec<_> = reply.annotations.keys().map(String::as_str).collect();
    assert_eq!(names, [RECORD_ANNOTATION]);
    Ok(Stored {
        ciphertext: reply.ciphertext.to_vec(),
        key_id: reply.key_id,
        annotation: reply.annotations[RECORD_ANNOTATION].to_vec(),
    })
}

pub(crate) async fn decrypt(client: &mut Client, request: DecryptRequest) -> Result<Bytes, Status> {
    client.decrypt(request).await.map(|reply| reply.into_inner().plaintext)
}

/// No error may hold a DEK source in any form that somebody would look for.
fn assert_no_secret(status: &Status) {
    let text = format!("{status:?}");
    let base64 = base64::engine::general_purpose::STANDARD.encode(DEK);
    for secret in ["DEK source", &hex::encode(DEK), &base64, &format!("{DEK:?}")] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn the_contract_of_kube_apiserver() {
    let key = double("a");
    let plugin = Plugin::serve(settings(&[&key])).await;
    let mut client = plugin.client().await;
    let status = client.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.version.as_str(), status.healthz.as_str()), ("v2", "ok"));
    let stored = encrypt(&mut client, DEK).await.unwrap();
    assert_eq!(stored.key_id, status.key_id);
    assert_eq!(stored.ciphertext.len(), 93);
    assert_eq!(decrypt(&mut client, stored.request()).await.unwrap(), DEK.as_slice());
    assert_eq!(key.calls(), Calls { observe: 2, wrap: 2, unwrap: 3 }, "to prepare and to probe");

    // The next process of another node, which has seen nothing.
    let other = Plugin::serve(settings(&[&double("a")])).await;
    let mut client = other.client().await;
    assert_eq!(decrypt(&mut client, stored.request()).await.unwrap(), DEK.as_slice());
    assert_eq!(client.status(StatusRequest {}).await.unwrap().into_inner().key_id, status.key_id);

    let calls = key.calls();
    assert!(plugin.stop().await.open(&stored).await.is_ok());
    assert_eq!(key.calls(), calls);
}

#[tokio::test]
async fn dek_sources_of_every_length() {
    let plugin = Plugin::serve(settings(&[&double("a")])).await;
    let mut client = plugin.client().await;
    for (length, accepted) in [
        (0, false),
        (1, false),
        (15, false),
        (16, true),
        (17, false),
        (24, true),
        (31, false),
        (32, true),
        (33, true),
        (512, true),
        (513, false),
        (4096, false),
    ] {
        match encrypt(&mut client, &vec![7; length]).await {
            Ok(stored) => {
                assert!(accepted, "{length} is accepted");
                assert_eq!(decrypt(&mut client, stored.request()).await.unwrap(), vec![7; length]);
            }
            Err(status) => {
                assert!(!accepted, "{length}: {status}");
                assert_eq!(status.code(), Code::InvalidArgument, "{length}");
                assert!(status.message().contains(&format!("{length}")), "{status}");
            }
        }
    }
}

/// What is wrong, the request, the code, what the message must hold.
type Bad = (&'static str, DecryptRequest, Code, &'static str);

/// Requests that are refused before any key service is asked.
fn bad_requests(good: &Stored) -> Vec<Bad> {
    let with = |change: &dyn Fn(&mut DecryptRequest)| {
        let mut request = good.request();
        change(&mut request);
        request
    };
    let annotations = |entries: &[(&str, Vec<u8>)]| {
        let map: BTreeMap<_, _> =
            entries.iter().map(|(name, value)| ((*name).to_owned(), Bytes::from(value.clone()))).collect();
        with(&|request| request.annotations = map.clone())
    };
    let ciphertext = |length: usize| with(&|request| request.ciphertext = vec![1; length].into());
    let record = good.annotation.clone();
    let (bad, precondition) = (Code::InvalidArgument, Code::FailedPrecondition);

    let kek = LocalKek::generate();
    let unknown = RootKeyDouble::new("unknown", Algorithm::TRANSIT);
    let other_algorithm = RootKeyDouble::new("a", Algorithm::AWS_SYMMETRIC);
    let foreign = {
        let policy = casemate_keys::WritePolicy::new(
            casemate_keys::Suite::One,
            "staging".parse().unwrap(),
            casemate_keys::Epoch(0),
            vec![RootKeyDouble::new("a", Algorithm::TRANSIT).root()],
            Vec::new(),
            None,
        );
        let core = casemate_keys::Core {
            policy: policy.unwrap(),
            kek_id: kek.id(),
            created: THEN,
            writer: "x/1".parse().unwrap(),
        };
        Stored::under(&Record::new(core, vec![vec![1; 92]], Vec::new(), None).unwrap(), &kek, DEK)
    };
    let another_epoch = good.key_id.replace(':', ":0");
    vec![
        ("ciphertext of 0", ciphertext(0), bad, "0 bytes"),
        ("ciphertext of 1", ciphertext(1), bad, "found 1"),
        ("ciphertext of 92", ciphertext(76), bad, "found 76"),
        ("ciphertext of 1024", ciphertext(1024), bad, "found 1024"),
        ("ciphertext of 1025", ciphertext(1025), bad, "1025 bytes"),
        ("ciphertext of another suite", with(&|r| r.ciphertext = vec![2; 93].into()), bad, "suite 2"),
        ("no annotation", annotations(&[]), bad, "exactly one"),
        ("an empty one", annotations(&[(RECORD_ANNOTATION, vec![])]), bad, "backup"),
        ("two", annotations(&[(RECORD_ANNOTATION, record.clone()), ("a.b", vec![1])]), bad, "exactly one"),
        ("renamed", annotations(&[("records.casemate.dev", record.clone())]), bad, "exactly one"),
        ("no domain", annotations(&[("record", record.clone())]), bad, "domain name"),
        ("another provider", annotations(&[("iv.cosmian.com", vec![1; 12])]), bad, "Another KMS provider"),
        ("32769 bytes", annotations(&[(RECORD_ANNOTATION, vec![10; 32_769 - 19])]), bad, "32769 bytes"),
        ("32768 bytes", annotations(&[(RECORD_ANNOTATION, vec![10; 32_768 - 19])]), bad, "at most 8192"),
        ("key id of 0", with(&|r| r.key_id.clear()), bad, "0 bytes"),
        ("key id of 1024", with(&|r| r.key_id = "k".repeat(1024)), bad, "does not belong"),
        ("key id of 1025", with(&|r| r.key_id = "k".repeat(1025)), bad, "1025 bytes"),
        ("another policy's key id", with(&|r| r.key_id = another_epoch.clone()), bad, "does not belong"),
        (
            "a key id with line ends",
            with(&|r| r.key_id = "a\n2026 ERROR \x1b[2J".into()),
            bad,
            "does not belong",
        ),
        ("another cluster", foreign.request(), precondition, "alsoAccept"),
        (
            "an unknown root key",
            Stored::forged(&[(&unknown, &kek)], |_| {}, DEK).request(),
            precondition,
            "exec:unknown/1",
        ),
        (
            "another algorithm",
            Stored::forged(&[(&other_algorithm, &kek)], |_| {}, DEK).request(),
            precondition,
            "this algorithm",
        ),
    ]
}

#[tokio::test]
async fn bad_requests_are_refused_cold_and_warm_without_a_call() {
    let key = double("a");
    let plugin = Plugin::serve(settings(&[&key])).await;
    let mut client = plugin.client().await;
    let good = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    for temperature in ["cold", "warm"] {
        let before = (key.calls(), plugin.node.provider.opened_counts());
        for (what, request, code, told) in bad_requests(&good) {
            let status = decrypt(&mut client, request).await.expect_err(what);
            assert_eq!(status.code(), code, "{temperature}, {what}: {status}");
            assert!(status.message().contains(told), "{temperature}, {what}: {status}");
            assert!(!status.message().contains(|c: char| c.is_control()), "{what}: {:?}", status.message());
            assert!(status.message().len() < 2000, "{what}: {}", status.message().len());
            assert_no_secret(&status);
        }
        assert_eq!(before, (key.calls(), plugin.node.provider.opened_counts()), "{temperature}: asked");
        assert_eq!(decrypt(&mut client, good.request()).await.unwrap(), DEK.as_slice());
    }
    assert!(client.status(StatusRequest {}).await.is_ok(), "input moves no state");
}

/// Sends bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

async fn send_raw(plugin: &Plugin, method: &'static str, bytes: Vec<u8>) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(channel(&plugin.socket).await.unwrap());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(method);
    grpc.unary(Request::new(Bytes::from(bytes)), path, Raw).await.map(tonic::Response::into_inner)
}

const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

#[tokio::test]
async fn of_a_doubled_annotation_the_last_one_counts_as_protobuf_says() {
    let key = double("a");
    let plugin = Plugin::serve(settings(&[&key])).await;
    let (good, other) = (plugin.node.seal(DEK).await, Node::start(settings(&[&key])).await.seal(DEK).await);
    assert_ne!(good.annotation, other.annotation);
    // kube-apiserver holds a map and can't send this; who edits etcd gets it resolved by kube-apiserver.
    let doubled = |first: &Stored, second: &Stored| {
        let mut bytes = good.request();
        bytes.annotations.clear();
        let mut bytes = bytes.encode_to_vec();
        for stored in [first, second] {
            let only = DecryptRequest { annotations: stored.request().annotations, ..Default::default() };
            bytes.extend(only.encode_to_vec());
        }
        bytes
    };
    let refused = send_raw(&plugin, DECRYPT, doubled(&good, &other)).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "the ciphertext binds its own record: {refused}");
    assert!(send_raw(&plugin, DECRYPT, doubled(&other, &good)).await.is_ok());
}

#[tokio::test]
async fn messages_that_are_none_or_too_large_hurt_nobody_else() {
    let plugin = Plugin::serve(settings(&[&double("a")])).await;
    let mut client = plugin.client().await;
    let good = encrypt(&mut client, DEK).await.unwrap();
    for (bytes, code) in [
        (vec![0xff; 100], Code::Internal),
        (vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f], Code::Internal),
        (good.request().encode_to_vec()[..50].to_vec(), Code::Internal),
        (vec![0; 64 * 1024 + 1], Code::OutOfRange),
        (vec![0; 5 * 1024 * 1024], Code::OutOfRange),
    ] {
        let length = bytes.len();
        let status = send_raw(&plugin, DECRYPT, bytes).await.unwrap_err();
        assert_eq!(status.code(), code, "{length} bytes: {status}");
        assert!(decrypt(&mut client, good.request()).await.is_ok());
    }
    assert_eq!(
        send_raw(&plugin, "/v2.KeyManagementService/Shred", vec![]).await.unwrap_err().code(),
        Code::Unimplemented
    );
    let large = EncryptRequest { plaintext: vec![0; 70_000].into(), uid: String::new() };
    assert_eq!(client.encrypt(large).await.unwrap_err().code(), Code::OutOfRange);
    let long_uid = EncryptRequest { plaintext: DEK.to_vec().into(), uid: "u".repeat(60_000) };
    assert!(client.encrypt(long_uid).await.is_ok(), "a uid is only logged");
}

#[tokio::test]
async fn failures_have_codes_by_class_and_say_key_id_cause_and_remedy() {
    let good = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    for (class, code) in [
        (Class::Unreachable, Code::Unavailable),
        (Class::Throttled, Code::ResourceExhausted),
        (Class::Credential, Code::Unavailable),
        (Class::Refused, Code::FailedPrecondition),
        (Class::Corrupt, Code::FailedPrecondition),
        (Class::NotOpened, Code::DataLoss),
    ] {
        // Before anything could be written ...
        let key = double("a");
        key.fails(Some(class));
        let plugin = Plugin::serve(settings(&[&key])).await;
        let mut client = plugin.client().await;
        let status = client.status(StatusRequest {}).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{class:?}: {status}");
        assert!(status.message().contains(CAUSE) && status.message().contains(REMEDY), "{status}");
        assert_eq!(encrypt(&mut client, DEK).await.unwrap_err().code(), Code::Unavailable);
        // ... nothing can be read either, for want of a local KEK.
        let status = decrypt(&mut client, good.request()).await.unwrap_err();
        assert_eq!(status.code(), code, "{class:?}: {status}");
        assert!(status.message().contains(&good.key_id), "{status}");
        if class == Class::NotOpened {
            assert!(status.message().contains("backup"), "{status}");
        } else {
            assert!(status.message().contains(CAUSE) && status.message().contains(REMEDY), "{status}");
        }
        assert_no_secret(&status);

        // Afterwards, writing goes on and what was opened stays open.
        let key = double("a");
        let mut node = Node::start(settings(&[&key])).await;
        assert!(node.open(&good).await.is_ok());
        key.fails(Some(class));
        node.observer.look().await;
        node.observer.look().await;
        assert!(node.provider.status(&Default::default()).is_ok(), "{class:?}");
        assert!(node.open(&good).await.is_ok(), "{class:?}");
        assert!(node.open(&node.seal(DEK).await).await.is_ok(), "{class:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_root_key_that_says_no_for_two_minutes_stops_writes_not_reads() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let stored = node.seal(DEK).await;
    key.fails(Some(Class::Refused));
    for seconds in (0..120).step_by(10) {
        node.observer.look().await;
        assert!(node.provider.status(&Default::default()).is_ok(), "after {seconds} s");
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    node.observer.look().await;
    let refused = node.provider.status(&Default::default()).unwrap_err().to_string();
    assert!(refused.contains(CAUSE) && refused.contains(REMEDY), "{refused}");
    assert!(node.provider.encrypt(DEK, &Default::default()).await.is_err());
    assert!(node.open(&stored).await.is_ok());
    key.fails(None);
    node.observer.look().await;
    assert!(node.provider.status(&Default::default()).is_ok());
    assert_eq!(node.seal(DEK).await.key_id, stored.key_id);
}

#[tokio::test]
async fn a_service_that_lies_is_never_written_under() {
    for (lie, told) in [
        (Lie::OtherPayload, "something else"),
        (Lie::ShortPayload, "something else"),
        (Lie::IgnoresAssociatedData, "ignores associated data"),
        (Lie::SilentOnOtherData, CAUSE),
        (Lie::WrapOf(2049), "at most 2048"),
        (Lie::Flaps, "starting"),
    ] {
        let key = double("a");
        key.lies(Some(lie));
        let mut node = Node::start(settings(&[&key])).await;
        node.observer.look().await;
        let status = node.provider.status(&Default::default()).unwrap_err().to_string();
        assert!(status.contains(told), "{lie:?}: {status}");
        assert!(node.provider.encrypt(DEK, &Default::default()).await.is_err());
        assert_eq!(node.provider.opened_counts().held, 0, "{lie:?}");
        key.lies(None);
        node.observer.look().await;
        node.observer.look().await;
        assert!(node.open(&node.seal(DEK).await).await.is_ok(), "{lie:?}: it heals");
    }
}

#[tokio::test]
async fn a_service_that_lies_opens_nothing() {
    let good = Node::start(settings(&[&double("a")])).await.seal(DEK).await;
    for lie in [Lie::OtherPayload, Lie::ShortPayload] {
        let key = double("a");
        let node = Node::start(settings(&[&key])).await;
        key.lies(Some(lie));
        let error = node.open(&good).await.unwrap_err().to_string();
        assert!(error.contains("did not open"), "{lie:?}: {error}");
        key.lies(None);
        assert_eq!(**node.open(&good).await.unwrap(), *DEK, "a failure is not kept");
    }
}

/// Field complaint 29: a reply that breaks the contract makes kube-apiserver give the plugin up
/// (kubernetes/kubernetes#116877): it is not sent.
#[tokio::test]
async fn replies_beyond_the_limits_are_never_sent() {
    // Four wraps of 2048 bytes are each within the format, and together beyond it.
    let keys: Vec<_> = ["a", "b", "c", "d"].map(double).into();
    for key in &keys {
        key.lies(Some(Lie::WrapOf(2048)));
    }
    let plugin = Plugin::serve(settings(&keys.iter().collect::<Vec<_>>())).await;
    let mut client = plugin.client().await;
    let status = client.status(StatusRequest {}).await.unwrap_err();
    assert!(status.message().contains("at most 8192"), "{status}");
    assert_eq!(encrypt(&mut client, DEK).await.unwrap_err().code(), Code::Unavailable);

    // The largest that fit.
    for key in &keys {
        key.lies(Some(Lie::WrapOf(1900)));
    }
    let plugin = Plugin::serve(settings(&keys.iter().collect::<Vec<_>>())).await;
    let mut client = plugin.client().await;
    let stored = encrypt(&mut client, DEK).await.unwrap();
    assert!(stored.annotation.len() > 7600);
    assert!(decrypt(&mut client, stored.request()).await.is_ok());
}

/// Opens `stored` on a node that has seen nothing, and on one that has opened `first`.
async fn open_cold_and_warm(
    keys: &[&Arc<RootKeyDouble>],
    first: &Stored,
    stored: &Stored,
) -> [Result<Vec<u8>, String>; 2] {
    let cold = Node::start(settings(keys)).await;
    let warm = Node::start(settings(keys)).await;
    assert!(warm.open(first).await.is_ok());
    let opened = [cold.open(stored).await, warm.open(stored).await];
    opened.map(|opened| opened.map(|plaintext| plaintext.to_vec()).map_err(|error| error.to_string()))
}

#[tokio::test]
async fn a_record_whose_wraps_hold_different_local_keks() {
    let (a, b) = (double("a"), double("b"));
    let (one, two) = (LocalKek::generate(), LocalKek::generate());
    let honest = Stored::forged(&[(&a, &one), (&b, &one)], |_| {}, DEK);
    let forged = Stored::forged(&[(&a, &one), (&b, &two)], |_| {}, DEK);
    for opened in open_cold_and_warm(&[&a, &b], &honest, &forged).await {
        assert_eq!(opened.unwrap(), DEK, "the first wrap is the record's");
    }
    // Where only the other wrap can be asked, its local KEK is not taken for the record's.
    a.fails(Some(Class::Unreachable));
    b.fails(None);
    let node = Node::start(settings(&[&b])).await;
    let mut reader = settings(&[&b]);
    reader.read_only_keys = vec![guarded(&a)];
    reader.read_policy.rules.push(a.rule());
    let other = Node::start(reader).await;
    for (node, told) in [(&node, "did not open"), (&other, CAUSE)] {
        let error = node.open(&forged).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }

    // And such a record is never written with again.
    a.fails(None);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("test")).unwrap();
    for (record, reopened) in [(&honest, true), (&forged, false)] {
        std::fs::write(folder.path().join("test/record"), &record.annotation).unwrap();
        let node = Node::start_in(folder.path(), settings(&[&a, &b])).await;
        assert_eq!(node.seal(DEK).await.annotation == record.annotation, reopened);
    }
}

#[tokio::test]
async fn wraps_that_were_moved_open_nothing() {
    let (a, b) = (double("a"), double("b"));
    let (one, two) = (LocalKek::generate(), LocalKek::generate());
    let honest = Stored::forged(&[(&a, &one), (&b, &one)], |_| {}, DEK);
    let other: Vec<_> = Stored::forged(&[(&a, &two), (&b, &two)], |_| {}, DEK)
        .record()
        .wraps()
        .map(|(_, wrap)| wrap.to_vec())
        .collect();
    let swap = |wraps: &mut Vec<Vec<u8>>| wraps.swap(0, 1);
    let transplant = |wraps: &mut Vec<Vec<u8>>| wraps.clone_from(&other);
    for (what, moved) in [
        ("between the roots of a record", Stored::forged(&[(&a, &one), (&b, &one)], swap, DEK)),
        ("between records", Stored::forged(&[(&a, &one), (&b, &one)], transplant, DEK)),
    ] {
        for opened in open_cold_and_warm(&[&a, &b], &honest, &moved).await {
            let error = opened.expect_err(what);
            assert!(error.contains("did not open") && error.contains("backup"), "{what}: {error}");
        }
    }
    // The ciphertext of one record beside another record of the same policy.
    let other = Stored::forged(&[(&a, &one), (&b, &one)], |_| {}, DEK);
    let moved = Stored { ciphertext: honest.ciphertext.clone(), ..other };
    for opened in open_cold_and_warm(&[&a, &b], &honest, &moved).await {
        assert!(opened.unwrap_err().contains("restore the object"));
    }
}

#[tokio::test]
async fn an_unknown_root_beside_a_known_one_is_skipped() {
    let (a, new) = (double("a"), double("zz"));
    let kek = LocalKek::generate();
    let first = Stored::forged(&[(&a, &kek)], |_| {}, DEK);
    let stored = Stored::forged(&[(&a, &kek), (&new, &kek)], |_| {}, DEK);
    for opened in open_cold_and_warm(&[&a], &first, &stored).await {
        assert_eq!(opened.unwrap(), DEK);
    }
    assert_eq!(new.calls(), Calls { observe: 0, wrap: 0, unwrap: 0 });
}

#[tokio::test]
async fn an_unsigned_record_under_an_asymmetric_root_is_not_tried() {
    let a = double("a");
    let rsa = Arc::new(RootKeyDouble::new("rsa", Algorithm::RSA_OAEP_SHA256));
    let kek = LocalKek::generate();
    let first = Stored::forged(&[(&a, &kek)], |_| {}, DEK);
    let planted = Stored::forged(&[(&rsa, &kek)], |_| {}, DEK);
    let mut reader = settings(&[&a]);
    reader.read_policy.rules.push(rsa.rule());
    reader.read_only_keys = vec![guarded(&rsa)];
    let node = Node::start(reader).await;
    for _ in ["cold", "warm"] {
        let error = node.open(&planted).await.unwrap_err().to_string();
        assert!(error.contains("origin is not proven") && error.contains("not signed"), "{error}");
        assert!(node.open(&first).await.is_ok());
    }
    assert_eq!(rsa.calls().unwrap, 0);
}

#[tokio::test]
async fn one_root_down_is_what_the_second_is_for() {
    let (a, b) = (double("a"), double("b"));
    let stored = Node::start(settings(&[&a, &b])).await.seal(DEK).await;
    let node = Node::start(settings(&[&a, &b])).await;
    a.fails(Some(Class::Unreachable));
    assert_eq!(**node.open(&stored).await.unwrap(), *DEK);
    // Both down: the class that leaves most hope, both causes.
    b.fails(Some(Class::Refused));
    let cold = Plugin::serve(settings(&[&a, &b])).await;
    let status = decrypt(&mut cold.client().await, stored.request()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(status.message().matches(CAUSE).count(), 2, "{status}");
}

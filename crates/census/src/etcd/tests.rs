//! Against a stand-in that has etcd's revisions, and does at each request what a test says.
mod stand_in;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use casemate_wire::etcd::{RangeResponse, WatchResponse};
use tonic::{Code, Status};
use zeroize::Zeroizing;

use super::*;
use crate::survey::{Survey, Unseen};
use stand_in::StandIn;

const VALUE: &[u8] = b"k8s:enc:aescbc:v1:one:0123456789abcdef0123456789abcdef";
const OTHER: &[u8] = b"k8s:enc:aescbc:v1:two:0123456789abcdef0123456789abcdef";

fn settings(servers: &[&StandIn]) -> Settings {
    let mut settings = Settings::new(servers.iter().map(|server| server.endpoint()));
    (settings.timeout, settings.patience) = (Duration::from_secs(5), Duration::from_secs(20));
    settings
}

async fn scanner(servers: &[&StandIn]) -> Result<Scanner, Error> {
    let mut client = Client::new(settings(servers))?;
    client.connect("/registry").await?;
    Ok(Scanner::new(client, Options { prefix: "/registry".to_owned(), rate: None, passes: 3 }))
}

async fn survey(servers: &[&StandIn]) -> Result<Survey, Error> {
    scanner(servers).await?.survey(|_| {}).await
}

fn key(number: usize) -> String {
    format!("/registry/secrets/default/object-{number:04}")
}

async fn filled(objects: usize) -> StandIn {
    let server = StandIn::start(7).await;
    (0..objects).for_each(|number| server.put(&key(number), VALUE));
    server
}

/// How many live and past values each key opens, as `name live past`.
fn told(survey: &Survey) -> Vec<String> {
    survey.keys().into_iter().map(|(key, (live, past))| format!("{key} {live} {past}")).collect()
}

#[tokio::test]
async fn an_answer_that_can_not_be_is_an_error_and_no_loop() {
    type Change = fn(&mut RangeResponse);
    let changes: [(Change, &str); 7] = [
        (|answer| answer.header = None, "no header"),
        (|answer| answer.kvs.reverse(), "behind a later one"),
        (|answer| answer.kvs[1] = answer.kvs[0].clone(), "comes twice"),
        (|answer| answer.kvs[0].key = "/another".into(), "outside of the range"),
        (|answer| answer.kvs[3].mod_revision = 1 << 40, "is not in 1..="),
        (|answer| answer.kvs.extend(answer.kvs.clone()), "at most 100 were asked for"),
        (|answer| (answer.kvs, answer.more) = (Vec::new(), true), "gives nothing"),
    ];
    for (change, expected) in changes {
        let server = filled(250).await;
        server.on_range(move |request, answer| {
            if request.limit > 1 && answer.kvs.len() > 3 {
                change(answer);
            }
            Ok(())
        });
        let error = survey(&[&server]).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&server.endpoint()), "{error}");
    }
    let server = filled(250).await;
    let survey = survey(&[&server]).await.unwrap();
    assert_eq!((told(&survey), survey.unseen), (vec!["aescbc:one 250 0".to_owned()], Vec::new()));
}

#[tokio::test]
async fn etcd_counts_few_keys_for_each_page_however_keys_lie() {
    let server = StandIn::start(7).await;
    let mut objects = 0;
    let large = [VALUE, &[7; 4000]].concat();
    let mut put = |key: String| {
        server.put(&key, &large);
        objects += 1;
    };
    (0..6000).for_each(|number| put(format!("/registry/configmaps/dense/object-{number:06}")));
    (0..1500).for_each(|number| put(format!("/registry/leases/{}/one", number * 7919 % 1501)));
    (0..60).for_each(|number| put(format!("/registry/kind-{number}/{}", "x".repeat(number))));
    (0..2500).for_each(|number| put(format!("/registry/secrets/{}/{number:x}", number % 9)));
    server.compact();
    let walked = Arc::new(AtomicU64::new(0));
    let counter = walked.clone();
    server.on_range(move |request, answer| {
        if request.limit > 1 {
            counter.fetch_add(answer.count.unsigned_abs(), Ordering::Relaxed);
        }
        Ok(())
    });
    let found = survey(&[&server]).await.unwrap();
    assert_eq!((found.live, told(&found)), (objects, vec![format!("aescbc:one {objects} 0")]));
    // Without borders it would be some 20 times as many as there are keys.
    let times = walked.load(Ordering::Relaxed) / objects;
    assert!(times < 8, "{times} times");
}

#[tokio::test]
async fn pages_too_large_get_smaller_and_a_value_too_large_is_told() {
    let server = filled(3).await;
    let large = [VALUE, &vec![7; (1 << 20) + 10]].concat();
    (10..50).for_each(|number| server.put(&key(number), &large));
    let found = survey(&[&server]).await.unwrap();
    assert_eq!(found.live, 43);
    server.put(&key(60), &[VALUE, &vec![7; MAX_MESSAGE + 10]].concat());
    let error = survey(&[&server]).await.unwrap_err();
    assert!(matches!(&error, Error::TooLarge { key, .. } if key.contains("object-0049")), "{error}");
}

#[tokio::test]
async fn what_did_not_change_before_a_compaction_is_not_read_again() {
    let server = filled(2000).await;
    // In the middle of the scan one is overwritten, one deleted, one made, and etcd forgets all revisions before.
    let compacting = server.clone();
    let mut pages = 0;
    server.on_range(move |request, _| {
        if request.limit > 1 {
            pages += 1;
            if pages == 5 {
                compacting.put(&key(5), OTHER);
                compacting.delete(&key(300));
                compacting.put(&key(1999), OTHER);
                compacting.put(&format!("{}-new", key(1999)), VALUE);
                compacting.compact();
            }
        }
        Ok(())
    });
    let mut scanner = scanner(&[&server]).await.unwrap();
    let mut repins = 0;
    let found = scanner.survey(|at| repins = at.repins).await.unwrap();
    assert_eq!((repins, told(&found)), (1, vec!["aescbc:one 1998 0".into(), "aescbc:two 2 0".into()]));
    assert_eq!((found.live, found.unseen), (2000, Vec::new()));
    let read = server.values_read();
    assert!((2000..3200).contains(&read), "{read} values were read");
    // Another pass reads what changed, and nothing else.
    server.put(&key(700), OTHER);
    let found = scanner.survey(|_| {}).await.unwrap();
    assert_eq!(told(&found), ["aescbc:one 1997 1", "aescbc:two 3 0"]);
    let again = server.values_read() - read;
    assert!((1..1300).contains(&again), "{again} values were read");
    let fresh = survey(&[&server]).await.unwrap();
    assert_eq!((told(&fresh), fresh.live), (told(&found), found.live));
}

#[tokio::test]
async fn an_etcd_that_forgets_faster_than_it_is_read_is_of_no_one_moment() {
    let server = filled(1500).await;
    let compacting = server.clone();
    let mut number = 0;
    server.on_range(move |request, _| {
        if request.limit > 1 {
            number += 1;
            compacting.put(&key(number), OTHER);
            compacting.compact();
        }
        Ok(())
    });
    let found = survey(&[&server]).await.unwrap();
    assert!(
        matches!(found.unseen[0], Unseen::Moment { oldest, newest } if oldest < newest),
        "{:?}",
        found.unseen
    );
    assert_eq!(found.live, 1500);
}

#[tokio::test]
async fn the_past_is_all_that_changes_since_the_last_compaction_replaced() {
    let server = filled(20).await;
    server.put(&key(1), OTHER);
    server.compact();
    server.put(&key(2), OTHER);
    server.delete(&key(3));
    server.put(&key(3), OTHER);
    server.put(&key(3), VALUE);
    server.put("/registry2/secrets/default/beside", VALUE);
    server.put("/registry2/secrets/default/beside", VALUE);
    let found = survey(&[&server]).await.unwrap();
    assert_eq!((told(&found), found.past), (vec!["aescbc:one 18 2".into(), "aescbc:two 2 1".into()], 3));
    assert_eq!((found.compacted, found.outside), (Some(22), 1));
    // Nothing since: nothing is left to see, and that is known.
    server.compact();
    let found = survey(&[&server]).await.unwrap();
    assert_eq!((told(&found), found.past), (vec!["aescbc:one 18 0".into(), "aescbc:two 2 0".into()], 0));
    assert!(found.unseen.is_empty());
}

#[tokio::test]
async fn encrypted_values_elsewhere_are_counted_or_known_not_to_be() {
    let server = filled(20).await;
    let outside = async |server: &StandIn| {
        let found = survey(&[server]).await.unwrap();
        assert_eq!(found.live, 20);
        (found.outside, found.outside_encrypted)
    };
    assert_eq!(outside(&server).await, (0, Some(0)));
    // The prefix itself is no key outside of it; what sorts right before and behind it is.
    for key in ["compact_rev_key", "/a", "/registry", "/registry.", "/registry0", "/registry2/a", "/z"] {
        server.put(key, b"plain");
    }
    let found = survey(&[&server]).await.unwrap();
    assert_eq!((found.live, found.outside, found.outside_encrypted), (21, 6, Some(0)));
    server.delete("/registry");
    for (place, key) in ["/a", "/registry.", "/registry0", "/z"].into_iter().enumerate() {
        server.put(key, VALUE);
        assert_eq!(outside(&server).await, (6, Some(place as u64 + 1)), "{key}");
    }
    // Overwritten, and not compacted away.
    server.put("/z", b"plain");
    assert_eq!(outside(&server).await, (6, Some(4)));
    server.compact();
    assert_eq!(outside(&server).await, (6, Some(3)));
    // Over several pages.
    (0..900).for_each(|number| server.put(&format!("/other/{number}"), VALUE));
    assert_eq!(outside(&server).await, (906, Some(903)));
    // As many as another program has: nobody looks.
    (900..1000).for_each(|number| server.put(&format!("/other/{number}"), VALUE));
    let before = server.values_read();
    assert_eq!(outside(&server).await, (1006, None));
    assert_eq!(server.values_read() - before, 20);
    // Nobody may.
    let server = filled(20).await;
    server.put("/other", VALUE);
    server.on_range(|request, _| match &request.key[..] {
        b"\0" => Err(Status::permission_denied("")),
        _ => Ok(()),
    });
    assert_eq!(outside(&server).await, (0, None));
}

#[tokio::test]
async fn a_watch_that_hides_something_shows_no_past() {
    type Change = fn(&mut WatchResponse) -> bool;
    let cases: [(Change, &str); 3] = [
        (|answer| std::mem::replace(&mut answer.canceled, true) || !answer.created, "etcd ended the watch"),
        // Compacted while it was watched, and so each time.
        (
            |answer| {
                answer.events.iter_mut().for_each(|event| event.prev_kv = None);
                true
            },
            "again and again",
        ),
        // The last answers never come.
        (|answer| answer.events.is_empty(), "gave no more"),
    ];
    for (change, expected) in cases {
        let server = filled(5).await;
        server.put(&key(1), OTHER);
        server.on_watch(change);
        let mut client =
            Client::new(Settings { timeout: Duration::from_millis(300), ..settings(&[&server]) }).unwrap();
        client.connect("/registry").await.unwrap();
        let options = Options { prefix: "/registry".to_owned(), rate: None, passes: 3 };
        let found = Scanner::new(client, options).survey(|_| {}).await.unwrap();
        let Some(Unseen::Past { why, .. }) = found.unseen.first() else {
            panic!("{expected}: {:?}", found.unseen)
        };
        assert!(why.contains(expected), "{why}");
        assert_eq!(told(&found), ["aescbc:one 4 0", "aescbc:two 1 0"]);
    }
    let server = filled(5).await;
    server.put(&key(1), OTHER);
    server.on_watch(|answer| {
        answer.events.reverse();
        true
    });
    let error = survey(&[&server]).await.unwrap_err();
    assert!(matches!(error, Error::Page { fault: PageFault::Change { .. }, .. }), "{error}");
}

#[tokio::test]
async fn members_of_other_clusters_restored_ones_and_ones_that_lag_are_told() {
    let (one, stranger) = (filled(5).await, StandIn::start(8).await);
    let error = survey(&[&one, &stranger]).await.unwrap_err();
    assert!(matches!(error, Error::Clusters { one_id: 7, other_id: 8, .. }), "{error}");

    // It answers what all agreed on, and has not come so far by itself.
    let lagging = filled(5).await;
    lagging.on_range(|request, _| match request.serializable && request.revision > 0 {
        true => Err(Status::out_of_range("")),
        false => Ok(()),
    });
    assert_eq!(survey(&[&lagging, &one]).await.unwrap().live, 5);
    let error = survey(&[&lagging]).await.unwrap_err();
    assert!(matches!(error, Error::Lags { asked: 6, .. }), "{error}");

    let restored = filled(300).await;
    let server = restored.clone();
    restored.on_range(move |request, _| {
        if request.limit > 1 {
            server.lose_all();
            return Err(Status::out_of_range(""));
        }
        Ok(())
    });
    let error = survey(&[&restored]).await.unwrap_err();
    assert!(matches!(error, Error::NoRevision { asked: 301, newest: 1, .. }), "{error}");
}

#[tokio::test]
async fn codes_are_told_as_what_they_mean_and_tokens_are_renewed() {
    let as_reader = async |server: &StandIn| {
        let password = Zeroizing::new("readword".to_owned());
        let user = Some(User { name: "reader".to_owned(), password });
        let mut client = Client::new(Settings { user, ..settings(&[server]) })?;
        client.connect("/registry").await?;
        Scanner::new(client, Options { prefix: "/registry".into(), rate: None, passes: 3 })
            .survey(|_| {})
            .await
    };
    let server = filled(400).await;
    server.guard("readword");
    assert!(matches!(survey(&[&server]).await.unwrap_err(), Error::NoUser { .. }));
    // Each token is good for three requests.
    assert_eq!(as_reader(&server).await.unwrap().live, 400);
    assert!(server.tokens.load(Ordering::Relaxed) > 2);
    server.guard("another");
    let error = as_reader(&server).await.unwrap_err();
    assert!(matches!(&error, Error::WrongUser { user, .. } if user == "reader"), "{error}");
    assert!(!format!("{error:?} {error}").contains("readword"));
    // Who names a user where none is needed is let in.
    assert_eq!(as_reader(&filled(3).await).await.unwrap().live, 3);

    for code in [Code::PermissionDenied, Code::Unimplemented] {
        let server = filled(3).await;
        server.on_range(move |_, _| Err(Status::new(code, "a text")));
        let told = match survey(&[&server]).await.unwrap_err() {
            Error::Denied { range, .. } => (Code::PermissionDenied, range.to_string()),
            Error::Refused { code, message, .. } => (code, message),
            other => panic!("{other}"),
        };
        let expected = if code == Code::PermissionDenied { "key /registry/" } else { "a text" };
        assert_eq!(told, (code, expected.to_owned()));
    }
}

#[tokio::test]
async fn members_that_do_not_answer_are_passed_over() {
    let (busy, good) = (filled(300).await, filled(300).await);
    let mut requests = 0;
    busy.on_range(move |_, _| {
        requests += 1;
        if requests > 2 { Err(Status::unavailable("no leader")) } else { Ok(()) }
    });
    assert_eq!(survey(&[&busy, &good]).await.unwrap().live, 300);
    // Alone it is waited for, and then told.
    let mut client =
        Client::new(Settings { patience: Duration::from_millis(300), ..settings(&[&busy]) }).unwrap();
    busy.on_range(|request, _| match request.count_only && request.serializable {
        true => Ok(()),
        false => Err(Status::unavailable("no leader")),
    });
    client.connect("/registry").await.unwrap();
    let options = Options { prefix: "/registry".into(), rate: None, passes: 3 };
    let error = Scanner::new(client, options).survey(|_| {}).await.unwrap_err();
    let Error::Unanswered { failures } = &error else { panic!("{error}") };
    assert_eq!(failures.iter().map(|failure| &failure.fault).collect::<Vec<_>>(), [&Fault::Unavailable]);
}

#[test]
fn endpoints_and_files_that_can_not_be_are_refused() {
    let refused = |endpoint: &str| Client::new(Settings::new([endpoint])).unwrap_err().to_string();
    let texts: BTreeSet<String> = [
        "127.0.0.1:2379",
        "unix:///kine.sock",
        "http://",
        "http://a b",
        "https://127.0.0.1:2379",
        "http://h/path",
    ]
    .map(refused)
    .into();
    assert!(texts.iter().all(|text| text.contains("https")), "{texts:?}");
    let none: [&str; 0] = [];
    assert!(matches!(Client::new(Settings::new(none)), Err(Error::NoEndpoint)));
    let mut settings = Settings::new(["https://127.0.0.1:1"]);
    let identity = Identity { certificate: b"no PEM".to_vec(), key: Zeroizing::new(b"SECRET".to_vec()) };
    settings.tls = Some(Tls { authorities: b"no PEM".to_vec(), identity: Some(identity), server_name: None });
    assert!(!format!("{settings:?}").contains("SECRET"));
    assert!(Client::new(settings).unwrap_err().to_string().contains("must be PEM"));
}

//! `POST /refresh`: what is asked for happens soon, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use casemate_keyservice::Class;
use casemate_kms::admin::refresh::{Asked, TooSoon};
use casemate_kms::provider::{Provider, succession};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Window, ask, double, get};
use crate::double::guarded;
use crate::node::{Node, settings};

async fn post(window: &Window, query: &str) -> (u16, String) {
    ask(&window.socket, format!("POST /refresh{query} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await
}

async fn asked(window: &Window, query: &str) -> Vec<(String, u64)> {
    let (code, body) = post(window, query).await;
    assert_eq!(code, 202, "{body}");
    let Asked { providers } = serde_json::from_str(&body).unwrap();
    providers.into_iter().map(|of| (of.name, of.refresh)).collect()
}

/// Of a root key that nobody pays for, or somebody does.
async fn named(name: &str, paid: bool) -> Arc<Provider> {
    let key = double(name);
    if !paid {
        key.is_local();
    }
    let mut settings = settings(&[&key]);
    settings.name = name.into();
    Node::start(settings).await.provider
}

#[tokio::test]
async fn all_providers_are_asked_or_the_one_that_is_named() {
    let window = Window::open([named("a", false).await, named("b", false).await]).await;
    let pair = |name: &str, number| (name.to_owned(), number);
    assert_eq!(asked(&window, "").await, [pair("a", 1), pair("b", 1)]);
    assert_eq!(asked(&window, "?provider=b").await, [pair("b", 2)]);
    assert_eq!(asked(&window, "?").await, [pair("a", 2), pair("b", 3)]);

    let (code, body) = post(&window, "?provider=c").await;
    assert_eq!((code, body.as_str()), (404, "there is no provider \"c\"; there are a, b\n"));
    for query in ["?name=a", "?provider", "?provider=a&provider=b", "?provider=a%0d"] {
        let (code, _) = post(&window, query).await;
        assert!(code == 400 || code == 404, "{query}: {code}");
    }
    assert_eq!(asked(&window, "").await, [pair("a", 3), pair("b", 4)], "those asked for nothing");
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let request = format!("{method} /refresh HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(ask(&window.socket, request.as_bytes()).await.0, 405, "{method}");
    }
    assert_eq!(get(&window.socket, "/livez").await.0, 200);
}

/// The clock jumps whenever all wait: what is measured is how long the observer rested.
#[tokio::test(start_paused = true)]
async fn what_is_new_writes_some_seconds_later_and_the_rest_is_as_long_as_ever() {
    let key = double("a");
    let node = Node::start(settings(&[&key])).await;
    let (window, stop) = (Window::open([node.provider.clone()]).await, CancellationToken::new());
    let (_, requests) = succession();
    let observing = tokio::spawn(node.observer.run(requests, stop.clone()));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = key.calls().observe;
    key.version_writes(2);

    let since = Instant::now();
    assert_eq!(asked(&window, "").await[0].1, 1);
    let writes_2 = async || {
        let status = window.status().await;
        status.next_write.is_some_and(|next| next.roots[0].lineage == "exec:a/2").then_some(status.refreshes)
    };
    let refreshes = loop {
        match writes_2().await {
            Some(refreshes) => break refreshes.unwrap(),
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        assert!(since.elapsed() < Duration::from_secs(60), "it is a key service, and looked at like one");
    };
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    assert_eq!((refreshes.asked, refreshes.done), (1, 1));
    assert_eq!(key.calls().observe, before + 2, "seen twice");

    // Whoever asks without end gets the nine that are left, each with one look more, and then one every two minutes.
    let (before, since) = (key.calls().observe, Instant::now());
    let (mut granted, mut refused) = (0, 0);
    while since.elapsed() < Duration::from_secs(1210) {
        match post(&window, "").await {
            (202, _) => granted += 1,
            (429, body) => {
                let soon: TooSoon = serde_json::from_str(&body).unwrap();
                assert!(soon.provider == "test" && (1..=120).contains(&soon.retry_after_seconds), "{soon:?}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(granted > 100 && refused > 1000, "{granted} and {refused}");
    // 19 counted ones, and what it does by itself.
    let looks = key.calls().observe - before;
    assert!((19..=2 * 19 + 6).contains(&looks), "{looks}");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(post(&window, "").await.0, 202);
    // The last wish is fulfilled, and then there is no hurry.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let refreshes = window.status().await.refreshes.unwrap();
    assert_eq!(refreshes.done, refreshes.asked);
    let before = key.calls().observe;
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert_eq!(key.calls().observe, before);
    stop.cancel();
    observing.await.unwrap();
}

/// The clock stands still but for what the test says.
#[tokio::test(start_paused = true)]
async fn who_asked_too_often_is_told_when_to_ask_again_and_keeps_nobody_else_from_it() {
    let key = double("a");
    let mut a = settings(&[&key]);
    a.name = "a".into();
    let mut a = Node::start(a).await;
    let window = Window::open([a.provider.clone(), named("b", true).await]).await;
    for number in 1..=10 {
        assert_eq!(asked(&window, "?provider=a").await[0].1, 2 * number - 1);
        // Before that look has ended: it is counted once.
        assert_eq!(asked(&window, "?provider=a").await[0].1, 2 * number);
        a.observer.look().await;
    }
    let mut stream = UnixStream::connect(&window.socket).await.unwrap();
    stream.write_all(b"POST /refresh?provider=a HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut head = String::new();
    stream.read_to_string(&mut head).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("\r\nretry-after: 120\r\n"), "{head}");
    // All or none.
    assert_eq!(post(&window, "").await.0, 429);
    assert_eq!(asked(&window, "?provider=b").await, [("b".to_owned(), 1)]);

    tokio::time::advance(Duration::from_secs(119)).await;
    let (code, body) = post(&window, "?provider=a").await;
    let soon = TooSoon { provider: "a".into(), retry_after_seconds: 1 };
    assert_eq!((code, serde_json::from_str(&body).ok()), (429, Some(soon)));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(asked(&window, "").await, [("a".to_owned(), 21), ("b".to_owned(), 2)]);
    a.observer.look().await;
    assert_eq!(post(&window, "").await.0, 429);
    // What is not used is not lost, and is no more than that.
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    for _ in 0..10 {
        asked(&window, "").await;
        a.observer.look().await;
    }
    assert_eq!(post(&window, "").await.0, 429);
}

/// Files are looked at every ten seconds anyway.
#[tokio::test]
async fn root_keys_in_files_can_be_looked_at_as_often_as_one_likes() {
    let window = Window::open([named("a", false).await]).await;
    for number in 1..=10 {
        assert_eq!(asked(&window, "").await[0].1, number);
    }
}

/// The clock jumps whenever all wait.
#[tokio::test(start_paused = true)]
async fn root_keys_that_only_read_are_looked_at_too() {
    let (write, read) = (double("w"), double("r"));
    let mut settings = settings(&[&write]);
    settings.read_only_keys = vec![guarded(&read)];
    let node = Node::start(settings).await;
    let (window, stop) = (Window::open([node.provider.clone()]).await, CancellationToken::new());
    let (_, requests) = succession();
    let observing = tokio::spawn(node.observer.run(requests, stop.clone()));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(read.calls().observe, 1, "not at each look");
    read.fails(Some(Class::Credential));

    asked(&window, "").await;
    while window.status().await.refreshes.unwrap().done < 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(read.calls().observe, 2);
    assert_eq!(
        window.status().await.root_keys[1].state,
        "failing",
        "as soon as the look is said to have ended"
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(read.calls().observe, 2, "and then as seldom as ever");
    stop.cancel();
    observing.await.unwrap();
}

/// A look that had begun before is not the one that was asked for.
#[tokio::test]
async fn a_look_that_is_under_way_fulfils_no_wish() {
    let key = double("a");
    let mut node = Node::start(settings(&[&key])).await;
    let window = Window::open([node.provider.clone()]).await;
    let done = async || window.status().await.refreshes.unwrap().done;
    key.open_gate(false);
    {
        let wraps = key.calls().wrap;
        let mut look = std::pin::pin!(node.observer.look());
        let begun = async {
            while key.calls().wrap == wraps {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = &mut look => panic!("the gate is closed"),
            () = begun => {}
        }
        assert_eq!(asked(&window, "").await[0].1, 1);
        key.open_gate(true);
        look.await;
    }
    assert_eq!(done().await, 0);
    node.observer.look().await;
    assert_eq!(done().await, 1);
    // One that finds nothing but trouble is a look too.
    key.fails(Some(Class::Unreachable));
    assert_eq!(asked(&window, "").await[0].1, 2);
    node.observer.look().await;
    assert_eq!(done().await, 2);
}

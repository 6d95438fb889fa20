//! The real program, confined, with a key file that is there or not.

use std::fs;

use crate::node::connect;
use crate::process::{Host, deliver, encrypt, opens, until};

use super::Delivered;

const DEK: [u8; 32] = [0x5a; 32];

fn host(delivered: &Delivered) -> Host {
    let host = Host::new();
    let path = delivered.credential().path().display().to_string();
    host.set(&format!("sealedCache: {{credential: {path}}}"));
    host
}

#[tokio::test]
async fn a_confined_program_starts_without_its_key_file() {
    let delivered = Delivered::new();
    let host = host(&delivered);
    let mut daemon = host.serve();
    let stored = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let cache = host.state().join("casemate/sealed-cache");
    until("it is sealed", async || fs::metadata(&cache).is_ok()).await;
    daemon.kill();

    let key = fs::read(host.key()).unwrap();
    fs::remove_file(host.key()).unwrap();
    let mut daemon = host.serve();
    let mut client = daemon.healthy().await;
    opens(&mut client, &stored, &DEK).await;
    assert_eq!(encrypt(&mut client, &DEK).await.unwrap().annotation, stored.annotation);
    daemon.kill();

    // The same without the cache: nothing.
    fs::remove_file(&cache).unwrap();
    let daemon = host.serve();
    until("it serves", async || connect(&host.socket()).await.is_ok()).await;
    let mut client = connect(&host.socket()).await.unwrap();
    assert!(client.decrypt(stored.request()).await.is_err());
    daemon.kill();
    deliver(&key, &host.key());
}

#[tokio::test]
async fn a_full_disk_costs_the_cache_and_nothing_else() {
    let delivered = Delivered::new();
    let host = host(&delivered);
    let mut daemon = host.serve();
    let stored = encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let files = ["sealing-key", "sealed-cache"].map(|name| host.state().join("casemate").join(name));
    until("it is sealed", async || files.iter().all(|file| file.exists())).await;
    daemon.kill();
    let whole = files.each_ref().map(|file| fs::read(file).unwrap());

    // What is there is read; a new one can't be written.
    let mut daemon = host.serve_on_a_full_disk();
    let mut client = daemon.healthy().await;
    opens(&mut client, &stored, &DEK).await;
    daemon.kill();
    assert_eq!(files.each_ref().map(|file| fs::read(file).unwrap()), whole);

    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    let mut daemon = host.serve_on_a_full_disk();
    let mut client = daemon.healthy().await;
    for _ in 0..20 {
        opens(&mut client, &stored, &DEK).await;
    }
    until("it is told", async || daemon.log().contains("the sealed cache can't be used now")).await;
    opens(&mut client, &stored, &DEK).await;
    let log = daemon.log();
    assert_eq!(log.matches("the sealed cache can't be used now").count(), 1, "{log}");
    assert!(log.contains("sealing-key") && log.contains("make room"), "{log}");
    daemon.kill();
    assert!(files.iter().all(|file| !file.exists()), "old or new, never half");
}

#[tokio::test]
async fn a_check_says_what_a_start_would_find() {
    let delivered = Delivered::new();
    let host = host(&delivered);
    let check = || {
        let output = host.run(&["check"]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = check();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("nothing is sealed yet"), "{text}");

    let mut daemon = host.serve();
    encrypt(&mut daemon.healthy().await, &DEK).await.unwrap();
    let cache = host.state().join("casemate/sealed-cache");
    until("it is sealed", async || cache.exists()).await;
    daemon.kill();
    let (code, text) = check();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("opens 1 local KEKs; the file was written at 20"), "{text}");

    let mut bytes = fs::read(&cache).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&cache, bytes).unwrap();
    let (_, text) = check();
    assert!(text.contains("warning: ") && text.contains("1 of its entries are torn or changed"), "{text}");

    delivered.deliver("credential", b"not the one that it was made with");
    let (code, text) = check();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not open with what"), "{text}");
}

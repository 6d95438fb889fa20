//! An hour in which nobody asks the plugin anything: a simulated clock, the real service.

use std::thread;

use casemate_keys::{Epoch, ReadPolicy, ReadRule, origin::OriginPolicy};
use casemate_keyservice::guarded::Guarded;
use casemate_kms::provider::{Observer, Provider, Settings, Store, succession};
use tokio_util::sync::CancellationToken;

use super::*;

/// The clock moves by so much, whenever nothing is asked.
const STEP: Duration = Duration::from_secs(5);
const AN_HOUR: u32 = 3600 / 5;
/// Looks at whether anything is asked, a millisecond apart.
const QUIET_LOOKS: u32 = 10;

#[test]
fn an_idle_hour_is_sixty_calls_at_most_with_all_that_keeps_the_token_alive() {
    let lab = lab("transit idle");
    let bao = prepared(&lab);
    // A token is renewed by the first call after two thirds of its life.
    for (ttl, renewals) in [("1h", 1..=2), ("15m", 4..=5)] {
        let proxy = FaultProxy::http(&bao.address()).unwrap();
        let token = bao.token(&["casemate"], &json!({"ttl": ttl})).unwrap();
        let mut config = config(&bao, Auth::TokenFile { path: secret_file(&lab, ttl, &token) });
        config.addresses = vec![proxy.address().parse().unwrap()];
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            // As long as there is a thread aside, the clock moves by hand only.
            let (over, waiting) = std::sync::mpsc::channel::<()>();
            let aside = tokio::task::spawn_blocking(move || waiting.recv());
            let key = Guarded::around(Box::new(TransitKey::new(config).unwrap()));
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path(), "idle").unwrap();
            let provider = Arc::new(Provider::new(settings(&key), store));
            let (_asking, asked) = succession();
            let stop = CancellationToken::new();
            let observer = Observer::new(provider.clone(), None).unwrap();
            let running = tokio::spawn(observer.run(asked, stop.clone()));
            while provider.standing().writes().is_none() {
                quiet(&key, &proxy).await;
            }
            quiet(&key, &proxy).await;

            proxy.forget_counts();
            for _ in 0..AN_HOUR {
                tokio::time::advance(STEP).await;
                quiet(&key, &proxy).await;
            }
            let asked = proxy.requests();
            assert!(proxy.requests_to("/") <= 60, "{ttl}: {asked:?}");
            for path in ["/v1/transit/keys/", "/v1/transit/encrypt/", "/v1/transit/decrypt/"] {
                assert!((17..=19).contains(&proxy.requests_to(path)), "{ttl}: {asked:?}");
            }
            assert!(renewals.contains(&proxy.requests_to("/v1/auth/token/renew-self")), "{ttl}: {asked:?}");

            stop.cancel();
            running.await.unwrap();
            drop(over);
            aside.await.unwrap().unwrap_err();
        });
    }
}

/// Until nothing is under way. A jump of the clock would be silence of the service to whoever waits for it.
async fn quiet(key: &Guarded, proxy: &FaultProxy) {
    let (mut looks, mut before) = (0, proxy.requests_to("/"));
    while looks < QUIET_LOOKS {
        thread::sleep(Duration::from_millis(1));
        tokio::task::yield_now().await;
        let now = proxy.requests_to("/");
        let is_quiet = now == before && key.condition().own_in_flight == 0;
        (looks, before) = (if is_quiet { looks + 1 } else { 0 }, now);
    }
}

fn settings(key: &Arc<Guarded>) -> Settings {
    let rule =
        ReadRule { key: key.prefix().clone(), algorithms: [Algorithm::TRANSIT].into(), min_version: None };
    Settings {
        name: "idle".into(),
        cluster: "idle".parse().unwrap(),
        epoch: Epoch(0),
        write_keys: vec![key.clone()],
        read_only_keys: Vec::new(),
        key_names: Vec::new(),
        read_policy: ReadPolicy {
            cluster: "idle".parse().unwrap(),
            also_accept: Vec::new(),
            rules: vec![rule],
            origin: OriginPolicy::Signed(Vec::new()),
        },
        signing: None,
        outage: casemate_kms_state::outage::Rules::default(),
        program: "test/1".parse().unwrap(),
        clock: Arc::new(|| 1_800_000_000),
    }
}

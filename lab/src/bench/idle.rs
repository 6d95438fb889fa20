//! What plugins ask that nobody asks: looks at the root key, and what keeps their tokens alive.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::Options;
use super::daemon::{Daemon, runtime};
use super::transit::Transit;
use crate::Lab;
use crate::cache::say;

/// How long tokens last, a plugin each: what it costs depends on it.
const TOKENS: [&str; 4] = ["1h", "15m", "5m", "1m"];

pub(super) fn run(options: &Options) -> anyhow::Result<Value> {
    let (lab, runtime) = (Lab::builder("idle").apiservers(0).start()?, runtime()?);
    let transit = Transit::start(&lab)?;
    let mut started = Vec::new();
    for token in TOKENS {
        let way = transit.way(&format!("token-{token}"), &json!({"token_ttl": token}))?;
        let daemon = Daemon::start(&lab, &runtime, &format!("node-{token}"), &way.root_key)?;
        let starting = way.settled(Duration::ZERO);
        way.proxy.forget_counts();
        started.push((token, way, daemon, starting));
    }
    say(&format!("nobody asks anything for {} minutes", options.minutes));
    thread::sleep(Duration::from_secs(60 * u64::from(options.minutes)));
    let counted = started.iter().map(|(token, way, _, starting)| {
        json!({"token": token, "starting": starting.json(), "idle": way.calls().json()})
    });
    Ok(json!({"minutes": options.minutes, "plugins": counted.collect::<Value>()}))
}

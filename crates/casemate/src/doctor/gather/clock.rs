//! What time it is where key services are.
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use jiff::fmt::rfc2822;
use reqwest::header::DATE;
use reqwest::redirect::Policy;
use serde_json::Value;

use crate::doctor::facts::ClockFacts;

/// How long each address gets.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of each address that a configuration with these fields names. Who does not answer, or does not say, is left out.
pub(super) async fn clocks(fields: &Value) -> Vec<ClockFacts> {
    let asked: Vec<_> = addresses(fields).into_iter().map(|address| tokio::spawn(ask(address))).collect();
    let mut clocks = Vec::new();
    for answer in asked {
        clocks.extend(answer.await.ok().flatten());
    }
    clocks
}

fn addresses(fields: &Value) -> BTreeSet<String> {
    let items = |of: &Value, field: &str| of[field].as_array().cloned().unwrap_or_default();
    let providers = items(fields, "providers");
    let keys = providers.iter().flat_map(|one| [items(one, "rootKeys"), items(one, "readKeys")].concat());
    let addresses = keys.flat_map(|key| items(&key["transit"], "addresses"));
    addresses.filter_map(|address| Some(address.as_str()?.trim_end_matches('/').to_owned())).collect()
}

/// Asks for nothing but the time, as nobody. Certificates are not judged: by a clock that is wrong each of them is, and
/// then this is what tells why.
async fn ask(address: String) -> Option<ClockFacts> {
    let client = reqwest::Client::builder()
        .http1_only()
        .no_proxy()
        .redirect(Policy::none())
        .timeout(PATIENCE)
        .tls_danger_accept_invalid_certs(true)
        .build()
        .ok()?;
    let sent = SystemTime::now();
    let answer = client.get(format!("{address}/v1/sys/health")).send().await.ok()?;
    let way = sent.elapsed().unwrap_or_default();
    let date = rfc2822::parse(answer.headers().get(DATE)?.to_str().ok()?.trim()).ok()?;
    let here = sent.duration_since(SystemTime::UNIX_EPOCH).ok()? + way / 2;
    Some(ClockFacts {
        whose: address,
        ahead: date.timestamp().as_second() - i64::try_from(here.as_secs()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_address_is_asked_once() {
        let transit = |addresses| json!({"transit": {"addresses": addresses}});
        let fields = json!({"providers": [
            {"rootKeys": [transit(json!(["https://a:1/", "https://b:2"])), {"file": {}}]},
            {"rootKeys": [], "readKeys": [transit(json!(["https://a:1", 5]))]},
        ]});
        assert_eq!(addresses(&fields).into_iter().collect::<Vec<_>>(), ["https://a:1", "https://b:2"]);
        assert!(addresses(&json!(null)).is_empty());
    }
}

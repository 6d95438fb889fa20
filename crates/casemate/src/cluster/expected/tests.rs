//! Tables.
use serde_json::json;

use super::*;

fn told(lease: Option<&str>, started: f64) -> Result<Told, String> {
    let identity = lease.map(|lease| file_hash(lease.as_bytes()));
    Ok(Told { identity, started: Some(started), ..Told::default() })
}

fn at(url: &str, told: Result<Told, String>) -> Answered {
    Answered { url: url.to_owned(), told }
}

fn leases(of: &[(&str, &str)]) -> Expected {
    let identity = |(lease, host): &(&str, &str)| Identity {
        lease: (*lease).to_owned(),
        host: Some((*host).to_owned()).filter(|host| !host.is_empty()),
    };
    Expected::Leases(of.iter().map(identity).collect())
}

/// Name, whether it is expected, whether it tells something.
fn names(found: &[Found]) -> Vec<(&str, bool, bool)> {
    found.iter().map(|one| (one.name.as_str(), one.is_expected, one.told.is_ok())).collect()
}

#[test]
fn each_named_server_is_expected_whether_it_answers_or_not() {
    let answers = vec![at("https://a", told(Some("x"), 1.0)), at("https://b", Err("no".into()))];
    assert_eq!(
        names(&found(&Expected::Named, answers)),
        [("https://a", true, true), ("https://b", true, false)]
    );
}

#[test]
fn a_lease_is_a_server_that_must_have_answered_itself() {
    let expected = leases(&[("apiserver-1", "n1"), ("apiserver-2", "n2")]);
    let answers = || vec![at("https://vip", told(Some("apiserver-2"), 1.0))];
    assert_eq!(names(&found(&expected, answers())), [("n1", true, false), ("n2", true, true)]);
    let both = [answers(), vec![at("https://1", told(Some("apiserver-1"), 1.0))]].concat();
    assert_eq!(names(&found(&expected, both)), [("n1", true, true), ("n2", true, true)]);
    // Whoever shows no identity may be either.
    let unnamed = vec![at("https://vip", told(None, 1.0))];
    assert_eq!(
        names(&found(&expected, unnamed.clone())),
        [("n1", true, false), ("n2", true, false), ("https://vip", false, true)]
    );
    assert_eq!(names(&found(&leases(&[("apiserver-1", "n1")]), unnamed)), [("n1", true, true)]);
}

#[test]
fn a_server_without_a_lease_is_found_beside() {
    let answers =
        vec![at("https://1", told(Some("apiserver-1"), 1.0)), at("https://9", told(Some("other"), 1.0))];
    assert_eq!(
        names(&found(&leases(&[("apiserver-1", "")]), answers)),
        [("apiserver-1", true, true), ("https://9", false, true)]
    );
}

#[test]
fn one_process_at_two_addresses_is_one() {
    let twice =
        |started| vec![at("https://vip", told(Some("x"), 1.0)), at("https://1", told(Some("x"), started))];
    assert_eq!(found(&Expected::Endpoints, twice(1.0)).len(), 1);
    assert_eq!(found(&Expected::Endpoints, twice(2.0)).len(), 2, "two processes of one host");
}

#[test]
fn lists_of_the_api_are_read() {
    let leases = json!({"items": [{"metadata": {"name": "apiserver-1", "labels": {"kubernetes.io/hostname": "n1"}}},
        {"metadata": {"name": "apiserver-2"}}]});
    let identity =
        |lease: &str, host: Option<&str>| Identity { lease: lease.into(), host: host.map(str::to_owned) };
    assert_eq!(
        Identity::list(leases.to_string().as_bytes()).unwrap(),
        [identity("apiserver-1", Some("n1")), identity("apiserver-2", None)]
    );
    let slices = json!({"items": [
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.1"]}], "ports": [{"port": 6443}]},
        {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}], "ports": [{"name": "https", "port": 6443}]}]});
    assert_eq!(
        addresses(slices.to_string().as_bytes()).unwrap(),
        ["https://10.0.0.1:6443", "https://10.0.0.2:6443", "https://[fd00::1]:6443"]
    );
    assert!(Identity::list(b"{}").is_err() && addresses(b"null").is_err());
}

//! Tables.
use casemate_census::survey::Survey;
use casemate_encryption_config::{EncryptionConfiguration, ServerFlags};
use casemate_rotation::Lag;

use super::*;
use crate::cluster::look::FileOf;

fn told(key_ids: &[(&str, &str, f64)], reloaded: Option<f64>) -> Told {
    let one =
        |(provider, hash, at): &(&str, &str, f64)| ((*provider).to_owned(), (*hash).to_owned(), Some(*at));
    let key_ids = key_ids.iter().map(one).collect();
    Told { started: Some(1000.0), reloaded, key_ids, ..Told::default() }
}

#[test]
fn how_long_a_key_id_is_given_is_never_said_too_long() {
    for (what, told, expected) in [
        ("since it started, less a poll", told(&[("p", "a", 1600.0)], None), Some(("a", 540))),
        ("another one before", told(&[("p", "a", 1300.0), ("p", "b", 1600.0)], None), Some(("b", 240))),
        ("another plugin's", told(&[("q", "a", 1590.0), ("p", "b", 1600.0)], None), Some(("b", 540))),
        ("a reload makes plugins anew", told(&[("p", "a", 1600.0)], Some(1500.0)), Some(("a", 40))),
        ("just now", told(&[("p", "a", 1001.0)], None), None),
        ("too long ago", told(&[("p", "a", 1300.0)], None), None),
        ("none", told(&[("q", "a", 1600.0)], None), None),
    ] {
        let report = report(&told, "p", 1610);
        let found = report.as_ref().map(|report| (report.key_id.as_str(), report.since.as_secs()));
        assert_eq!(found, expected, "{what}");
    }
    let early = report(&told(&[("p", "a", 1010.0)], None), "p", 1020).unwrap();
    assert_eq!(early.since, Duration::ZERO);
    // No clock of the server gives a panic.
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300] {
        let _ = report(&told(&[("p", "a", odd)], Some(odd)), "p", 1020);
    }
}

const OLD: &str = "- resources: [secrets]\n  providers:\n  - identity: {}\n";
const NEW: &str = "- resources: [secrets]\n  providers:\n\
    \x20 - secretbox: {keys: [{name: a, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}\n  - identity: {}\n";

fn file(server: Option<&str>, text: &str) -> FileSeen {
    let text =
        format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{text}");
    FileSeen {
        of: FileOf { server: server.map(str::to_owned), path: "/a".into() },
        hash: Some(casemate_encryption_config::file_hash(text.as_bytes())),
        says: EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default())
            .map_err(|error| error.to_string()),
    }
}

fn runs(name: &str, file: &FileSeen) -> Found {
    let told = Told { configurations: file.hash.iter().cloned().collect(), ..Told::default() };
    Found { name: name.to_owned(), url: Some(format!("https://{name}")), is_expected: true, told: Ok(told) }
}

fn sight(servers: Vec<Found>, files: Vec<FileSeen>) -> Sight {
    let looked = Looked { at: 1, expected: Expected::Named, servers, files, survey: None };
    Sight::of(looked, Duration::ZERO)
}

fn lags(sight: &Sight) -> Vec<(&str, &Lag)> {
    sight.verdict.decisions.lagging.iter().map(|(name, lag)| (name.0.as_str(), lag)).collect()
}

#[test]
fn a_server_is_what_it_has_loaded_and_not_its_file() {
    let (old, new) = (file(Some("a"), OLD), file(None, NEW));
    let servers = vec![runs("a", &old), runs("b", &new)];
    let seen = sight(servers, vec![file(None, NEW), file(Some("x"), OLD)]);
    assert_eq!(lags(&seen), [("a", &Lag::NotLoaded)]);
    assert!(
        matches!(&seen.verdict.step, Step::Wait(lagging) if lagging.len() == 1),
        "{:?}",
        seen.verdict.step
    );
}

#[test]
fn one_that_is_not_reached_holds_it_up() {
    let new = file(None, NEW);
    let absent = Found { told: Err("can't be reached".to_owned()), ..runs("b", &new) };
    let seen = sight(vec![runs("a", &new), absent], vec![file(None, NEW)]);
    assert_eq!(lags(&seen), [("b", &Lag::Absent)]);
    assert!(matches!(seen.verdict.step, Step::Wait(_)), "{:?}", seen.verdict.step);
}

#[test]
fn what_no_file_says_is_not_known() {
    let seen = sight(vec![runs("a", &file(None, OLD))], vec![file(None, NEW)]);
    assert_eq!(lags(&seen), [("a", &Lag::Silent)]);
}

#[test]
fn without_a_file_nothing_is_decided() {
    let seen = sight(vec![runs("a", &file(None, NEW))], Vec::new());
    assert!(!seen.open.is_empty() && seen.counted.is_none());
}

#[test]
fn two_keys_that_write_are_no_one_wish() {
    let two = "- resources: [configmaps]\n  providers:\n\
        \x20 - secretbox: {keys: [{name: b, secret: AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}\n";
    let both = || file(None, &format!("{NEW}{two}"));
    let seen = sight(vec![runs("a", &both())], vec![both()]);
    assert!(seen.observed.intent.paused && !seen.open.is_empty());
}

#[test]
fn a_census_is_no_proof_while_a_server_writes_otherwise() {
    let (old, new) = (file(Some("a"), OLD), file(None, NEW));
    let servers = vec![runs("a", &old), runs("b", &new)];
    let (mut survey, prefix) = (Survey::default(), "/registry/".to_owned());
    (survey.prefix, survey.live, survey.revision) = (prefix, 0, Some(1));
    let looked =
        Looked { at: 1, expected: Expected::Named, servers, files: vec![old, new], survey: Some(survey) };
    let seen = Sight::of(looked, Duration::ZERO);
    assert!(matches!(&seen.verdict.step, Step::Write(files) if files.len() == 1), "{:?}", seen.verdict.step);
}

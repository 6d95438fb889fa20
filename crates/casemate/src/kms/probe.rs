//! Everything that kube-apiserver relies on, tried once: each check passes, finds something, or can't tell.
use aws_lc_rs::rand;
use casemate_wire::kms_v2::limits::{self, CIPHERTEXT_MAX};
use casemate_wire::kms_v2::{EncryptResponse, StatusResponse};
use prost::bytes::Bytes;
use serde::Serialize;

use super::client::{CallError, Plugin};
use crate::output::{Exit, Failure};

/// What the checks gave, in the order in which they ran.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Finding,
    Unknown,
}

/// Runs all checks. Fails only if the system has no random bytes.
pub(super) async fn run(plugin: &mut Plugin) -> Result<Report, Failure> {
    let mut seed = [0; 32];
    rand::fill(&mut seed)
        .map_err(|_| Failure::new(Exit::Unknown, &"the system gives no random bytes; try again later"))?;
    let mut report = Report::default();
    let before = status(plugin, &mut report).await;
    let stored = encrypt(plugin, &mut report, &seed).await;
    let after = plugin.status().await.map(|(reply, _)| reply).ok();
    key_ids(&mut report, before.as_ref(), stored.as_ref(), after.as_ref());
    if let Some(stored) = stored {
        if decrypt(plugin, &mut report, &stored, &seed).await {
            wrong_input(plugin, &mut report, &stored, &seed).await;
        } else {
            report.unknown("wrong input", "not tried: the right input does not decrypt");
        }
    } else {
        report.unknown("decrypt", "not tried: nothing was encrypted");
    }
    match plugin.status().await {
        Ok(_) => report.pass("alive", "still answers Status"),
        Err(error) => report.failed("alive", &error),
    }
    Ok(report)
}

impl Report {
    pub(super) fn rows(&self) -> Vec<[String; 3]> {
        let rows = self.checks.iter().map(|check| {
            let verdict = match check.verdict {
                Verdict::Pass => "pass",
                Verdict::Finding => "FINDING",
                Verdict::Unknown => "unknown",
            };
            [verdict.to_owned(), check.check.to_owned(), check.detail.clone()]
        });
        rows.collect()
    }

    /// A finding outweighs all; what could not be told counts before what passed.
    pub(super) fn exit(&self) -> Exit {
        let any = |verdict| self.checks.iter().any(|check| check.verdict == verdict);
        match (any(Verdict::Finding), any(Verdict::Unknown), any(Verdict::Pass)) {
            (true, _, _) => Exit::No,
            (false, false, _) => Exit::Yes,
            (false, true, true) => Exit::Partly,
            (false, true, false) => Exit::Unknown,
        }
    }

    fn add(&mut self, check: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.checks.push(Check { check, verdict, detail: detail.into() });
    }

    fn pass(&mut self, check: &'static str, detail: impl Into<String>) {
        self.add(check, Verdict::Pass, detail);
    }

    fn finding(&mut self, check: &'static str, detail: impl Into<String>) {
        self.add(check, Verdict::Finding, detail);
    }

    fn unknown(&mut self, check: &'static str, detail: impl Into<String>) {
        self.add(check, Verdict::Unknown, detail);
    }

    /// A call that should have worked: an answer is a finding, silence tells nothing.
    fn failed(&mut self, check: &'static str, error: &CallError) {
        let verdict = if error.is_answer() { Verdict::Finding } else { Verdict::Unknown };
        self.add(check, verdict, error.to_string());
    }
}

async fn status(plugin: &mut Plugin, report: &mut Report) -> Option<StatusResponse> {
    match plugin.status().await {
        Ok((reply, _)) => {
            let problems = limits::check_status(&reply);
            if problems.is_empty() {
                report.pass("status", format!("version {}, key id {}", reply.version, reply.key_id));
            }
            for problem in problems {
                report.finding("status", problem.to_string());
            }
            Some(reply)
        }
        Err(error) => {
            report.failed("status", &error);
            None
        }
    }
}

async fn encrypt(plugin: &mut Plugin, report: &mut Report, seed: &[u8; 32]) -> Option<EncryptResponse> {
    let reply = match plugin.encrypt(seed.to_vec()).await {
        Ok(reply) => reply,
        Err(error) => {
            report.failed("encrypt", &error);
            return None;
        }
    };
    match limits::check_encrypt_response(&reply) {
        Ok(()) => {
            let annotations: usize =
                reply.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
            let ciphertext = reply.ciphertext.len();
            report.pass("encrypt", format!("ciphertext {ciphertext} bytes, annotations {annotations} bytes"));
        }
        Err(violation) => report.finding("encrypt", violation.to_string()),
    }
    let shows = |bytes: &Bytes| bytes.windows(seed.len()).any(|window| window == seed);
    if shows(&reply.ciphertext) || reply.annotations.values().any(shows) {
        report
            .finding("encrypted", "the reply holds the plaintext as it is: etcd would store it in the clear");
    } else {
        report.pass("encrypted", "the reply does not hold the plaintext");
    }
    Some(reply)
}

/// Status names the key that Encrypt uses. A rotation between two calls is lawful: then Status has caught up.
fn key_ids(
    report: &mut Report,
    before: Option<&StatusResponse>,
    stored: Option<&EncryptResponse>,
    after: Option<&StatusResponse>,
) {
    let (Some(before), Some(stored), Some(after)) = (before, stored, after) else {
        return report.unknown("key id", "not compared: Status or Encrypt gave none");
    };
    let used = &stored.key_id;
    if *used == before.key_id && *used == after.key_id {
        report.pass("key id", "the same in Status, Encrypt and Status");
    } else if *used == before.key_id || *used == after.key_id {
        report.unknown(
            "key id",
            format!(
                "changed from {} to {} while it was asked: a rotation, or it flaps; ask again",
                before.key_id, after.key_id
            ),
        );
    } else {
        report.finding(
            "key id",
            format!(
                "Status says {} and then {}, Encrypt used {used}: kube-apiserver drops such replies and stops writing \
                 after 3 minutes",
                before.key_id, after.key_id
            ),
        );
    }
}

async fn decrypt(
    plugin: &mut Plugin,
    report: &mut Report,
    stored: &EncryptResponse,
    seed: &[u8; 32],
) -> bool {
    match plugin.decrypt(stored.clone()).await {
        Ok(reply) if reply.plaintext[..] == seed[..] => {
            report.pass("decrypt", "gives back what was encrypted");
            true
        }
        Ok(reply) => {
            let found = reply.plaintext.len();
            report.finding(
                "decrypt",
                format!("gives back {found} other bytes than the 32 that were encrypted"),
            );
            false
        }
        Err(error) => {
            report.failed("decrypt", &error);
            false
        }
    }
}

async fn wrong_input(plugin: &mut Plugin, report: &mut Report, stored: &EncryptResponse, seed: &[u8; 32]) {
    for (check, wrong) in damaged(stored) {
        match plugin.decrypt(wrong).await {
            Ok(reply) if reply.plaintext[..] == seed[..] => {
                report.finding(
                    check,
                    "accepted, and the plaintext given: this part of the input is not checked",
                );
            }
            Ok(_) => {
                report.finding(check, "accepted, and other bytes given: the ciphertext is not authenticated")
            }
            Err(CallError::Refused { code, .. }) => report.pass(check, format!("refused ({code:?})")),
            Err(error) => report.failed(check, &error),
        }
    }
}

/// Each way in which a stored reply can be wrong, with its name.
fn damaged(stored: &EncryptResponse) -> Vec<(&'static str, EncryptResponse)> {
    let with_ciphertext =
        |ciphertext: Vec<u8>| EncryptResponse { ciphertext: ciphertext.into(), ..stored.clone() };
    let with_key_id = |key_id: String| EncryptResponse { key_id, ..stored.clone() };
    let flipped = |place: usize| with_ciphertext(flip(&stored.ciphertext, place));
    let len = stored.ciphertext.len();
    let mut all = vec![
        ("first bit flipped", flipped(0)),
        ("middle bit flipped", flipped(len / 2)),
        ("last bit flipped", flipped(len.saturating_sub(1))),
        ("ciphertext cut", with_ciphertext(stored.ciphertext[..len.saturating_sub(1)].to_vec())),
        ("ciphertext empty", with_ciphertext(Vec::new())),
        ("ciphertext too long", with_ciphertext(vec![0; CIPHERTEXT_MAX + 1])),
        ("key id empty", with_key_id(String::new())),
        ("key id of another key", with_key_id(format!("{}x", stored.key_id))),
        ("key id too long", with_key_id("x".repeat(limits::KEY_ID_MAX + 1))),
    ];
    if !stored.annotations.is_empty() {
        all.push((
            "annotations missing",
            EncryptResponse { annotations: Default::default(), ..stored.clone() },
        ));
        let mut wrong = stored.clone();
        for value in wrong.annotations.values_mut() {
            *value = flip(value, value.len() / 2).into();
        }
        all.push(("annotations flipped", wrong));
    }
    all
}

fn flip(bytes: &[u8], place: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(byte) = bytes.get_mut(place) {
        *byte ^= 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_outweighs_what_is_unknown_and_that_what_passed() {
        use Verdict::{Finding, Pass, Unknown};
        let cases: [(&[Verdict], Exit); 5] = [
            (&[Pass, Pass], Exit::Yes),
            (&[Pass, Unknown, Finding], Exit::No),
            (&[Unknown, Finding], Exit::No),
            (&[Pass, Unknown], Exit::Partly),
            (&[Unknown], Exit::Unknown),
        ];
        for (verdicts, exit) in cases {
            let mut report = Report::default();
            verdicts.iter().for_each(|verdict| report.add("check", *verdict, ""));
            assert_eq!(report.exit(), exit, "{verdicts:?}");
        }
    }
}

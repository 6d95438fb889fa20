//! What was found, in words: the sentence at the top, and what it rests on.
use casemate_census::answers::{MayGo, State, Verdict as Decided};
use casemate_report::table::grouped;
use casemate_report::{Tone, Verdict};

use super::super::answer::Answer;
use super::{Made, counted, sum, values};

/// Of all that was asked; where nothing was, of Secrets, which everybody would ask about.
pub(super) fn verdict(answer: &Answer, made: &Made) -> Verdict {
    let mut found: Vec<(Tone, String)> = Vec::new();
    found.extend(policy(answer));
    found.extend(configuration(answer));
    found.extend(answer.may_go.as_ref().map(may_go));
    found.extend(needs(answer, made));
    found.extend(closed(answer));
    let is_asked = !found.is_empty();
    if !is_asked {
        found.extend(secrets(answer));
    }
    found.extend(doubts(answer));
    let worst = found.iter().map(|(tone, _)| *tone).max().unwrap_or(Tone::Plain);
    let good = found.iter().filter(|(tone, _)| *tone == Tone::Good).count();
    let (headline, mut reasons) = if worst == Tone::Good && good > 1 {
        ("All that was asked is as it should be".to_owned(), found)
    } else {
        let place = found.iter().position(|(tone, _)| *tone == worst);
        let headline = place.map_or_else(|| "Nothing was read".to_owned(), |place| found.remove(place).1);
        (headline, found)
    };
    if is_asked && answer.files.len() > 1 {
        reasons.push((Tone::Plain, "Numbers of objects are those of all files together".to_owned()));
    }
    Verdict { tone: worst, headline, reasons }
}

fn policy(answer: &Answer) -> Option<(Tone, String)> {
    let kept: Vec<_> = answer.files.iter().filter_map(|file| file.policy.as_ref()).collect();
    if kept.is_empty() {
        return None;
    }
    let violations = kept.iter().flat_map(|kept| &kept.violations);
    let (live, past) = sum(violations.map(|one| (&one.live, &one.past)));
    let unclear: usize = kept.iter().map(|kept| kept.unclear.len()).sum();
    Some(if live + past > 0 {
        // Old revisions are told beside objects, whether the rule is about them or not.
        let found = if live > 0 { values(live, 0) } else { values(0, past) };
        (
            Tone::Bad,
            format!(
                "The policy is not kept: {found} {} not as it wants",
                if live.max(past) == 1 { "is" } else { "are" }
            ),
        )
    } else if unclear > 0 {
        (Tone::Open, "It can't be told whether the policy is kept".to_owned())
    } else {
        (Tone::Good, "The policy is kept".to_owned())
    })
}

fn configuration(answer: &Answer) -> Option<(Tone, String)> {
    answer.encryption_config.as_ref()?;
    let judged = || answer.files.iter().filter_map(|file| file.against.as_ref()).flatten();
    let of =
        |state: State| -> u64 { judged().filter(|one| one.state == state).map(|one| one.live.values).sum() };
    let (plain, unreadable, stale) = (of(State::Unencrypted), of(State::Unreadable), of(State::Stale));
    let mut parts = Vec::new();
    for (number, what) in [
        (plain, "in plaintext that should be encrypted"),
        (unreadable, "that no API server with this configuration can read"),
        (stale, "that a write would store in another way"),
    ] {
        if number > 0 {
            parts.push(format!("{} {what}", counted(number, "object", "objects")));
        }
    }
    Some(if !parts.is_empty() {
        (Tone::Bad, format!("Not all is stored as the EncryptionConfiguration says: {}", parts.join(", ")))
    } else if of(State::Undecided) > 0 {
        let number = counted(of(State::Undecided), "object", "objects");
        (
            Tone::Open,
            format!(
                "Of {number} it can't be told whether they are stored as the EncryptionConfiguration says"
            ),
        )
    } else {
        (Tone::Good, "Every object is stored as the EncryptionConfiguration says".to_owned())
    })
}

fn may_go(answer: &MayGo) -> (Tone, String) {
    let (live, past) = sum(answer.held_by.iter().map(|holder| (&holder.live, &holder.past)));
    match answer.verdict {
        Decided::Yes => (Tone::Good, format!("{} may go: nothing here is under it", answer.key)),
        Decided::Unknown => (Tone::Open, format!("It can't be told whether {} may go", answer.key)),
        Decided::No if live + past > 0 => {
            (Tone::Bad, format!("{} must stay: {} under it", answer.key, with_verb(live, past)))
        }
        Decided::No => (Tone::Bad, format!("{} must stay: API servers write with it", answer.key)),
    }
}

fn needs(answer: &Answer, made: &Made) -> Option<(Tone, String)> {
    let (holders, key) = (answer.needs.as_ref()?, made.needs.as_deref()?);
    let (live, past) = sum(holders.iter().map(|holder| (&holder.live, &holder.past)));
    Some(match live + past {
        0 if answer.needs_unclear.is_empty() => (Tone::Good, format!("Nothing is under {key}")),
        0 => (Tone::Open, format!("It can't be told whether something is under {key}")),
        _ => (Tone::Bad, format!("{} under {key}", with_verb(live, past))),
    })
}

fn closed(answer: &Answer) -> Option<(Tone, String)> {
    let closed: Vec<_> = answer.files.iter().filter_map(|file| file.closed.as_ref()).collect();
    if closed.is_empty() {
        return None;
    }
    let (live, past) = sum(closed.into_iter().flatten().map(|one| (&one.live, &one.past)));
    Some(match live + past {
        0 => (Tone::Good, "The keys that were given open all of it".to_owned()),
        _ => (Tone::Bad, format!("The keys that were given do not open {}", values(live, past))),
    })
}

/// Whether Secrets are encrypted, in any way.
fn secrets(answer: &Answer) -> Option<(Tone, String)> {
    let (mut all, mut plain, mut files) = (0, 0, 0);
    for file in &answer.files {
        let secrets = file.survey.groups.iter().filter(|entry| {
            entry.group.resource.name == "secrets" && entry.group.resource.group.as_deref() == Some("")
        });
        let before = plain;
        for entry in secrets {
            all += entry.live.values;
            plain += if entry.group.encryption.is_plain() { entry.live.values } else { 0 };
        }
        files += u64::from(plain > before);
    }
    match (answer.files.len() as u64, all, plain) {
        (0, ..) => None,
        (_, 0, _) => Some((Tone::Plain, "There is no Secret".to_owned())),
        (1, 1, 0) => Some((Tone::Good, "The one Secret is encrypted".to_owned())),
        (1, all, 0) => Some((Tone::Good, format!("All {} Secrets are encrypted", grouped(all)))),
        (1, all, plain) => {
            let (secrets, verb) = (counted(all, "Secret", "Secrets"), if plain == 1 { "is" } else { "are" });
            Some((Tone::Bad, format!("{} of {secrets} {verb} stored in plaintext", grouped(plain))))
        }
        (_, _, 0) => Some((Tone::Good, "The Secrets of every file are encrypted".to_owned())),
        (all, ..) => Some((
            Tone::Bad,
            format!("{} of {} files hold Secrets in plaintext", grouped(files), grouped(all)),
        )),
    }
}

/// As in `1 object is`.
fn with_verb(live: u64, past: u64) -> String {
    format!("{} {}", values(live, past), if live + past == 1 { "is" } else { "are" })
}

fn doubts(answer: &Answer) -> Vec<(Tone, String)> {
    let mut doubts = Vec::new();
    if !answer.failed.is_empty() {
        let failed = counted(answer.failed.len() as u64, "file", "files");
        doubts.push((Tone::Open, format!("{failed} could not be read")));
    }
    let ungrouped: u64 = answer.files.iter().map(|file| file.survey.ungrouped).sum();
    if ungrouped > 0 {
        let values = counted(ungrouped, "value was", "values were");
        doubts.push((Tone::Open, format!("{values} of too many kinds to be told apart")));
    }
    if answer.files.iter().any(|file| !file.survey.unseen.is_empty()) {
        doubts.push((Tone::Open, "Not all could be looked at: see what is left open".to_owned()));
    }
    for file in answer.files.iter().filter(|file| file.survey.looked_elsewhere()) {
        doubts.push((Tone::Open, format!("Nothing is below {} in {}", file.survey.prefix, file.file)));
    }
    let broken = answer.files.iter().flat_map(|file| &file.survey.groups);
    let broken = broken.filter(|entry| entry.group.encryption.is_broken());
    let (live, past) = sum(broken.map(|entry| (&entry.live, &entry.past)));
    if live + past > 0 {
        doubts.push((
            Tone::Bad,
            format!("{} damaged: nobody can read that with any key", with_verb(live, past)),
        ));
    }
    doubts
}

//! The answer for people: 80 columns, without colour. Pure.
use std::fmt::Write as _;

use super::answer::{Answer, Phase, ServerAnswer};

/// What fits in a line.
const WIDTH: usize = 80;
/// How long the bar is.
const BAR: usize = 40;

/// All of it.
pub(super) fn page(answer: &Answer) -> String {
    let mut page = String::new();
    let phase = phase(answer);
    let title =
        answer.write_key.as_deref().map_or("Encryption".to_owned(), |key| format!("Written with {key}"));
    let title = cut(&title, WIDTH - phase.chars().count() - 2);
    // Writing to a String can't fail.
    let _ = writeln!(page, "{title}{phase:>width$}", width = WIDTH - title.chars().count());
    let _ = writeln!(page);
    if let (Some(percent), Some(current), Some(objects)) = (answer.percent, answer.current, answer.objects) {
        let full = usize::try_from(percent).unwrap_or_default().min(100) * BAR / 100;
        let bar = "█".repeat(full) + &"░".repeat(BAR - full);
        let _ = writeln!(page, "{percent:>4} %  {bar}  {current} of {objects} objects");
        if let Some(seconds) = answer.eta_seconds {
            let at = match answer.rate {
                Some(rate) => format!("at {rate} objects a second"),
                None => "at 300 objects a second, which is a guess".to_owned(),
            };
            let _ = writeln!(page, "        about {} left, {at}", time(seconds));
        }
        let _ = writeln!(page);
    }
    wrapped(&mut page, "next  ", &answer.says);
    entries(&mut page, answer);
    servers(&mut page, answer);
    if !answer.held.is_empty() {
        let _ = writeln!(page, "\nSTILL READ, BECAUSE OF");
        for held in &answer.held {
            wrapped(&mut page, "  ", &held.key);
            for by in &held.by {
                wrapped(&mut page, "    - ", by);
            }
        }
    }
    if !answer.unreadable.is_empty() {
        let _ = writeln!(page, "\nNO FILE HAS A KEY FOR");
        for stored in &answer.unreadable {
            wrapped(&mut page, "  ", &format!("{} objects, {}", stored.objects, stored.under));
        }
    }
    if !answer.open.is_empty() {
        let _ = writeln!(page, "\nNOT SEEN");
        for open in &answer.open {
            wrapped(&mut page, "  - ", open);
        }
    }
    page
}

fn entries(page: &mut String, answer: &Answer) {
    for entry in answer.entries.iter().filter(|entry| !entry.stored.is_empty()) {
        let _ = writeln!(page);
        wrapped(page, "", &format!("STORED: {}", entry.resources));
        // Where there are old revisions only, they are told with what they hold.
        for stored in entry.stored.iter().filter(|stored| stored.objects > 0) {
            let mark = if stored.is_current { '+' } else { ' ' };
            let _ = writeln!(page, "{:>9} {mark} {}", stored.objects, cut(&stored.under, WIDTH - 12));
            if let Some(key_id) = &stored.key_id {
                let _ = writeln!(page, "            key id {}", cut(key_id, WIDTH - 19));
            }
        }
    }
    if answer.entries.iter().any(|entry| !entry.stored.is_empty()) {
        let _ = writeln!(page, "          + as it is written now");
    }
}

fn servers(page: &mut String, answer: &Answer) {
    let by = match answer.servers_by.as_str() {
        "leases" => " (that keep an identity Lease)",
        "endpoints" => " (endpoints of the Service kubernetes)",
        _ => "",
    };
    let _ = writeln!(page, "\nAPI SERVERS{by}");
    let longest = answer.servers.iter().map(|server| server.server.chars().count()).max().unwrap_or_default();
    let width = longest.clamp(6, 36);
    for server in &answer.servers {
        let ServerAnswer { server: name, loaded, key_ids, lag, .. } = server;
        let loaded = loaded.as_deref().map_or("?".to_owned(), short);
        let ids: Vec<String> =
            key_ids.iter().map(|id| format!("{} {}", id.provider, short(&id.hash))).collect();
        let ids = if ids.is_empty() { String::new() } else { format!("  key id: {}", ids.join(", ")) };
        let state = if lag.is_none() { "ok" } else { "--" };
        let line = format!("  {:width$}  {state}  loaded {loaded:8}{ids}", cut(name, width));
        let _ = writeln!(page, "{}", cut(line.trim_end(), WIDTH));
        if let Some(lag) = lag {
            wrapped(page, "      ", lag);
        }
    }
}

fn phase(answer: &Answer) -> &'static str {
    match answer.phase {
        Phase::Done => "DONE",
        Phase::Write => "FILES TO WRITE",
        Phase::Wait => "WAITING",
        // Whether somebody does it is seen from its going on.
        Phase::Migrate if answer.rate.is_some() => "MIGRATING",
        Phase::Migrate => "TO MIGRATE",
        Phase::Prove => "PROVING",
        Phase::NewKey => "NEW KEY",
        Phase::Approve => "TO APPROVE",
        Phase::Unknown => "CAN'T TELL",
    }
}

/// The first digits of a hash.
fn short(hash: &str) -> String {
    hash.strip_prefix("sha256:").unwrap_or(hash).chars().take(8).collect()
}

fn time(seconds: u64) -> String {
    match seconds {
        0..=90 => format!("{seconds} s"),
        91..=5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// At most so many characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Words, in lines that begin below each other.
fn wrapped(page: &mut String, begin: &str, text: &str) {
    let indent = begin.chars().count();
    let mut line = begin.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let word = cut(word, WIDTH - indent);
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(page, "{line}");
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    let _ = writeln!(page, "{line}");
}

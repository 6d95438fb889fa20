//! Two configurations as a unified diff, without their keys. Pure.
use std::fmt::Write as _;

use casemate_encryption_config::{EncryptionConfiguration, KeyBytes, LocalKey, Provider, file_hash};
use zeroize::Zeroizing;

use crate::cluster::keys::NOT_MADE;

/// How many lines around what differs are shown.
const AROUND: usize = 3;

/// Nothing, if they say the same.
pub(super) fn diff(name: &str, old: &EncryptionConfiguration, new: &EncryptionConfiguration) -> String {
    let (old, new) = (text(old), text(new));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let lines = lines(&old, &new);
    let mut diff = String::new();
    let mut shown = 0;
    for (place, _) in lines.iter().enumerate().filter(|(_, line)| line.mark != ' ') {
        if place < shown {
            continue;
        }
        let begin = place.saturating_sub(AROUND).max(shown);
        // As far as the next difference is near.
        let mut end = place + 1;
        while let Some(next) = (end..lines.len()).find(|at| lines[*at].mark != ' ') {
            if next > end + 2 * AROUND {
                break;
            }
            end = next + 1;
        }
        let end = (end + AROUND).min(lines.len());
        let hunk = &lines[begin..end];
        let count = |without: char| hunk.iter().filter(|line| line.mark != without).count();
        if diff.is_empty() {
            // Writing to a String can't fail.
            let _ = writeln!(diff, "--- {name} now\n+++ {name} then");
        }
        let (first_old, first_new) = (hunk[0].old, hunk[0].new);
        let start = |first: usize, count: usize| if count == 0 { first } else { first + 1 };
        let (olds, news) = (count('+'), count('-'));
        let _ = writeln!(diff, "@@ -{},{olds} +{},{news} @@", start(first_old, olds), start(first_new, news));
        for line in hunk {
            let _ = writeln!(diff, "{}{}", line.mark, line.text);
        }
        shown = end;
    }
    diff
}

/// A line of both, or of one, and how many lines of each are before it.
struct Line<'a> {
    mark: char,
    text: &'a str,
    old: usize,
    new: usize,
}

/// By the longest common part. Files are of some dozen lines.
fn lines<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        let (before_old, before_new) = (i, j);
        let (mark, text) = if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
            (' ', old[i - 1])
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            i += 1;
            ('-', old[i - 1])
        } else {
            j += 1;
            ('+', new[j - 1])
        };
        lines.push(Line { mark, text, old: before_old, new: before_new });
    }
    lines
}

/// The file, in which no key ever stands: what is rendered has fingerprints in their places.
fn text(configuration: &EncryptionConfiguration) -> String {
    const SECRET: &str = "        secret: ";
    let mut fingerprints = Vec::new();
    let mut shown = configuration.clone();
    for provider in shown.entries.iter_mut().flat_map(|entry| &mut entry.providers) {
        let (Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys)) = provider else {
            continue;
        };
        for LocalKey { secret, .. } in keys {
            fingerprints.push(match secret.expose() == NOT_MADE {
                true => "not made yet".to_owned(),
                false => {
                    let hash = file_hash(secret.expose());
                    format!("not shown, sha256 {}", hash.get(7..15).unwrap_or_default())
                }
            });
            *secret = KeyBytes::new(Zeroizing::new(Vec::new()));
        }
    }
    let mut fingerprints = fingerprints.into_iter();
    let mut text = String::new();
    for line in shown.to_yaml().lines() {
        match line.starts_with(SECRET) {
            true => {
                let _ = writeln!(text, "{SECRET}({})", fingerprints.next().unwrap_or_default());
            }
            false => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use casemate_encryption_config::ServerFlags;

    use super::*;

    fn read(providers: &str) -> EncryptionConfiguration {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n{providers}"
        );
        EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap()
    }

    #[test]
    fn no_key_is_in_a_diff() {
        let old = "  - identity: {}\n";
        let new = "  - aescbc: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}\n  - identity: {}\n";
        let diff = diff("a", &read(old), &read(new));
        assert_eq!(
            diff,
            "--- a now\n+++ a then\n@@ -4,4 +4,8 @@\n - resources:\n   - \"secrets\"\n   providers:\n\
             +  - aescbc:\n+      keys:\n+      - name: \"k\"\n+        secret: (not shown, sha256 be45cb26)\n   - identity: {}\n"
        );
        assert!(!diff.contains("AAEC"));
    }

    #[test]
    fn the_same_is_nothing_and_what_is_far_apart_is_two_pieces() {
        let same = read("  - identity: {}\n");
        assert_eq!(diff("a", &same, &same), "");
        let lines = |changed: &[usize]| -> Vec<String> {
            (0..30).map(|at| if changed.contains(&at) { format!("x{at}") } else { at.to_string() }).collect()
        };
        let (old, new) = (lines(&[]), lines(&[2, 25]));
        let (old, new): (Vec<&str>, Vec<&str>) =
            (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
        let marks: String = super::lines(&old, &new).iter().map(|line| line.mark).collect();
        assert_eq!(marks.matches("-+").count(), 2, "{marks}");
        assert_eq!(marks.len(), 32);
    }
}

//! Which of a root key's versions writes: one pure function for all kinds.

use std::fmt;

/// One version of a root key, as its service shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Candidate {
    /// What the admin knows it by: a number, an id.
    pub version: String,
    /// The labels that it carries: alias, tag, CKA_LABEL.
    pub labels: Vec<String>,
    /// Whether the service calls it the current one.
    pub current: bool,
    /// Why it can't write, if it can't.
    pub disabled: Option<String>,
}

/// What the configuration says about which version writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// What the service calls current.
    Latest,
    /// This version, whatever the service says.
    Pinned(String),
    /// The one that carries this label.
    Label(String),
}

/// The service is well, and its versions don't say which one writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} {selection}; there {}", listed(candidates))]
pub struct Undecided {
    /// What was looked for.
    pub selection: Selection,
    /// What is wrong with what was found.
    pub why: Why,
    /// All versions that there are.
    pub candidates: Vec<Candidate>,
}

/// How a selection fits no version, or too many.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// None.
    None,
    /// Several: these.
    Several(Vec<String>),
    /// One, and it can't write.
    Disabled {
        /// Which one.
        version: String,
        /// Why it can't.
        reason: String,
    },
}

/// The place in `candidates` of the version that writes. Of several that fit, those that can't write don't count: a
/// label that was moved to a new version may still be on the old, disabled one.
///
/// # Errors
/// [`Undecided`]: none fits, several do, or the only one can't write.
pub fn choose(candidates: &[Candidate], selection: &Selection) -> Result<usize, Undecided> {
    let undecided =
        |why| Err(Undecided { selection: selection.clone(), why, candidates: candidates.to_vec() });
    let fits = |candidate: &Candidate| match selection {
        Selection::Latest => candidate.current,
        Selection::Pinned(version) => candidate.version == *version,
        Selection::Label(label) => candidate.labels.contains(label),
    };
    let fitting: Vec<(usize, &Candidate)> =
        candidates.iter().enumerate().filter(|(_, candidate)| fits(candidate)).collect();
    let mut writing = fitting.iter().filter(|(_, candidate)| candidate.disabled.is_none());
    match (writing.next(), writing.next(), &fitting[..]) {
        (Some((place, _)), None, _) => Ok(*place),
        (Some(_), Some(_), _) => {
            let enabled = fitting.iter().filter(|(_, candidate)| candidate.disabled.is_none());
            undecided(Why::Several(enabled.map(|(_, candidate)| candidate.version.clone()).collect()))
        }
        (None, _, [(_, only), ..]) => undecided(Why::Disabled {
            version: only.version.clone(),
            reason: only.disabled.clone().unwrap_or_default(),
        }),
        (None, _, []) => undecided(Why::None),
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Pinned(version) => write!(f, "pinned version {version}"),
            Self::Label(label) => write!(f, "label {label:?}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no version fits"),
            Self::Several(versions) => write!(f, "versions {} all fit", versions.join(", ")),
            Self::Disabled { version, reason } => {
                write!(f, "version {version} is disabled ({reason}), and no other fits")
            }
        }
    }
}

fn listed(candidates: &[Candidate]) -> String {
    if candidates.is_empty() {
        return "is no version at all".into();
    }
    let one = |candidate: &Candidate| {
        let mut marks: Vec<String> =
            candidate.labels.iter().map(|label| format!("label {label:?}")).collect();
        if candidate.current {
            marks.push("current".into());
        }
        if let Some(reason) = &candidate.disabled {
            marks.push(format!("disabled: {reason}"));
        }
        let marks = if marks.is_empty() { "no label".into() } else { marks.join(", ") };
        format!("{} ({marks})", candidate.version)
    };
    format!("are {}", candidates.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(version: &str, labels: &[&str]) -> Candidate {
        let labels = labels.iter().map(|label| label.to_string()).collect();
        Candidate { version: version.into(), labels, current: false, disabled: None }
    }

    fn disabled(candidate: Candidate) -> Candidate {
        Candidate { disabled: Some("CKA_ENCRYPT is false".into()), ..candidate }
    }

    #[test]
    fn exactly_one_that_can_write_is_chosen() {
        let two = || vec![candidate("1", &["old"]), candidate("2", &["write"])];
        let label = Selection::Label("write".into());
        let mut current = two();
        current[0].current = true;
        let moved = vec![disabled(candidate("1", &["write"])), candidate("2", &["write"])];
        for (candidates, selection, chosen) in [
            (two(), label.clone(), 1),
            (two(), Selection::Pinned("1".into()), 0),
            (current, Selection::Latest, 0),
            (moved, label, 1),
        ] {
            assert_eq!(choose(&candidates, &selection), Ok(chosen), "{selection}");
        }
    }

    #[test]
    fn none_several_and_disabled_list_all_there_is() {
        let label = || Selection::Label("write".into());
        let unlabelled = || vec![candidate("1", &["old"]), candidate("2", &[])];
        let several = vec![candidate("1", &["write"]), candidate("2", &["write"]), candidate("3", &[])];
        for (candidates, selection, said) in [
            (vec![], label(), "no version fits label \"write\"; there is no version at all"),
            (
                unlabelled(),
                label(),
                "no version fits label \"write\"; there are 1 (label \"old\"), 2 (no label)",
            ),
            (
                unlabelled(),
                Selection::Latest,
                "no version fits latest; there are 1 (label \"old\"), 2 (no label)",
            ),
            (
                several,
                label(),
                "versions 1, 2 all fit label \"write\"; there are 1 (label \"write\"), 2 (label \"write\"), 3 (no label)",
            ),
            (
                vec![disabled(candidate("1", &["write"]))],
                label(),
                "version 1 is disabled (CKA_ENCRYPT is false), and no other fits label \"write\"; \
                 there are 1 (label \"write\", disabled: CKA_ENCRYPT is false)",
            ),
        ] {
            assert_eq!(choose(&candidates, &selection).unwrap_err().to_string(), said);
        }
    }
}

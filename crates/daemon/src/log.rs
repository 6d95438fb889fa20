//! Log lines on stderr, where systemd and the kubelet collect them.

mod harmless;

use std::env;
use std::io::{IsTerminal, stderr};

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::harmless::Harmless;

/// The environment variable with a filter: a level, or `target=level` for a crate or module, or several of these with
/// commas between them, like `info,h2=debug`.
pub const FILTER: &str = "CASEMATE_LOG";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For programs: one JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Starts to log, at level `info` unless [`FILTER`] says otherwise. To be called once.
pub fn start(form: Form) {
    let (filter, refused) = filter(env::var(FILTER).ok().as_deref());
    let lines = tracing_subscriber::fmt::layer().with_target(false);
    let lines = match form {
        Form::Json => lines.json().with_writer(|| Harmless(stderr())).boxed(),
        Form::Text => lines.with_writer(stderr).with_ansi(stderr().is_terminal()).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    if let Some(refused) = refused {
        tracing::warn!("{refused}");
    }
}

/// The filter that a text asks for, or that of level `info` and what was wrong with the text.
///
/// Not the crate's `EnvFilter`, which also filters by a span's fields: its regular expressions are half a MiB of program.
fn filter(text: Option<&str>) -> (Targets, Option<String>) {
    let usual = || Targets::new().with_default(Level::INFO);
    match text.filter(|text| !text.trim().is_empty()).map(str::parse::<Targets>) {
        None => (usual(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (
            usual(),
            Some(format!(
                "{FILTER} is not a filter ({error}), so level info is logged: write a level (error, warn, info, debug, \
                 trace, off), or target=level, or several of them with commas, like info,h2=debug"
            )),
        ),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_is_a_level_or_targets_with_levels() {
        let shows = |text: Option<&str>, target: &str, level| filter(text).0.would_enable(target, &level);
        for (text, target, level, shown) in [
            (None, "casemate_kms", Level::INFO, true),
            (None, "casemate_kms", Level::DEBUG, false),
            (Some(""), "casemate_kms", Level::INFO, true),
            (Some("debug"), "casemate_kms", Level::DEBUG, true),
            (Some("warn,h2=debug"), "casemate_kms", Level::INFO, false),
            (Some("warn,h2=debug"), "h2::proto", Level::DEBUG, true),
            (Some("off"), "casemate_kms", Level::ERROR, false),
        ] {
            assert_eq!(shows(text, target, level), shown, "{text:?} {target} {level}");
            assert_eq!(filter(text).1, None, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_filter_is_said_and_the_usual_is_shown() {
        let (shown, refused) = filter(Some("info,h2=loud"));
        assert!(shown.would_enable("casemate_kms", &Level::INFO));
        assert!(refused.is_some_and(|refused| refused.contains("target=level")));
    }
}

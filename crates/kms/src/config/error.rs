//! What can be wrong with a configuration: file, line, field, what was found, what is accepted.

use std::path::{Path, PathBuf};

/// A configuration that is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such file, or no permission.
    #[error("{}: can't be read: {source}; name the file with --config", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// More than a configuration can be.
    #[error("{}: has {length} bytes; a configuration has at most 1 MiB", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its length.
        length: u64,
    },
    /// Not YAML, or a field that is not of its form.
    #[error("{}:{line}:{column}: {}{message}", path.display(), field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// The field on that line, if there is one.
        field: Option<String>,
        /// What was found and what is accepted.
        message: String,
    },
    /// A field that does not go with another one.
    #[error("{}:{line}: {field}: {message}", path.display())]
    Unfit {
        /// Which file.
        path: PathBuf,
        /// Where it stands.
        line: u64,
        /// Which field.
        field: &'static str,
        /// What does not fit, and what is accepted.
        message: String,
    },
    /// Two of what there may be only one of.
    #[error("{}:{line}: {field}: {found:?} stands in line {first} already; each needs its own", path.display())]
    Twice {
        /// Which file.
        path: PathBuf,
        /// Where the second one stands.
        line: u64,
        /// Which field.
        field: &'static str,
        /// The doubled one.
        found: String,
        /// Where the first one stands.
        first: u64,
    },
}

impl ConfigError {
    /// `before` is what could be read.
    pub(super) fn not_text(path: &Path, before: &[u8]) -> Self {
        let mut lines = before.split(|byte| *byte == b'\n').rev();
        let column = lines.next().map_or(0, <[u8]>::len) as u64 + 1;
        let message = "found a byte that is no UTF-8; a configuration is YAML in UTF-8".into();
        Self::Malformed {
            path: path.to_owned(),
            line: lines.count() as u64 + 1,
            column,
            field: None,
            message,
        }
    }

    pub(super) fn of_yaml(path: &Path, text: &str, error: &serde_saphyr::Error) -> Self {
        let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
        let field = usize::try_from(line)
            .ok()
            .and_then(|line| text.lines().nth(line.saturating_sub(1)))
            .and_then(field_of_line);
        let message = error.without_snippet().to_string();
        // The library repeats the place at the end of its message.
        let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
        // The place of what is missing is the end of what is there: another field.
        let field = field.filter(|_| !message.starts_with("missing field"));
        Self::Malformed { path: path.to_owned(), line, column, field, message }
    }
}

/// `endpoint` of `  - endpoint: unix://…`.
fn field_of_line(line: &str) -> Option<String> {
    let (key, _) = line.trim_start_matches([' ', '-']).split_once(':')?;
    let word = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
    word.then(|| key.to_owned())
}

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
    /// Two of what there may be only one of.
    #[error("{}: {what} {name:?} is there twice; each needs its own", path.display())]
    Twice {
        /// Which file.
        path: PathBuf,
        /// Provider, endpoint or key id.
        what: &'static str,
        /// The doubled one.
        name: String,
    },
    /// A state directory that depends on where the daemon is started.
    #[error("{}: stateDirectory: found {found:?}; the path must be absolute", path.display())]
    RelativeStateDirectory {
        /// Which file.
        path: PathBuf,
        /// What stands there.
        found: String,
    },
    /// More root keys than a record holds.
    #[error("{}: provider {provider:?} has {found} rootKeys; at most 4 are accepted", path.display())]
    TooManyRootKeys {
        /// Which file.
        path: PathBuf,
        /// Which provider.
        provider: String,
        /// How many.
        found: usize,
    },
}

impl ConfigError {
    pub(super) fn of_yaml(path: &Path, text: &str, error: &serde_saphyr::Error) -> Self {
        let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
        let field = usize::try_from(line)
            .ok()
            .and_then(|line| text.lines().nth(line.saturating_sub(1)))
            .and_then(field_of_line);
        let message = error.without_snippet().to_string();
        // The library repeats the place at the end of its message.
        let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
        Self::Malformed { path: path.to_owned(), line, column, field, message }
    }
}

/// `endpoint` of `  - endpoint: unix://…`.
fn field_of_line(line: &str) -> Option<String> {
    let (key, _) = line.trim_start_matches([' ', '-']).split_once(':')?;
    let word = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
    word.then(|| key.to_owned())
}

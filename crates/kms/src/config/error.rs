//! What can be wrong with a configuration: file, line, field, what was found, what is accepted.

use std::path::{Path, PathBuf};

use super::misplaced::belongs;

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
    /// Others than root and the user of this program could change it.
    #[error(
        "{}: {} {found}: whoever can write it decides which keys protect the cluster; {remedy}",
        path.display(), entry.display()
    )]
    OthersWrite {
        /// Which file.
        path: PathBuf,
        /// What they could write: the file, a link to it, or a folder that it is found in.
        entry: PathBuf,
        /// Its mode or owner.
        found: String,
        /// What to do.
        remedy: String,
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
        let message = message.split(" at line ").next().unwrap_or(&message);
        let mut message = plain(message, text, line);
        if let Some(place) = unknown_name(error).and_then(belongs) {
            message = format!("{message}; {place}");
        }
        // The place of what is missing is the end of what is there: another field.
        let field = field.filter(|_| !message.starts_with("missing field"));
        Self::Malformed { path: path.to_owned(), line, column, field, message }
    }
}

/// The field that is not known where it stands.
fn unknown_name(error: &serde_saphyr::Error) -> Option<&str> {
    use serde_saphyr::Error::{SerdeUnknownField, SerdeUnknownVariant};
    match error.without_snippet() {
        SerdeUnknownField { field: name, .. } | SerdeUnknownVariant { variant: name, .. } => Some(name),
        _ => None,
    }
}

/// The library's message in words of the configuration.
fn plain(message: &str, text: &str, line: u64) -> String {
    let found = || {
        let line =
            text.lines().nth(usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1)).unwrap_or("");
        line.split_once(':').map_or("", |(_, value)| value).trim().chars().take(80).collect::<String>()
    };
    if text.trim().is_empty() {
        return "the file is empty; docs/reference/kms-config.md has an example".into();
    }
    if let Some(tabbed) = text.lines().position(|line| line.trim_start_matches(' ').starts_with('\t')) {
        return format!("line {} is indented with a tab; YAML is indented with spaces", tabbed + 1);
    }
    if let Some(rest) = message.strip_prefix("duplicate mapping key: ") {
        let name = rest.split(',').next().unwrap_or(rest);
        return format!("{name} is there twice; keep one");
    }
    if message.starts_with("invalid u64") || message.starts_with("invalid u32") {
        return format!("found {:?}; a whole number from 0 is accepted", found());
    }
    if message.contains("expected sequence start") {
        return "a list is expected here: begin each item with `- `".into();
    }
    if message.contains("expected mapping start") {
        return "fields are expected here, each as `name: value` on a line of its own".into();
    }
    if let Some(name) = message.strip_prefix("missing field ").map(|name| name.trim_matches('`'))
        && let Some(shallow) = less_deep_than_its_item(text, name)
    {
        return format!(
            "missing field `{name}`; line {shallow} has one that is indented less than the fields of its item: it must \
             stand as deep as they do",
        );
    }
    message.to_owned()
}

/// The line, from 1, of a field that stands less deep than the first field of the list item above it: what comes
/// of pasting at the start of a line.
fn less_deep_than_its_item(text: &str, name: &str) -> Option<usize> {
    let depth = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    let mut item = None;
    for (index, line) in text.lines().enumerate() {
        if field_of_line(line).is_some_and(|field| field == name)
            && item.is_some_and(|item| depth(line) < item)
        {
            return Some(index + 1);
        }
        if line.trim_start().starts_with("- ") {
            item = Some(item.map_or(depth(line), |item: usize| item.min(depth(line))));
        }
    }
    None
}

/// `endpoint` of `  - endpoint: unix://…`.
fn field_of_line(line: &str) -> Option<String> {
    let (key, _) = line.trim_start_matches([' ', '-']).split_once(':')?;
    let word = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
    word.then(|| key.to_owned())
}

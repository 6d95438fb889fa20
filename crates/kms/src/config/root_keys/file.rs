//! A root key in a file.

use casemate_keys::Algorithm;
use casemate_keyservice::RootKey;
use casemate_keyservice::file::{FileKey, FileKeyId, Selection};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Identity, VersionSelection};
use crate::config::{AbsolutePath, Parsed};

/// A key file (`casemate key new`).
#[derive(Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileConfig {
    /// Where it is delivered to. Absolute.
    pub path: Parsed<AbsolutePath>,
    /// Its id, as `casemate key new` and `casemate key list` print it. A file with another id is refused.
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{32}$"))]
    pub id: Parsed<FileKeyId>,
}

/// A key file that is not read any more.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovedFileConfig {
    /// Its id.
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{32}$"))]
    pub id: Parsed<FileKeyId>,
}

impl FileConfig {
    pub(super) const ALGORITHM: Algorithm = Algorithm::FILE_AES256_GCM;

    pub(super) fn key(&self, version: VersionSelection) -> Box<dyn RootKey> {
        let selection = match version {
            VersionSelection::Pinned(number) => Selection::Pinned(number),
            // A label is refused before.
            VersionSelection::Latest | VersionSelection::Label => Selection::Latest,
        };
        Box::new(FileKey::new(&self.path.0.0, self.id.0, selection))
    }

    pub(super) fn identity(&self) -> Identity {
        Identity { key: self.id.prefix(), field: "id", line: self.id.line() }
    }
}

impl RemovedFileConfig {
    pub(super) fn identity(&self) -> Identity {
        Identity { key: self.id.prefix(), field: "id", line: self.id.line() }
    }
}

//! What of the file system a configuration names: all that a process which serves it may use.

use std::path::{Path, PathBuf};

use casemate_daemon::confine::Folders;

use super::{Config, Place, ProviderConfig, SealedCacheConfig, SignerConfig};

impl Config {
    /// The folders of all that it names, and of itself in `file`.
    pub fn folders(&self, file: &Path) -> Folders {
        let read = self.files(file);
        let folders = read.iter().fold(Folders::default(), |folders, file| folders.read_beside(file));
        let mut folders = folders.state(&**self.state_directory);
        if let Some(audit) = &self.audit {
            // Rotated files and what is set aside stand beside the log.
            folders = folders.state(audit.path.parent().unwrap_or(&audit.path));
        }
        let places = self.providers.iter().flat_map(ProviderConfig::places);
        let folders = places.fold(folders, |folders, place| place.needs(folders));
        self.sockets().fold(folders, Folders::socket)
    }

    /// The files of its sockets.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        let endpoints = self.providers.iter().map(|provider| &provider.endpoint);
        endpoints.chain(self.admin.as_ref().map(|admin| &admin.endpoint)).filter_map(|one| one.path())
    }

    /// The files that it names to be read, and its own, `file`.
    pub fn files(&self, file: &Path) -> Vec<PathBuf> {
        let mut files = vec![file.to_owned()];
        files.extend(
            self.audit.iter().filter_map(|audit| Some(audit.checkpoint_key.as_ref()?.path.to_path_buf())),
        );
        for provider in &self.providers {
            files.extend(provider.places().flat_map(Place::files));
            files.extend(provider.signer.iter().flat_map(SignerConfig::files));
            let protection = provider.sealed_cache.as_ref().and_then(SealedCacheConfig::protection);
            files.extend(protection.map(|protection| protection.path().to_owned()));
        }
        files
    }
}

//! Who else can write the file of a configuration: whoever can decides which keys protect a cluster, and who is served.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::ConfigError;

/// As many links are followed as the kernel follows.
const MOST_LINKS: usize = 40;

/// Nobody but root, this user and `owner` can change what stands at `path`: the file, links to it, and all folders in which
/// one of them is looked up. In a sticky folder others can't replace what is not theirs, and on a mount that is read-only
/// (as the kubelet's, of folders that everybody may write) nobody can.
///
/// # Errors
/// [`ConfigError::OthersWrite`], with what is to be done; [`ConfigError::Unreadable`].
pub(super) fn only_ours(path: &Path, owner: Option<u32>) -> Result<(), ConfigError> {
    let trusted = [Some(0), Some(geteuid().as_raw()), owner];
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    for (entry, found) in on_the_way(path).map_err(unreadable)? {
        let refused = |found: String, remedy: String| {
            Err(ConfigError::OthersWrite { path: path.to_owned(), entry: entry.clone(), found, remedy })
        };
        if !trusted.contains(&Some(found.uid())) {
            let remedy = format!("chown -h root {}", entry.display());
            return refused(format!("is owned by user {}", found.uid()), remedy);
        }
        let mode = found.mode() & 0o7777;
        let is_sticky = found.is_dir() && mode & 0o1000 != 0;
        if found.is_symlink() || mode & 0o022 == 0 || is_sticky {
            continue;
        }
        // A confined process can ask nothing else about a mount.
        if access(&entry, Access::WRITE_OK) != Err(Errno::ROFS) {
            return refused(format!("has mode {mode:04o}"), format!("chmod go-w {}", entry.display()));
        }
    }
    Ok(())
}

/// Each folder, link and file by which `path` is found, in that order.
fn on_the_way(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut way = Vec::new();
    let mut add = |at: &Path| -> io::Result<Metadata> {
        let found = fs::symlink_metadata(at)?;
        way.push((at.to_owned(), found.clone()));
        Ok(found)
    };
    let mut at = PathBuf::from("/");
    let mut left = names(&std::path::absolute(path)?);
    let mut links = 0;
    add(&at)?;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        if !add(&next)?.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names(&target));
    }
    Ok(way)
}

/// The last one first.
fn names(path: &Path) -> Vec<OsString> {
    let named = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A file as the kubelet delivers it, `etc/config.yaml`, with modes that no umask has a say in.
    fn delivered() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let etc = folder.path().canonicalize().unwrap().join("etc");
        fs::create_dir_all(etc.join("..day")).unwrap();
        fs::write(etc.join("..day/config.yaml"), "").unwrap();
        symlink("..day", etc.join("..data")).unwrap();
        symlink("..data/config.yaml", etc.join("config.yaml")).unwrap();
        for (entry, mode) in [("", 0o755), ("..day", 0o755), ("..day/config.yaml", 0o644)] {
            set_mode(&etc.join(entry), mode);
        }
        (folder, etc)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(path: &Path) -> Option<String> {
        only_ours(path, None).err().map(|error| error.to_string())
    }

    #[test]
    fn a_file_is_read_that_nobody_else_can_change() {
        let (_folder, etc) = delivered();
        assert_eq!(refused(&etc.join("config.yaml")), None, "below a sticky folder of root");
        assert!(refused(&etc.join("absent")).is_some_and(|why| why.contains("No such file")));
        symlink("loop", etc.join("loop")).unwrap();
        assert!(refused(&etc.join("loop")).is_some_and(|why| why.contains("symbolic links")));
    }

    #[test]
    fn what_others_could_write_is_named_with_the_remedy() {
        let (_folder, etc) = delivered();
        let config = etc.join("config.yaml");
        for (entry, mode, safe) in [
            ("", 0o775, 0o755),
            ("..day", 0o757, 0o755),
            ("..day/config.yaml", 0o664, 0o644),
            ("", 0o777, 0o1777),
        ] {
            let at = etc.join(entry);
            set_mode(&at, mode);
            let why = refused(&config).unwrap();
            let at_mode = format!("{} has mode {mode:04o}", at.display().to_string().trim_end_matches('/'));
            assert!(why.contains(&at_mode) && why.contains("chmod go-w"), "{why}");
            set_mode(&at, safe);
            assert_eq!(refused(&config), None, "{entry} {safe:o}");
        }
    }

    /// Only root can give files away.
    #[test]
    fn what_belongs_to_others_is_refused_links_too() {
        const OTHER: u32 = 12_345;

        if !geteuid().is_root() {
            return;
        }
        let (_folder, etc) = delivered();
        let config = etc.join("config.yaml");
        for entry in ["..day/config.yaml", "..day", "..data", "config.yaml"] {
            let at = etc.join(entry);
            std::os::unix::fs::lchown(&at, Some(OTHER), None).unwrap();
            let why = refused(&config).unwrap();
            assert!(why.contains(&format!("{} is owned by user {OTHER}", at.display())), "{why}");
            assert!(only_ours(&config, Some(OTHER)).is_ok(), "root looks for that user");
            std::os::unix::fs::lchown(&at, Some(0), None).unwrap();
        }
        chown(&etc, Some(0), None).unwrap();
        assert_eq!(refused(&config), None);
    }
}

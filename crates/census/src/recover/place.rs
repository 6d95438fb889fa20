//! Where an object's file goes, whatever the object is called.
//!
//! `NAMESPACE/RESOURCE.GROUP/NAME`, each of one part of a key in etcd. Whoever writes etcd chooses keys: so a part keeps
//! letters, digits, `-` and `.` (not as its first), and all else is written as `%XX`; what is too long for a file name is cut
//! and told apart by a digest. Different objects have different places, no place is outside of the folder, and none is hidden.
//!
//! ```
//! use casemate_census::recover::place::Place;
//!
//! let place = Place::of("/registry", b"/registry/secrets/prod/db");
//! assert_eq!(place.to_string(), "prod/secrets/db");
//! let hostile = Place::of("/registry", b"/registry/secrets/prod/../../etc/passwd");
//! assert_eq!(hostile.to_string(), "prod/secrets/%2E.%2F..%2Fetc%2Fpasswd");
//! ```
use std::fmt;

use casemate_keys::names::sha256;

use crate::classify::ObjectPath;

/// Where an object's file goes: two folders, and a name that an extension follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its namespace; `_cluster` for what is in none, `_keys` for what is no object.
    pub namespace: String,
    /// Its resource, with its group behind a dot; `_keys` for what is no object.
    pub resource: String,
    /// Its name; for what is no object its key in etcd.
    pub name: String,
}

/// No namespace begins so: `_` is written as `%5F`.
const CLUSTER: &str = "_cluster";
const KEYS: &str = "_keys";

/// The longest part, in bytes: of the 255 that file systems have, some are for a revision and an extension.
const LONGEST: usize = 200;
/// How much of a longer one is kept.
const KEPT: usize = 120;

impl Place {
    /// Of a key in etcd below `prefix`.
    pub fn of(prefix: &str, key: &[u8]) -> Self {
        let Some(path) = ObjectPath::parse(prefix, key) else { return Self::by_key(key) };
        let mut resource = part(path.resource.as_bytes());
        if let Some(group) = path.group.filter(|group| !group.is_empty()) {
            resource = part(format!("{}.{group}", path.resource).as_bytes());
        }
        Self {
            namespace: path.namespace.map_or(CLUSTER.to_owned(), |namespace| part(namespace.as_bytes())),
            resource,
            name: part(path.name.as_bytes()),
        }
    }
}

impl Place {
    /// Of an object whose place another one has: API servers never write two, but whoever writes etcd can, below
    /// `/registry/minions` and `/registry/nodes`.
    pub fn by_key(key: &[u8]) -> Self {
        Self { namespace: KEYS.to_owned(), resource: KEYS.to_owned(), name: part(key) }
    }
}

fn part(raw: &[u8]) -> String {
    let mut part = String::with_capacity(raw.len());
    for (at, byte) in raw.iter().enumerate() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' => part.push(char::from(*byte)),
            b'.' if at > 0 => part.push('.'),
            byte => part.push_str(&format!("%{byte:02X}")),
        }
    }
    if part.len() > LONGEST {
        part.truncate(KEPT);
        part.push('~');
        sha256(raw)[..16].iter().for_each(|byte| part.push_str(&format!("{byte:02x}")));
    }
    part
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.resource, self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_a_cluster_stay_readable() {
        for (key, place) in [
            ("/registry/secrets/default/demo", "default/secrets/demo"),
            ("/registry/example.com/things/a/one.two", "a/things.example.com/one.two"),
            ("/registry/namespaces/default", "_cluster/namespaces/default"),
            (
                "/registry/clusterroles/system:node",
                "_cluster/clusterroles.rbac.authorization.k8s.io/system%3Anode",
            ),
            ("/registry/secrets/_cluster/a", "%5Fcluster/secrets/a"),
            ("/registry/secrets/../..", "%2E./secrets/%2E."),
            ("/registry/secrets/a/b%2Fc", "a/secrets/b%252Fc"),
            ("/registry/one", "_keys/_keys/%2Fregistry%2Fone"),
        ] {
            assert_eq!(Place::of("/registry", key.as_bytes()).to_string(), place);
        }
        let [one, other] = ["minions", "nodes"].map(|folder| format!("/registry/{folder}/a"));
        assert_eq!(Place::of("/registry", one.as_bytes()), Place::of("/registry", other.as_bytes()));
        assert_eq!(Place::by_key(other.as_bytes()).to_string(), "_keys/_keys/%2Fregistry%2Fnodes%2Fa");
        let long = format!("/registry/secrets/a/{}", "x".repeat(300));
        let other = format!("{long}y");
        let [long, other] = [long, other].map(|key| Place::of("/registry", key.as_bytes()));
        assert!(long != other && long.name.len() < LONGEST, "{long}");
    }

    proptest! {
        #[test]
        fn no_place_is_outside_hidden_or_anothers(
            one in "/registry(/[a-z./%_~ \u{0}é]{0,6}){0,5}",
            other in "/registry(/[a-z./%_~ \u{0}é]{0,6}){0,5}",
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let places = [one.as_bytes(), other.as_bytes(), &bytes].map(|key| Place::of("/registry", key));
            for part in places.iter().flat_map(|place| [&place.namespace, &place.resource, &place.name]) {
                prop_assert!(part.len() <= LONGEST && !part.starts_with('.'));
                prop_assert!(part.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
            }
            // `//` begins a name with `/`, and so does a part that is empty: keys differ, places differ.
            if ObjectPath::parse("/registry", one.as_bytes()) != ObjectPath::parse("/registry", other.as_bytes()) {
                prop_assert_ne!(&places[0], &places[1]);
            }
        }
    }
}

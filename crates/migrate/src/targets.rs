//! Which resources are migrated, from what API servers say that they serve. Pure.
use std::collections::BTreeMap;

use casemate_encryption_config::{GroupResource, ResourcePattern};
use serde::Deserialize;

use crate::report::Skipped;

/// A resource, and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As EncryptionConfigurations name it.
    pub resource: GroupResource,
    /// As in `/api/v1` or `/apis/apps/v1`.
    pub root: String,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

/// What is to be gone through, and what can't be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By the names of resources.
    pub targets: Vec<Target>,
    /// With why.
    pub skipped: Vec<Skipped>,
}

/// A resource in what a server says that it serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
    /// Only what is stored has one.
    #[serde(default)]
    storage_version_hash: String,
}

/// One version of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Empty for the core group.
    pub group: String,
    /// As in `/api/v1` or `/apis/apps/v1`.
    pub root: String,
    /// What it has, or why that is not known.
    pub served: Result<Vec<Served>, String>,
}

#[derive(Deserialize)]
struct List {
    resources: Vec<Served>,
}

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    #[serde(default)]
    versions: Vec<Named>,
    preferred_version: Named,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Named {
    group_version: String,
}

/// Each version of each group in the answer to `/apis`, the preferred ones of a group first: group and root.
pub(crate) fn groups(answer: &[u8]) -> Option<Vec<(String, String)>> {
    let Groups { groups } = serde_json::from_slice(answer).ok()?;
    let mut found = Vec::new();
    for Group { name, versions, preferred_version } in groups {
        let others = versions.into_iter().filter(|version| *version != preferred_version).collect::<Vec<_>>();
        for version in [preferred_version].into_iter().chain(others) {
            let is_sound = |part: &str| {
                !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
            };
            match version.group_version.split_once('/') {
                Some((group, number)) if group == name && is_sound(group) && is_sound(number) => {
                    found.push((name.clone(), format!("/apis/{group}/{number}")));
                }
                _ => return None,
            }
        }
    }
    Some(found)
}

/// What the answer to a version's root lists.
pub(crate) fn served(answer: &[u8]) -> Option<Vec<Served>> {
    serde_json::from_slice::<List>(answer).ok().map(|list| list.resources)
}

/// What of `versions`, preferred ones first, `patterns` choose. Nothing that they name is passed in silence.
pub fn choose(versions: &[Version], patterns: &[ResourcePattern]) -> Plan {
    let mut plan = Plan::default();
    let mut found: BTreeMap<GroupResource, Target> = BTreeMap::new();
    let mut unfit: BTreeMap<GroupResource, String> = BTreeMap::new();
    for Version { group, root, served } in versions {
        let served = match served {
            Ok(served) => served,
            Err(why) => {
                let may_be_in = |pattern: &ResourcePattern| match pattern {
                    ResourcePattern::One(one) => one.group == *group,
                    ResourcePattern::Group(wanted) => wanted == group,
                    ResourcePattern::All => true,
                };
                if patterns.iter().any(may_be_in) {
                    plan.skipped.push(Skipped { what: root.clone(), why: why.clone() });
                }
                continue;
            }
        };
        for Served { name, namespaced, verbs, storage_version_hash } in served {
            let resource = GroupResource { group: group.clone(), resource: name.clone() }.stored();
            // Subresources are parts of their objects.
            if name.contains('/') || !patterns.iter().any(|pattern| pattern.matches(&resource)) {
                continue;
            }
            let lacks: Vec<&str> = ["get", "list", "patch"]
                .into_iter()
                .filter(|verb| !verbs.iter().any(|found| found == verb))
                .collect();
            if lacks.is_empty() {
                let (root, is_namespaced) = (root.clone(), *namespaced);
                let target = Target { resource: resource.clone(), root, is_namespaced };
                found.entry(resource).or_insert(target);
            } else if !storage_version_hash.is_empty()
                || patterns.contains(&ResourcePattern::One(resource.clone()))
            {
                let why = format!(
                    "API servers have no {} for it: write its objects anew by other means",
                    lacks.join(", ")
                );
                unfit.entry(resource).or_insert(why);
            }
        }
    }
    for pattern in patterns {
        let ResourcePattern::One(one) = pattern else { continue };
        if !found.contains_key(one) && !unfit.contains_key(one) {
            let why = "no API server that was asked serves it: objects of it that are left in etcd stay as they are";
            plan.skipped.push(Skipped { what: one.to_string(), why: why.to_owned() });
        }
    }
    unfit.retain(|resource, _| !found.contains_key(resource));
    plan.skipped.extend(unfit.into_iter().map(|(resource, why)| Skipped { what: resource.to_string(), why }));
    plan.targets = found.into_values().collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str, namespaced: bool, verbs: &str, hash: &str) -> Served {
        Served {
            name: name.into(),
            namespaced,
            verbs: verbs.split_whitespace().map(str::to_owned).collect(),
            storage_version_hash: hash.into(),
        }
    }

    const ALL: &str = "create delete get list patch update watch";

    fn versions() -> Vec<Version> {
        let version = |group: &str, root: &str, served| Version {
            group: group.into(),
            root: root.into(),
            served: Ok(served),
        };
        vec![
            version(
                "",
                "/api/v1",
                vec![
                    resource("secrets", true, ALL, "x"),
                    resource("namespaces", false, ALL, "x"),
                    resource("namespaces/status", false, ALL, ""),
                    resource("events", true, ALL, "x"),
                    resource("bindings", true, "create", ""),
                ],
            ),
            version("events.k8s.io", "/apis/events.k8s.io/v1", vec![resource("events", true, ALL, "x")]),
            version("a.example", "/apis/a.example/v2", vec![resource("things", true, ALL, "x")]),
            version(
                "a.example",
                "/apis/a.example/v1",
                vec![resource("things", true, ALL, "y"), resource("olds", false, ALL, "y")],
            ),
            version("b.example", "/apis/b.example/v1", vec![resource("fixed", true, "get list", "x")]),
            Version {
                group: "c.example".into(),
                root: "/apis/c.example/v1".into(),
                served: Err("it is away".into()),
            },
        ]
    }

    fn chosen(patterns: &[&str]) -> (Vec<String>, Vec<String>) {
        let patterns: Vec<ResourcePattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let plan = choose(&versions(), &patterns);
        let targets =
            plan.targets.iter().map(|target| format!("{}/{}", target.root, target.resource.resource));
        (targets.collect(), plan.skipped.iter().map(|skipped| skipped.what.clone()).collect())
    }

    #[test]
    fn wildcards_choose_what_is_served_in_its_preferred_version() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            chosen(&["*.*"]),
            (
                list(&[
                    "/api/v1/events",
                    "/api/v1/namespaces",
                    "/api/v1/secrets",
                    "/apis/a.example/v1/olds",
                    "/apis/a.example/v2/things"
                ]),
                list(&["/apis/c.example/v1", "fixed.b.example"])
            )
        );
        assert_eq!(chosen(&["*.a.example"]).0, ["/apis/a.example/v1/olds", "/apis/a.example/v2/things"]);
        assert_eq!(
            chosen(&["secrets", "*.b.example"]),
            (list(&["/api/v1/secrets"]), list(&["fixed.b.example"]))
        );
    }

    #[test]
    fn nothing_that_is_named_is_passed_in_silence() {
        assert_eq!(chosen(&["nothing.a.example", "bindings"]).1, ["nothing.a.example", "bindings"]);
        // Where a group does not say what it has.
        assert_eq!(chosen(&["some.c.example"]).1, ["/apis/c.example/v1", "some.c.example"]);
        assert_eq!(chosen(&["secrets"]).1, [""; 0]);
    }

    #[test]
    fn what_servers_answer_is_read_and_nonsense_is_not() {
        let answer = br#"{"groups":[{"name":"a.example","versions":[{"groupVersion":"a.example/v1"},{"groupVersion":"a.example/v2"}],
            "preferredVersion":{"groupVersion":"a.example/v2"}}]}"#;
        let roots: Vec<String> = groups(answer).unwrap().into_iter().map(|(_, root)| root).collect();
        assert_eq!(roots, ["/apis/a.example/v2", "/apis/a.example/v1"]);
        let answer = br#"{"groups":[{"name":"a","preferredVersion":{"groupVersion":"a/../../x"}}]}"#;
        assert_eq!(groups(answer), None);
        let answer = br#"{"resources":[{"name":"things","namespaced":true,"verbs":["list"],"storageVersionHash":"h","kind":"Thing"}]}"#;
        assert_eq!(served(answer).unwrap(), [resource("things", true, "list", "h")]);
        assert_eq!(served(b"{}"), None);
    }
}

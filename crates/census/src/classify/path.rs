//! Whose value it is.

/// A key in etcd below the prefix, read as kube-apiserver makes them.
///
/// ```
/// use casemate_census::classify::ObjectPath;
///
/// let path = ObjectPath::parse("/registry", b"/registry/secrets/prod/db").unwrap();
/// assert_eq!((path.resource, path.group, path.namespace, path.name), ("secrets", Some(""), Some("prod"), "db"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectPath<'a> {
    /// API group; empty for the core group, `None` if the path has none and the resource is not known here.
    pub group: Option<&'a str>,
    /// Resource, by the name that EncryptionConfigurations have for it.
    pub resource: &'a str,
    /// Namespace, if the object is in one.
    pub namespace: Option<&'a str>,
    /// Name.
    pub name: &'a str,
}

/// Resources whose path has another name, by that name.
const RENAMED: [(&str, &str); 6] = [
    ("controllers", "replicationcontrollers"),
    ("ingress", "ingresses"),
    ("minions", "nodes"),
    ("podsecuritypolicy", "podsecuritypolicies"),
    ("services/endpoints", "endpoints"),
    ("services/specs", "services"),
];

/// Kubernetes' own resources, by group: their paths have none.
const GROUPS: [(&str, &[&str]); 18] = [
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "replicationcontrollers",
            "resourcequotas",
            "secrets",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
        ],
    ),
    ("apps", &["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("certificates.k8s.io", &["certificatesigningrequests", "clustertrustbundles", "podcertificaterequests"]),
    ("coordination.k8s.io", &["leasecandidates", "leases"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("flowcontrol.apiserver.k8s.io", &["flowschemas", "prioritylevelconfigurations"]),
    ("internal.apiserver.k8s.io", &["storageversions"]),
    ("networking.k8s.io", &["ingressclasses", "ingresses", "ipaddresses", "networkpolicies", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("policy", &["poddisruptionbudgets", "podsecuritypolicies"]),
    ("rbac.authorization.k8s.io", &["clusterrolebindings", "clusterroles", "rolebindings", "roles"]),
    ("resource.k8s.io", &["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    (
        "storage.k8s.io",
        &[
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
    ("storagemigration.k8s.io", &["storageversionmigrations"]),
];

impl<'a> ObjectPath<'a> {
    /// `None` if `key` is not below `prefix`, no text, or names no object.
    pub fn parse(prefix: &str, key: &'a [u8]) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        let path = key.strip_prefix(prefix.trim_end_matches('/'))?.strip_prefix('/')?;
        let renamed = RENAMED
            .into_iter()
            .find_map(|(stored, resource)| Some((resource, path.strip_prefix(stored)?.strip_prefix('/')?)));
        let (group, resource, rest) = match (renamed, path.split_once('/')?) {
            (Some((resource, rest)), _) => (group_of(resource), resource, rest),
            // A group has a dot, and no resource has one.
            (None, (group, rest)) if group.contains('.') => {
                let (resource, rest) = rest.split_once('/')?;
                (Some(group), resource, rest)
            }
            (None, (resource, rest)) => (group_of(resource), resource, rest),
        };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let parts = [resource, namespace.unwrap_or("-"), name];
        parts.iter().all(|part| !part.is_empty()).then_some(Self { group, resource, namespace, name })
    }
}

fn group_of(resource: &str) -> Option<&'static str> {
    GROUPS.iter().find(|(_, resources)| resources.contains(&resource)).map(|(group, _)| *group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_as_kube_apiserver_makes_them() {
        let cases = [
            ("/registry/secrets/prod/db", Some((Some(""), "secrets", Some("prod"), "db"))),
            ("/registry/minions/node-1", Some((Some(""), "nodes", None, "node-1"))),
            ("/registry/services/specs/a/b", Some((Some(""), "services", Some("a"), "b"))),
            ("/registry/services/endpoints/a/b", Some((Some(""), "endpoints", Some("a"), "b"))),
            ("/registry/ingress/a/b", Some((Some("networking.k8s.io"), "ingresses", Some("a"), "b"))),
            ("/registry/deployments/a/b", Some((Some("apps"), "deployments", Some("a"), "b"))),
            (
                "/registry/apiregistration.k8s.io/apiservices/v1.",
                Some((Some("apiregistration.k8s.io"), "apiservices", None, "v1.")),
            ),
            ("/registry/a.example.com/things/b/c", Some((Some("a.example.com"), "things", Some("b"), "c"))),
            ("/registry/masterleases/10.0.0.1", Some((None, "masterleases", None, "10.0.0.1"))),
            ("/registry/health", None),
            ("/registry/secrets/", None),
            ("/registry/secrets//b", None),
            ("/registry/a.example.com/things", None),
            ("/registry2/secrets/prod/db", None),
            ("/registry", None),
        ];
        for (key, expected) in cases {
            for prefix in ["/registry", "/registry/"] {
                let found = ObjectPath::parse(prefix, key.as_bytes());
                let found = found.map(|path| (path.group, path.resource, path.namespace, path.name));
                assert_eq!(found, expected, "{key}");
            }
        }
        assert!(ObjectPath::parse("/kubernetes.io", b"/kubernetes.io/secrets/a/b").is_some());
        assert!(ObjectPath::parse("/registry", b"/registry/secrets/a/\xff").is_none());
    }
}

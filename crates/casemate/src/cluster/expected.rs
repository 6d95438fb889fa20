//! Which API servers there must be, and which of those that answered they are. Pure.
//!
//! Those that are named, else those that keep an identity Lease, else those that the Service `kubernetes` leads to. An API
//! server shows SHA-256 of its identity in `/metrics`, and the identity is the name of its Lease: so it is known who
//! answered, through whatever address.
use casemate_encryption_config::file_hash;
use serde::Deserialize;

use crate::census::api::Told;

/// Where identity Leases are.
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases\
    ?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
/// Where the addresses of API servers are.
pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices\
    ?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// What tells which servers there must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The command line.
    Named,
    /// Identity Leases.
    Leases(Vec<Identity>),
    /// The EndpointSlices of `default/kubernetes`.
    Endpoints,
    /// Nothing does, because of this.
    Unknown(String),
}

/// One identity Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its name.
    pub(crate) lease: String,
    /// The host that it says to be on.
    pub(crate) host: Option<String>,
}

/// One address, and what was told there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    pub(crate) url: String,
    pub(crate) told: Result<Told, String>,
}

/// A server that must be there, or that was found beside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// What it is called.
    pub(crate) name: String,
    /// Where it answered, or should have.
    pub(crate) url: Option<String>,
    pub(crate) is_expected: bool,
    /// What it tells, or why nothing is known of it.
    pub(crate) told: Result<Told, String>,
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Lease {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slice {
    #[serde(default)]
    address_type: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
}

#[derive(Deserialize)]
struct Port {
    port: Option<u16>,
}

impl Identity {
    /// Of a list of Leases. All count: one that is not renewed is of a server that can't be reached, until API servers
    /// delete it after an hour.
    pub(super) fn list(leases: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        let list: List<Lease> = serde_json::from_slice(leases)?;
        let of = |Lease { metadata: Metadata { name, mut labels } }| Self {
            lease: name,
            host: labels.remove("kubernetes.io/hostname"),
        };
        Ok(list.items.into_iter().map(of).collect())
    }

    fn hash(&self) -> String {
        file_hash(self.lease.as_bytes())
    }

    fn name(&self, all: &[Self]) -> String {
        let is_alone =
            |host: &&String| all.iter().filter(|other| other.host.as_ref() == Some(host)).count() == 1;
        self.host.as_ref().filter(is_alone).unwrap_or(&self.lease).clone()
    }
}

/// The addresses of a list of EndpointSlices, as URLs.
pub(super) fn addresses(slices: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let list: List<Slice> = serde_json::from_slice(slices)?;
    let mut urls = Vec::new();
    for Slice { address_type, endpoints, ports } in list.items {
        let port = ports.iter().find_map(|port| port.port).unwrap_or(443);
        for address in endpoints.into_iter().flat_map(|endpoint| endpoint.addresses) {
            urls.push(match address_type.as_str() {
                "IPv6" => format!("https://[{address}]:{port}"),
                _ => format!("https://{address}:{port}"),
            });
        }
    }
    urls.sort();
    urls.dedup();
    Ok(urls)
}

/// Who of those that must be there answered, and who else.
pub(super) fn found(expected: &Expected, answers: Vec<Answered>) -> Vec<Found> {
    let mut answers = once_each(answers);
    let named = |is_expected: bool| {
        move |Answered { url, told }: Answered| Found { name: url.clone(), url: Some(url), is_expected, told }
    };
    match expected {
        Expected::Named | Expected::Endpoints => answers.into_iter().map(named(true)).collect(),
        Expected::Unknown(_) => answers.into_iter().map(named(false)).collect(),
        Expected::Leases(identities) => {
            let mut found = Vec::new();
            for identity in identities {
                let shows = |answer: &Answered, hash: Option<&str>| {
                    answer.told.as_ref().is_ok_and(|told| told.identity.as_deref() == hash)
                };
                let hash = identity.hash();
                let mut place = answers.iter().position(|answer| shows(answer, Some(&hash)));
                // Before it has used an EncryptionConfiguration a server does not show its identity.
                if identities.len() == 1 && answers.len() == 1 {
                    place = place.or_else(|| answers.iter().position(|answer| shows(answer, None)));
                }
                let answer = place.map(|place| answers.remove(place));
                let absent = || {
                    "was not reached at any address that is known: name all API servers with --server"
                        .to_owned()
                };
                found.push(Found {
                    name: identity.name(identities),
                    url: answer.as_ref().map(|answer| answer.url.clone()),
                    is_expected: true,
                    told: answer.map_or_else(|| Err(absent()), |answer| answer.told),
                });
            }
            // A silent address is none of the servers that were found to be missing, or nobody knows which.
            found.extend(answers.into_iter().filter(|answer| answer.told.is_ok()).map(named(false)));
            found
        }
    }
}

/// One process that was reached at two addresses is one server.
fn once_each(answers: Vec<Answered>) -> Vec<Answered> {
    let mut once: Vec<Answered> = Vec::new();
    for answer in answers {
        let is_it = |other: &Answered| match (&answer.told, &other.told) {
            (Ok(one), Ok(other)) => {
                one.identity.is_some()
                    && one.started.is_some()
                    && (&one.identity, one.started) == (&other.identity, other.started)
            }
            _ => answer.url == other.url,
        };
        if !once.iter().any(is_it) {
            once.push(answer);
        }
    }
    once
}

#[cfg(test)]
mod tests;

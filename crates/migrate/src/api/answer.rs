//! What stands in answers, as far as it is read: names, versions, codes. Never a value, and no sentence of a server's.
use serde::Deserialize;

use crate::verdict::Reply;

/// A page of a list.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) items: Vec<Object>,
    /// Where it goes on; empty at the end.
    pub(crate) next: String,
    /// How many are behind it, if the server says so.
    pub(crate) behind: Option<u64>,
    /// How large it was.
    pub(crate) bytes: u64,
}

/// What is needed of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

/// A page that was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reply: Reply,
    pub(crate) status: Status,
}

/// `Status` of meta/v1.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    reason: String,
    message: String,
    metadata: ListMetadata,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<CauseOf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CauseOf {
    field: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: String,
    remaining_item_count: Option<u64>,
}

#[derive(Deserialize)]
struct List {
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    /// Null if there are none.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Object,
}

impl Listed {
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let List { kind, metadata, items } = serde_json::from_slice(body).ok()?;
        let items: Vec<Object> = items.into_iter().flatten().map(|item| item.metadata).collect();
        let is_whole = |object: &Object| !object.name.is_empty() && !object.resource_version.is_empty();
        (kind == "PartialObjectMetadataList" && items.iter().all(is_whole)).then_some(Self {
            items,
            behind: if metadata.next.is_empty() { Some(0) } else { metadata.remaining_item_count },
            next: metadata.next,
            bytes: body.len() as u64,
        })
    }
}

impl Object {
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Item>(body).ok().map(|item| item.metadata)
    }

    /// As lists sort it.
    pub(crate) fn position(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

impl Refusal {
    /// An answer that is none of an API server.
    pub(crate) fn nonsense(code: u16) -> Self {
        Self { reply: Reply { code, ..Reply::default() }, status: Status::default() }
    }

    /// Where the list goes on at a newer moment.
    pub(crate) fn next(&self) -> &str {
        &self.status.metadata.next
    }

    /// Objects that could not be read, where the server names them: `NAMESPACE/NAME` or the name, in order.
    pub(crate) fn unreadable(&self, is_namespaced: bool) -> Vec<String> {
        // kube-apiserver's word for it, which comes with keys of etcd as the fields of its causes.
        if self.reply.reason != "StorageReadError" {
            return Vec::new();
        }
        let causes = self.status.details.iter().flat_map(|details| &details.causes);
        let mut names: Vec<String> =
            causes.filter_map(|cause| position(&cause.field, is_namespaced)).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The last part of a key of etcd, or the last two.
fn position(key: &str, is_namespaced: bool) -> Option<String> {
    let mut parts = key.rsplit('/');
    let name = parts.next().filter(|name| !name.is_empty())?;
    match is_namespaced {
        false => Some(name.to_owned()),
        true => parts.next().filter(|part| !part.is_empty()).map(|namespace| format!("{namespace}/{name}")),
    }
}

impl Status {
    /// One that is none is as good as an empty one.
    pub(crate) fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// A word, or nothing.
    pub(crate) fn reason(&self) -> String {
        let is_word = self.reason.len() <= 64 && self.reason.chars().all(|c| c.is_ascii_alphanumeric());
        if is_word { self.reason.clone() } else { String::new() }
    }

    /// The name of the webhook that denied it. All else that was said may quote the object.
    pub(crate) fn webhook(&self) -> Option<String> {
        let name = self.message.strip_prefix("admission webhook \"")?.split_once('"')?.0;
        let is_name = (1..=253).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c));
        is_name.then(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_without_what_else_is_in_it() {
        let body = br#"{"kind":"PartialObjectMetadataList","metadata":{"continue":"abc","remainingItemCount":7},"items":[
            {"metadata":{"name":"one","namespace":"a","uid":"u","resourceVersion":"5","annotations":{"x":"y"}}}]}"#;
        let listed = Listed::read(body).unwrap();
        assert_eq!(
            (listed.items[0].position().as_str(), listed.next.as_str(), listed.behind),
            ("a/one", "abc", Some(7))
        );
        for none in ["[]", "null"] {
            let body = format!(
                r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"9"}},"items":{none}}}"#
            );
            let last = Listed::read(body.as_bytes()).unwrap();
            assert_eq!((last.items.len(), last.next.as_str(), last.behind), (0, "", Some(0)));
        }
        let nameless = br#"{"kind":"PartialObjectMetadataList","items":[{"metadata":{"name":"a"}}]}"#;
        let full = br#"{"kind":"SecretList","items":[]}"#;
        for nonsense in [&b"{}"[..], b"", nameless, full] {
            assert!(Listed::read(nonsense).is_none());
        }
    }

    #[test]
    fn of_what_a_server_says_only_words_and_names_are_kept() {
        let status = Status::read(br#"{"reason":"Forbidden","message":"admission webhook \"no.example\" denied the request: pass=word"}"#);
        assert_eq!(
            (status.reason().as_str(), status.webhook().as_deref()),
            ("Forbidden", Some("no.example"))
        );
        let status = Status::read(
            br#"{"reason":"a secret value","message":"admission webhook \"pass=word\" denied"}"#,
        );
        assert_eq!((status.reason().as_str(), status.webhook()), ("", None));
        assert_eq!(Status::read(b"<html>").reason(), "");
    }

    #[test]
    fn unreadable_objects_are_named_by_their_keys() {
        let body = br#"{"reason":"StorageReadError","details":{"causes":[{"field":"/registry/secrets/b/two","message":"x"},
            {"field":"/registry/secrets/a/one"},{"field":""},{"message":"too many"}]}}"#;
        let refusal = |reason: &str| {
            let reply = Reply { code: 500, reason: reason.into(), ..Reply::default() };
            Refusal { reply, status: Status::read(body) }
        };
        assert_eq!(refusal("StorageReadError").unreadable(true), ["a/one", "b/two"]);
        assert_eq!(refusal("StorageReadError").unreadable(false), ["one", "two"]);
        assert_eq!(refusal("InternalError").unreadable(true), [""; 0]);
    }
}

//! Where a field may stand that stands where it may not.

use std::collections::VecDeque;

use serde_json::Value;

use super::Config;

/// More places than these help nobody.
const SHOWN: usize = 4;

/// What to say of a field `name` that is not known where it stands, if it is known elsewhere.
pub(super) fn belongs(name: &str) -> Option<String> {
    let places = places(Config::schema().as_value(), name);
    let shown: Vec<String> = places.iter().take(SHOWN).map(|place| in_words(place)).collect();
    let more = match places.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    (!places.is_empty()).then(|| format!("`{name}` belongs {}{more}", shown.join(" or ")))
}

fn in_words(place: &str) -> String {
    if place.is_empty() { "at the top level".into() } else { format!("below `{place}`") }
}

/// The objects that have a field `name`, the nearest to the top first, as the reference names them: `providers[].outage`.
fn places(schema: &Value, name: &str) -> Vec<String> {
    let mut places = Vec::new();
    let mut left = VecDeque::from([(String::new(), schema)]);
    while let Some((path, rule)) = left.pop_front() {
        if let Some(referred) = rule["$ref"].as_str() {
            let target = referred.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
            left.extend(target.map(|target| (path, target)));
            continue;
        }
        if rule["properties"].get(name).is_some() {
            places.push(path.clone());
        }
        for (field, inner) in rule["properties"].as_object().into_iter().flatten() {
            let inner_path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
            left.push_back((inner_path, inner));
        }
        for choices in ["oneOf", "anyOf"] {
            let choices = rule[choices].as_array().into_iter().flatten();
            left.extend(choices.map(|choice| (path.clone(), choice)));
        }
        if rule["items"].is_object() {
            left.push_back((format!("{path}[]"), &rule["items"]));
        }
    }
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_place_is_named_from_the_top() {
        for (name, said) in [
            ("clusterId", "`clusterId` belongs at the top level or below `providers[].alsoAccept[]`"),
            ("recoveryRecipients", "`recoveryRecipients` belongs below `providers[]`"),
            ("secretIdFile", "below `providers[].rootKeys[].transit.auth.appRole`"),
            ("caFile", "below `providers[].readKeys[].transit.tls`"),
            ("uids", "`uids` belongs below `admin.allowedPeers` or below `providers[].allowedPeers`"),
        ] {
            let told = belongs(name).unwrap();
            assert!(told.contains(said), "{said}: {told}");
        }
        assert_eq!(belongs("no-field"), None);
        let many = belongs("path").unwrap();
        assert!(many.contains(", and ") && many.matches("below").count() == SHOWN, "{many}");
    }
}

//! What differs between two configurations, line by line, for the log. A configuration holds no secret.

use serde_json::Value;

/// Fields that name an item of a list.
const NAMES: [&str; 2] = ["name", "clusterId"];
/// More than that of one value says nothing more.
const SHOWN: usize = 120;
/// More lines than that nobody reads.
const LINES: usize = 200;
/// The same of one line.
const LINE: usize = 1000;

/// One line for each field that differs: `providers[main].maxConnections: 128 -> 64`. In the order of the fields' names;
/// `-` stands for what is not there. After the first 200 it says how many more there are.
pub fn changes(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", Some(before), Some(after), &mut lines);
    if lines.len() > LINES {
        let more = lines.len() - LINES;
        lines.truncate(LINES);
        lines.push(format!("and {more} more"));
    }
    lines.iter().map(|line| one_line(line)).collect()
}

/// `text` for a log or a terminal: whatever is in it, it is one line, does nothing to a terminal, and ends.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (index, c) in text.chars().enumerate() {
        match c {
            _ if index == LINE => {
                line.push_str("...");
                break;
            }
            '"' | '\'' | '\\' => line.push(c),
            _ => line.extend(c.escape_debug()),
        }
    }
    line
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, lines: &mut Vec<String>) {
    if before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(ours)), Some(Value::Object(theirs))) => {
            let mut fields: Vec<_> = ours.keys().chain(theirs.keys()).collect();
            fields.sort();
            fields.dedup();
            for field in fields {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                compare(&path, ours.get(field), theirs.get(field), lines);
            }
        }
        (Some(Value::Array(ours)), Some(Value::Array(theirs))) if are_named(ours) && are_named(theirs) => {
            let mut names: Vec<_> = ours.iter().chain(theirs).filter_map(name).collect();
            names.sort();
            names.dedup();
            let before = lines.len();
            for wanted in names {
                let path = format!("{path}[{wanted}]");
                compare(&path, item(ours, &wanted), item(theirs, &wanted), lines);
            }
            if lines.len() == before {
                lines.push(format!("{path}: in another order"));
            }
        }
        _ => lines.push(format!("{path}: {} -> {}", shown(before), shown(after))),
    }
}

fn item<'a>(items: &'a [Value], wanted: &str) -> Option<&'a Value> {
    items.iter().find(|item| name(item).as_deref() == Some(wanted))
}

fn are_named(items: &[Value]) -> bool {
    items.iter().all(|item| name(item).is_some())
}

/// `name: 7` is a name too.
fn name(item: &Value) -> Option<String> {
    match NAMES.iter().find_map(|field| item.get(field))? {
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "-".into() };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_field_that_differs_has_a_line() {
        let before = json!({
            "clusterId": "prod", "audit": {"keep": 3},
            "providers": [{"name": "a", "maxConnections": 128, "allowedPeers": {"uids": [0]}}, {"name": "b"}],
        });
        let after = json!({
            "clusterId": "prod", "admin": {"endpoint": "unix:///a"}, "audit": {"keep": 4},
            "providers": [{"name": "c"}, {"name": "a", "maxConnections": 64, "allowedPeers": {"uids": [0, 1]}}],
        });
        assert_eq!(
            changes(&before, &after),
            [
                r#"admin: - -> {"endpoint":"unix:///a"}"#,
                "audit.keep: 3 -> 4",
                "providers[a].allowedPeers.uids: [0] -> [0,1]",
                "providers[a].maxConnections: 128 -> 64",
                r#"providers[b]: {"name":"b"} -> -"#,
                r#"providers[c]: - -> {"name":"c"}"#,
            ]
        );
    }

    #[test]
    fn the_same_has_none_and_another_order_has_one() {
        let (ab, ba) =
            (json!({"l": [{"name": "a"}, {"name": "b"}]}), json!({"l": [{"name": "b"}, {"name": "a"}]}));
        assert_eq!(changes(&ab, &ab), [""; 0]);
        assert_eq!(changes(&ab, &ba), ["l: in another order"]);
    }

    #[test]
    fn there_is_an_end_to_what_is_said() {
        let fields =
            |value: u32| Value::Object((0..300).map(|at| (format!("f{at}"), value.into())).collect());
        let lines = changes(&fields(1), &fields(2));
        assert_eq!((lines.len(), lines[200].as_str()), (201, "and 100 more"));
        let lines = changes(&json!({"é\n\u{9b}\u{202e}": 1}), &json!({}));
        assert_eq!(lines, ["é\\n\\u{9b}\\u{202e}: 1 -> -"]);
        assert_eq!(one_line(&"a".repeat(2000)).len(), 1003);
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let line = changes(&json!({"a": "ä".repeat(300)}), &json!({"a": 1})).concat();
        assert!(line.ends_with("... -> 1") && line.chars().count() < 140, "{line}");
    }
}

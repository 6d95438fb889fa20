//! The fields of a schema as a page: one section for each object, and for each of the alternatives that a field has.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::examples::example;

pub(super) const WHOLE: &str = "The whole file";

pub(super) struct Fields<'a> {
    schema: &'a Value,
    defaults: Vec<(&'static str, String)>,
    /// Sections by what they describe: what stands in several places is described where it comes first.
    sections: BTreeMap<String, String>,
}

/// What a field takes.
struct Accepted {
    words: String,
    /// The object with fields of its own, and what leads to it.
    inner: Option<Inner>,
}

struct Inner {
    words: String,
    suffix: &'static str,
    object: Value,
    /// Its name in the schema.
    name: Option<String>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(schema: &'a Value, defaults: Vec<(&'static str, String)>) -> Self {
        Self { schema, defaults, sections: BTreeMap::new() }
    }

    /// Whether the page has a section or an example of `path`.
    pub(super) fn has_described(&self, path: &str) -> bool {
        self.sections.values().any(|section| section == path)
    }

    /// One table, then the tables of what is in it.
    pub(super) fn describe(&mut self, page: &mut String, path: &str, object: &Value) {
        let is_whole = path == WHOLE;
        let title = if is_whole { path.to_owned() } else { format!("`{path}`") };
        write!(page, "\n## {title}\n\n").unwrap();
        if let Some(description) = object["description"].as_str().filter(|_| !is_whole) {
            write!(page, "{description}").unwrap();
            page.push_str(if is_choice(object) { " Exactly one of:\n\n" } else { "\n\n" });
        }
        let below = self.table(page, if is_whole { "" } else { path }, object);
        if let Some(example) = example(path) {
            write!(page, "\n```yaml\n{}```\n", example.yaml).unwrap();
        }
        if is_choice(object) {
            self.examples(page, path, object, &below);
        }
        for (path, object) in below {
            self.describe(page, &path, &object);
        }
    }

    /// Says which sections have to follow.
    fn table(&mut self, page: &mut String, prefix: &str, object: &Value) -> Vec<(String, Value)> {
        let mut below = Vec::new();
        page.push_str("| field | | accepted | what it is |\n|---|---|---|---|\n");
        for (name, property) in in_order(object) {
            let rule = self.resolve(property);
            let need = self.need(object, name, property);
            let Accepted { words, inner } = self.accepted(property);
            let what = property["description"].as_str().or(rule["description"].as_str()).unwrap_or_default();
            let what = what.replace('\n', " ").replace('|', "\\|");
            let kind = match inner {
                None => words,
                Some(inner) => {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    let path = format!("{prefix}{dot}{name}{}", inner.suffix);
                    let described = inner.name.unwrap_or_else(|| path.clone());
                    let section = self.sections.entry(described).or_insert_with(|| {
                        below.push((path.clone(), inner.object));
                        path
                    });
                    format!("{words}[{}](#{})", inner.words, anchor(section))
                }
            };
            writeln!(page, "| `{name}` | {need} | {kind} | {what} |").unwrap();
        }
        below
    }

    /// Of alternatives that have no section of their own, since they have no fields.
    fn examples(&mut self, page: &mut String, path: &str, object: &Value, below: &[(String, Value)]) {
        for (name, _) in in_order(object) {
            let path = format!("{path}.{name}");
            if below.iter().any(|(section, _)| *section == path) {
                continue;
            }
            let example = example(&path).unwrap_or_else(|| panic!("{path} has no example"));
            self.sections.insert(path.clone(), path);
            write!(page, "\n```yaml\n{}```\n", example.yaml).unwrap();
        }
        for (section, _) in below {
            assert!(example(section).is_some(), "{section} has no example");
        }
    }

    fn need(&self, object: &Value, name: &str, property: &Value) -> String {
        if is_choice(object) {
            return "one of these".to_owned();
        }
        if let Some((_, default)) = self.defaults.iter().find(|(field, _)| *field == name) {
            return format!("{default} if left out");
        }
        match &property["default"] {
            _ if requires(object, name) => "required".to_owned(),
            Value::String(default) => format!("`{default}` if left out"),
            Value::Bool(default) => format!("`{default}` if left out"),
            _ => "may be left out".to_owned(),
        }
    }

    /// In words, and the object that has fields of its own.
    fn accepted(&self, property: &Value) -> Accepted {
        let named = property["$ref"].as_str().map(str::to_owned);
        let rule = self.resolve(property);
        let plain = |words: String| Accepted { words, inner: None };
        let inner = |before: String, words: &str, suffix, object, name| Accepted {
            words: before,
            inner: Some(Inner { words: words.to_owned(), suffix, object, name }),
        };
        if let Some(text) = rule["const"].as_str() {
            return plain(format!("`{text}`"));
        }
        if let Some(choices) = rule["oneOf"].as_array() {
            if choices.iter().all(|choice| choice["properties"].is_object()) {
                let names: Vec<String> =
                    choices.iter().map(|choice| format!("`{}`", in_order(choice)[0].0)).collect();
                let words = format!("one of {}", names.join(", "));
                return inner(String::new(), &words, "", alternatives(rule), named);
            }
            let choices: Vec<String> = choices.iter().map(|choice| self.accepted(choice).words).collect();
            return plain(choices.join(" or "));
        }
        let kinds = rule["type"].as_str().or_else(|| rule["type"][0].as_str());
        let limit = |name: &str| rule[name].as_u64();
        match kinds.unwrap_or_else(|| panic!("a rule of no type: {rule}")) {
            "object" if rule["properties"].is_null() => plain(format!(
                "fields of any name, each {}",
                self.accepted(&rule["additionalProperties"]).words
            )),
            "object" => inner(String::new(), "fields", "", rule.clone(), named),
            "array" => {
                let items = match (limit("minItems"), limit("maxItems")) {
                    (Some(least), Some(most)) => format!("a list of {least} to {most}"),
                    (Some(least), None) => format!("a list of at least {least}"),
                    _ => "a list".to_owned(),
                };
                let item = self.accepted(&rule["items"]);
                match item.inner {
                    Some(of) => inner(format!("{items}, each of "), &of.words, "[]", of.object, of.name),
                    None => plain(format!("{items}, each {}", item.words)),
                }
            }
            "boolean" => plain("true or false".to_owned()),
            "integer" => {
                let least = limit("minimum").unwrap_or(0);
                let most = limit("maximum").map(|most| format!(" to {most}"));
                plain(format!("a number from {least}{}", most.unwrap_or_default()))
            }
            "string" => plain(match rule["pattern"].as_str() {
                Some("^/") => "an absolute path".to_owned(),
                Some(pattern) => format!("text `{}`", pattern.replace('|', "\\|")),
                None => "text".to_owned(),
            }),
            other => panic!("a rule of type {other}: {rule}"),
        }
    }

    fn resolve<'s>(&'s self, rule: &'s Value) -> &'s Value {
        match rule["$ref"].as_str() {
            Some(reference) => {
                let name = reference.strip_prefix("#/$defs/").unwrap();
                self.resolve(&self.schema["$defs"][name])
            }
            None => rule,
        }
    }
}

/// One object with a field for each alternative, which have one field each.
fn alternatives(rule: &Value) -> Value {
    let mut properties = serde_json::Map::new();
    let mut order = Vec::new();
    for choice in rule["oneOf"].as_array().unwrap() {
        let [(name, property)] = in_order(choice)[..] else {
            panic!("an alternative of several fields: {choice}")
        };
        let mut property = property.clone();
        property["description"] = choice["description"].clone();
        properties.insert(name.to_owned(), property);
        order.push(name);
    }
    json!({"description": rule["description"], "properties": properties, "required": order, "choice": true})
}

fn is_choice(object: &Value) -> bool {
    object["choice"] == true
}

/// As GitHub names the heading of a path.
fn anchor(path: &str) -> String {
    path.chars().filter(char::is_ascii_alphanumeric).map(|character| character.to_ascii_lowercase()).collect()
}

fn requires(object: &Value, name: &str) -> bool {
    object["required"].as_array().is_some_and(|required| required.iter().any(|field| field == name))
}

/// Required fields in the order of the code, then the others by name.
fn in_order(object: &Value) -> Vec<(&str, &Value)> {
    let properties = object["properties"].as_object().unwrap();
    let required = object["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut fields: Vec<_> = required.map(|name| (name, &properties[name])).collect();
    fields.extend(
        properties
            .iter()
            .map(|(name, rule)| (name.as_str(), rule))
            .filter(|(name, _)| !requires(object, name)),
    );
    fields
}

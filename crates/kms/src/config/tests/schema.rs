//! The published schema, and examples.

use super::key_services::SERVICES;
use super::*;

#[test]
fn the_published_schema_is_this_one() {
    let path = repository().join("docs/reference/kms-config.schema.json");
    let schema = format!("{:#}\n", Config::schema().as_value());
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        schema,
        "{} is not the schema of the code; run `CASEMATE_REGENERATE=1 cargo test -p casemate-kms --lib schema`",
        path.display()
    );
}

#[test]
fn the_schema_accepts_what_is_parsed_and_knows_every_field() {
    let schema = Config::schema().as_value().clone();
    let value = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
    assert_eq!(faults(&schema, &schema, &value(WHOLE)), Vec::<String>::new());
    assert_eq!(faults(&schema, &schema, &value(SERVICES)), Vec::<String>::new());

    for (old, new) in [
        ("kind:", "kinds:"),
        ("epoch: 3", "epoch: three"),
        ("epoch: 3", "epoch: -1"),
        ("v1alpha1", "v1"),
        ("\"0660\"", "\"0666\""),
        ("\"0660\"", "\"660\""),
        ("\"0660\"", "\"0000660\""),
        ("version: latest", "version: newest"),
        ("version: latest", "version: 0"),
        ("epoch: 3", "maxConnections: 0"),
        ("epoch: 3", "socketOwner: root"),
        ("epoch: 3", "socketGroup: 4294967295"),
        ("epoch: 3", "allowedPeers: {uids: [root]}"),
        ("epoch: 3", "allowedPeers: {users: [0]}"),
        ("unix:///run/casemate/kms.sock", "unix:///@"),
        ("age: age1urngnf", "age: AGE-SECRET-KEY-1nf"),
        ("clusterId: prod-eu.1\n", ""),
        ("          id: 0123456789abcdef0123456789abcdef\n", ""),
    ] {
        let text = WHOLE.replacen(old, new, 1);
        assert!(!faults(&schema, &schema, &value(&text)).is_empty(), "the schema accepts {new:?}");
    }
    let head = WHOLE.split("providers:").next().unwrap();
    assert!(!faults(&schema, &schema, &value(&format!("{head}providers: []"))).is_empty());
}

#[test]
fn every_example_in_the_documentation_is_parsed() {
    let mut pages = vec![repository().join("README.md")];
    for folder in ["docs", "docs/reference"] {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    for page in pages.iter().filter(|page| page.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(page).unwrap_or_default();
        for block in text.split("```yaml\n").skip(1) {
            let example = block.split("```").next().unwrap_or_default();
            if example.contains(KIND) {
                let parsed = Config::parse(example, page);
                assert!(parsed.is_ok(), "{}: {}", page.display(), parsed.unwrap_err());
            }
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// As much of a JSON Schema validator as this schema needs; a keyword that it doesn't know is a fault.
fn faults(root: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(rules) = schema.as_object() else { return found };
    for (keyword, rule) in rules {
        let ok = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" => true,
            "format" => rule == "uint64" || rule == "uint32",
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                found.extend(faults(root, target, value));
                true
            }
            "oneOf" => {
                rule.as_array().unwrap().iter().filter(|one| faults(root, one, value).is_empty()).count() == 1
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|one| faults(root, one, value).is_empty()),
            "const" => rule == value,
            "type" => {
                let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                kinds.iter().any(|kind| match kind.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "null" => value.is_null(),
                    _ => false,
                })
            }
            "required" => {
                rule.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    let inner = value.get(name).into_iter().flat_map(|value| faults(root, rule, value));
                    found.extend(inner.map(|fault| format!("{name}: {fault}")));
                }
                true
            }
            "additionalProperties" => {
                let known =
                    |name: &String| rules.get("properties").is_some_and(|known| known.get(name).is_some());
                let others = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
                match rule {
                    Value::Bool(false) => others.count() == 0,
                    rule => others.into_iter().all(|(_, value)| faults(root, rule, value).is_empty()),
                }
            }
            "items" => {
                found
                    .extend(value.as_array().into_iter().flatten().flat_map(|item| faults(root, rule, item)));
                true
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap()),
            "minimum" => value.as_i64().is_none_or(|number| number >= rule.as_i64().unwrap()),
            "maximum" => value.as_i64().is_none_or(|number| number <= rule.as_i64().unwrap()),
            "pattern" => {
                let pattern = regex::Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            unknown => {
                found.push(format!("keyword {unknown}"));
                true
            }
        };
        if !ok {
            found.push(format!("{keyword} {rule}: {value}"));
        }
    }
    found
}

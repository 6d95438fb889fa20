//! `docs/reference/admin.md`: its tables of fields and metrics are made from the code.
//!
//! `CASEMATE_REGENERATE=1 cargo test -p casemate-kms --test it admin::page` writes them anew; what stands above them is
//! written by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use casemate_kms::admin::Shown;
use casemate_kms::admin::metrics::METRICS;
use casemate_kms::admin::status::Document;
use serde_json::Value;

const MARK: &str = "<!-- Made from the code from here on: CASEMATE_REGENERATE=1 cargo test -p casemate-kms --test it admin::page -->";

#[test]
fn every_field_and_metric_is_on_the_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/admin.md");
    let found = fs::read_to_string(&path).unwrap();
    let (by_hand, tables) = found.split_once(MARK).expect("the page has the mark");
    let made = tables_of_code();
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, format!("{by_hand}{MARK}{made}")).unwrap();
        return;
    }
    assert!(tables == made, "docs/reference/admin.md is not what the code says; run what its mark names");
}

#[test]
fn the_tables_name_what_the_document_really_has() {
    // A field that serde writes and the schema does not know would be missing on the page.
    let document = serde_json::to_value(Document::of(&Shown::default())).unwrap();
    let schema = Document::schema().as_value().clone();
    for field in document.as_object().unwrap().keys() {
        assert!(schema["properties"].get(field).is_some(), "{field}");
    }
    let made = tables_of_code();
    for needed in
        ["`key_id_hash`", "`providers[].next_write.local_kek`", "`casemate_kms_writing`", "`min_version`"]
    {
        assert!(made.contains(needed), "{needed}");
    }
}

fn tables_of_code() -> String {
    let schema = Document::schema().as_value().clone();
    let mut page = String::from("\n\n## The fields of /status\n");
    describe(&mut page, &schema, "", &schema);
    page.push_str("\n## The metrics of /metrics\n\n| metric | kind | unit | labels | what it tells |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels = metric.is_of_a_provider().then_some("provider").into_iter();
        let labels: Vec<String> =
            labels.chain(metric.labels.iter().copied()).map(|l| format!("`{l}`")).collect();
        let (name, kind, unit) = (metric.full_name(), metric.kind(), metric.unit());
        let unit = if unit.is_empty() { "–" } else { unit };
        writeln!(page, "| `{name}` | {kind} | {unit} | {} | {} |", labels.join(", "), metric.help).unwrap();
    }
    page
}

/// One table, then the tables of what is in it.
fn describe(page: &mut String, schema: &Value, path: &str, object: &Value) {
    if !path.is_empty() {
        let what = object["description"].as_str().unwrap_or_default();
        write!(page, "\n### `{path}`\n\n{what}\n").unwrap();
    }
    page.push_str("\n| field | | what it is |\n|---|---|---|\n");
    let mut below = Vec::new();
    let properties = object["properties"].as_object().unwrap();
    for (name, property) in properties {
        let (kind, inner, nullable) = accepted(schema, property);
        let what = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        let null = if nullable { " or null" } else { "" };
        writeln!(page, "| `{name}` | {kind}{null} | {what} |").unwrap();
        let dot = if path.is_empty() { "" } else { "." };
        below.extend(inner.map(|(suffix, object)| (format!("{path}{dot}{name}{suffix}"), object)));
    }
    for (path, object) in below {
        describe(page, schema, &path, object);
    }
}

type Inner<'a> = Option<(&'static str, &'a Value)>;

fn accepted<'a>(schema: &'a Value, rule: &'a Value) -> (&'static str, Inner<'a>, bool) {
    if let Some(reference) = rule["$ref"].as_str() {
        let object = &schema["$defs"][reference.strip_prefix("#/$defs/").unwrap()];
        return ("fields, see below", Some(("", object)), false);
    }
    if let Some(choices) = rule["anyOf"].as_array() {
        let (kind, inner, _) = accepted(schema, &choices[0]);
        assert_eq!(choices[1]["type"], "null");
        return (kind, inner, true);
    }
    let nullable = rule["type"].as_array().is_some_and(|types| types.iter().any(|kind| kind == "null"));
    let kind = rule["type"].as_str().or_else(|| rule["type"][0].as_str()).unwrap();
    match kind {
        "string" => ("text", None, nullable),
        "integer" => ("number", None, nullable),
        "boolean" => ("true or false", None, nullable),
        "array" => match accepted(schema, &rule["items"]).1 {
            Some((_, object)) => ("a list, see below", Some(("[]", object)), nullable),
            None => ("a list of texts", None, nullable),
        },
        other => panic!("a rule of type {other}"),
    }
}

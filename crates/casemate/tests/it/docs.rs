//! The book: every relative link leads somewhere, every configuration in it is one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use casemate_kms::config::Config;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let pages = pages();
    for page in ["README.md", "docs/README.md", "docs/tutorial/encrypt-a-cluster.md"] {
        assert!(pages.contains(&repository().join(page)), "{page} is not among the pages");
    }
    let broken: Vec<String> = pages.iter().flat_map(|page| broken_links(page)).collect();
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn a_link_to_nowhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let text = "# One `file` of two\n[a](page.md) [b](absent.md) [c](#one-file-of-two) [d](#two)\n\
                [e](page.md#one-file-of-two) [f](page.md#two) [g](https://example.com/absent.md)\n\
                ```\n[h](absent-in-a-listing.md)\n```\n## Two lines\n[i](#two-lines) `[j](in-code.md)`\n";
    fs::write(&page, text).unwrap();
    let broken = broken_links(&page);
    let targets: Vec<&str> = broken.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(targets, ["absent.md", "#two", "page.md#two"]);
}

#[test]
fn every_configuration_in_the_book_is_one() {
    let mut found = 0;
    for page in pages() {
        for listing in configurations(&fs::read_to_string(&page).unwrap()) {
            Config::parse(&listing, &page).unwrap();
            found += 1;
        }
    }
    assert!(found >= 2, "only {found} configurations were found in the book");
}

#[test]
fn a_bad_configuration_is_found() {
    let page = "```yaml\nkind: KmsConfiguration\nclusterID: a\n```\n\n```yaml\nkind: Other\n```\n\
                1. a list\n   ```yaml\n   kind: KmsConfiguration\n   ```\n";
    let listings = configurations(page);
    assert_eq!(listings, ["kind: KmsConfiguration\nclusterID: a\n", "kind: KmsConfiguration\n"]);
    assert!(Config::parse(&listings[0], Path::new("page.md")).is_err());
}

/// All pages of the repository: not what was built or cached.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![repository()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn broken_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let leads_somewhere = |target: &str| {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        path.exists()
            && (anchor.is_empty() || anchors(&fs::read_to_string(&path).unwrap()).contains(&anchor.into()))
    };
    let broken = targets(&prose(&text)).into_iter().filter(|target| !leads_somewhere(target));
    broken.map(|target| format!("{}: {target}", page.display())).collect()
}

/// What stands between `](` and `)`, unless it is on the web.
fn targets(prose: &str) -> Vec<String> {
    let after = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    after.map(|(target, _)| target.to_owned()).filter(|target| !target.contains("://")).collect()
}

/// Without listings and code.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut in_listing = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_listing = !in_listing;
        } else if !in_listing {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    // A label in code is a label: only a whole link in code is none.
    let mut outside = String::new();
    for (index, part) in prose.split('`').enumerate() {
        if index % 2 == 0 || !part.contains("](") {
            outside.push_str(part);
        }
    }
    outside
}

/// Names of headings as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut in_listing = false;
    let headings = text.lines().filter(|line| {
        in_listing ^= line.trim_start().starts_with("```");
        !in_listing && line.starts_with('#')
    });
    let word = |character: char| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => Some(character.to_ascii_lowercase()),
        _ => None,
    };
    headings.map(|line| line.trim_start_matches('#').trim().chars().filter_map(word).collect()).collect()
}

/// Listings that say that they are a configuration of casemate-kms.
fn configurations(text: &str) -> Vec<String> {
    let mut listings = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        if start.starts_with("```yaml") {
            let indent = line.len() - start.len();
            let listing: String = lines
                .by_ref()
                .take_while(|line| !line.trim_start().starts_with("```"))
                .map(|line| format!("{}\n", line.get(indent..).unwrap_or_default()))
                .collect();
            if listing.lines().any(|line| line == "kind: KmsConfiguration") {
                listings.push(listing);
            }
        }
    }
    listings
}

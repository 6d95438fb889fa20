//! Texts of who wants to be more than text.
use casemate_report::{Page, page};
use html5gum::{DefaultEmitter, Token, Tokenizer};
use proptest::prelude::*;

use crate::sample;

/// What a browser makes of a page: its elements with the names of their attributes, and all its text.
#[derive(Debug, PartialEq)]
struct Read {
    elements: Vec<String>,
    text: String,
    attributes: Vec<String>,
}

fn read(page: &Page) -> Read {
    let html = page.html();
    let body = html.strip_prefix(page::MARK).unwrap();
    let mut emitter = DefaultEmitter::<()>::default();
    emitter.naively_switch_states(true);
    let (mut elements, mut text, mut attributes) = (Vec::new(), String::new(), Vec::new());
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for token in Tokenizer::new_with_emitter(body, emitter) {
        match token.unwrap() {
            // Where a line may break depends on the text.
            Token::StartTag(tag) if *tag.name == b"wbr"[..] => {}
            Token::StartTag(tag) => {
                let names: Vec<String> = tag.attributes.keys().map(|name| shown(name)).collect();
                elements.push(format!("{} {}", shown(&tag.name), names.join(" ")));
                attributes.extend(tag.attributes.values().map(|value| shown(value)));
            }
            Token::EndTag(tag) => elements.push(format!("/{}", shown(&tag.name))),
            Token::String(part) => text += &shown(&part),
            other => panic!("{other:?}"),
        }
    }
    Read { elements, text, attributes }
}

fn texts() -> impl Strategy<Value = String> {
    let attack = prop::sample::select(vec![
        "<script>alert(1)</script>",
        "</title>",
        "</style><style>*{display:none}",
        "</svg>",
        "\" onload=\"alert(1)",
        "' x='",
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[",
        "&lt;",
        "&#60;",
        "&amp",
        "<base href=//a>",
        "</td></tr></table>",
        "<svg/onload=a>",
        "javascript:alert(1)",
        "<meta http-equiv=refresh content=0>",
        "<plaintext>",
        "url(http://a)",
    ]);
    let part = prop_oneof![attack.prop_map(str::to_owned), any::<String>(), "[ -~]{0,40}"];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn text_stays_text_wherever_it_stands(texts in prop::collection::vec(texts(), 1..8)) {
        let mut next = texts.iter().cycle();
        let hostile = read(&sample::page(|| next.next().unwrap().clone()));
        let harmless = read(&sample::page(|| "text".to_owned()));
        let mut pairs = hostile.elements.iter().zip(&harmless.elements);
        prop_assert!(pairs.all(|(one, other)| one == other), "an element was made by {:?}", texts);
        prop_assert_eq!(hostile.elements.len(), harmless.elements.len());
        for text in &texts {
            // What is not seen is written down otherwise.
            let is_seen = text.chars().all(|character| (' '..='\u{1fff}').contains(&character) && !character.is_control());
            prop_assert!(!is_seen || hostile.text.contains(text.as_str()), "{:?} is not there", text);
        }
    }
}

#[test]
fn what_is_not_seen_is_made_visible() {
    let html = sample::page(|| "a\u{202e}b\u{0}c\u{200b}d\u{1b}[31m\u{feff}".to_owned()).html();
    assert!(html.contains("a\\u{202e}b\\u{0}c\\u{200b}d\\u{1b}[31m\\u{feff}"), "{html}");
    let is_hidden = |character: char| character.is_control() && character != '\n' || character == '\u{202e}';
    assert!(!html.contains(is_hidden));
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    const ELEMENTS: &str = "html head meta title style body header main footer section div span p h1 h2 h3 ul li dl dt dd pre \
        code br figure figcaption table caption thead tbody tr th td svg defs pattern rect line circle path text desc";
    let page = read(&sample::page(sample::numbered()));
    for element in &page.elements {
        let mut words = element.split(' ');
        let name = words.next().unwrap().trim_start_matches('/');
        assert!(ELEMENTS.split(' ').any(|allowed| allowed == name), "{element}");
        for attribute in words {
            let loads = ["src", "href", "xlink:href", "style", "action", "srcset", "data", "poster"];
            assert!(!loads.contains(&attribute) && !attribute.starts_with("on"), "{element}");
        }
    }
    let policy = page.attributes.iter().find(|value| value.starts_with("default-src")).unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
}

#[test]
fn who_can_not_see_is_told_everything() {
    let page = read(&sample::page(sample::numbered()));
    let all = |begin: &str| -> Vec<&String> {
        page.elements.iter().filter(|element| element.starts_with(begin)).collect()
    };
    assert!(all("th ").len() == 5 && all("th ").iter().all(|th| th.contains("scope")));
    assert_eq!((all("table ").len(), all("caption").len(), all("figure ").len()), (1, 1, 3));
    assert!(all("figure ").iter().all(|figure| figure.contains("aria-labelledby")));
    let named = |element: &&String| element.contains("role") && element.contains("aria-label");
    // Two of bars and one of columns; signs of tones have names, too.
    assert_eq!(all("div ").into_iter().filter(named).count(), 2);
    assert_eq!(all("svg ").into_iter().filter(named).count(), 1 + 5);
}

//! Identity files.

use casemate_recipients::{Identity, IdentityError};

const ONE: &str = "AGE-SECRET-KEY-1ET0AKDGAEW5SKGVVUMXJKHXT3ET38HNRDEKDYDTGV5F54RRMREASPPUZW3";
const TWO: &str = "AGE-SECRET-KEY-14RZNRQRD9XLW4WFMEHDNN3J22V8KLC9CUN2U4FAZAXXDYC337PWQR3AW8Y";

#[test]
fn what_is_rendered_is_parsed() {
    let identity = Identity::generate();
    let text = identity.render("2026-11-30T00:00:00Z");
    assert!(text.contains("# created: 2026-11-30T00:00:00Z\n"));
    assert!(text.contains(&format!("# public key: {}\n", identity.recipient())));
    assert!(text.len() < 512, "it fits the room that was made for it");
    let again = Identity::parse(text.as_bytes()).unwrap();
    assert!(again.recipient() == identity.recipient() && *again.render("") == *identity.render(""));
    assert!(Identity::generate().recipient() != identity.recipient());
}

#[test]
fn one_identity_among_comments_is_accepted_and_nothing_else() {
    let failed =
        |text: &str| Identity::parse(text.as_bytes()).map(|identity| identity.recipient()).unwrap_err();
    for good in [ONE.to_owned(), format!("# one\r\n\r\n{ONE}\r\n"), format!("\n  {ONE}  \n# {TWO}")] {
        let recipient = Identity::parse(good.as_bytes()).map(|identity| identity.recipient().to_string());
        assert_eq!(recipient.unwrap(), "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2");
    }
    let mistyped = ONE.replace("ET0AK", "ET0AX");
    for (text, error) in [
        (String::new(), IdentityError::None),
        (format!("# {ONE}"), IdentityError::None),
        (format!("{ONE}\n#\n{TWO}"), IdentityError::Several { line: 3 }),
        (format!("{ONE}\n{ONE}"), IdentityError::Several { line: 2 }),
        (format!("#\n{mistyped}"), IdentityError::Malformed { line: 2 }),
        (ONE[..50].to_owned(), IdentityError::Malformed { line: 1 }),
        (ONE.to_lowercase(), IdentityError::Malformed { line: 1 }),
        (
            "age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2".to_owned(),
            IdentityError::Malformed { line: 1 },
        ),
        ("AGE-PLUGIN-YUBIKEY-1AAAA".to_owned(), IdentityError::OtherKind { line: 1 }),
        ("AGE-SECRET-KEY-PQ-1AAAA".to_owned(), IdentityError::OtherKind { line: 1 }),
        ("age-encryption.org/v1\n".to_owned(), IdentityError::Encrypted),
        ("-----BEGIN AGE ENCRYPTED FILE-----\n".to_owned(), IdentityError::Encrypted),
    ] {
        assert_eq!(failed(&text), error, "{text}");
        assert!(!failed(&text).to_string().contains("ET0"), "nothing is quoted");
    }
    assert!(matches!(Identity::parse(b"\xff\n"), Err(IdentityError::Malformed { line: 1 })));
}

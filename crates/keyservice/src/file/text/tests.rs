use proptest::prelude::*;

use super::*;
use crate::file::Haste;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 32]).unwrap()
}

/// Version 1 retired, 2 active, 3 staged.
fn sample() -> Keyring {
    let id = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
    let mut keyring =
        Keyring::new(id, Some("prod \"east\" \\ 1".parse().unwrap()), secret(1), at(1_764_500_000));
    keyring.stage(secret(2), at(1_764_600_000)).unwrap();
    keyring.activate(2, at(1_764_700_000), Haste::Wait).unwrap();
    keyring.stage(secret(3), at(1_764_800_000)).unwrap();
    keyring.retire(1, at(1_764_900_000)).unwrap();
    keyring
}

/// As [`render`] ends it.
fn sealed(body: &str) -> Vec<u8> {
    format!("{body}{TRAILER}{}\n", hex::encode(sha256(body.as_bytes()))).into_bytes()
}

fn sample_body() -> String {
    let text = render(&sample());
    text[..text.len() - TRAILER_LEN].to_owned()
}

#[test]
fn the_text_is_what_the_reference_shows() {
    let page = include_str!("../../../../../docs/reference/key-file.md");
    let text = render(&sample());
    assert!(page.contains(&**text), "docs/reference/key-file.md does not show\n{}", *text);
    assert_eq!(parse(text.as_bytes()), Ok(sample()));
    assert!(page.contains(sample().lineage(2).unwrap().as_str()));
    assert!(page.contains(&hex::encode(*secret(2).wrap_key())));
}

#[test]
fn no_changed_missing_or_added_byte_is_accepted() {
    let whole = render(&sample()).as_bytes().to_vec();
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[place] ^= 1 << bit;
            let error = parse(&changed).unwrap_err();
            assert!(matches!(error, KeyFileError::Changed | KeyFileError::Truncated), "{place}: {error}");
        }
        for value in [0, b' ', b'\n', b'0', 0xff] {
            let mut changed = whole.clone();
            if std::mem::replace(&mut changed[place], value) != value {
                assert!(parse(&changed).is_err(), "{place} set to {value}");
            }
            let mut longer = whole.clone();
            longer.insert(place, value);
            assert!(parse(&longer).is_err(), "{value} at {place}");
        }
        let mut shorter = whole.clone();
        shorter.remove(place);
        assert!(parse(&shorter).is_err(), "without {place}");
    }
    for length in 0..whole.len() {
        let expected = if length == 0 { KeyFileError::Empty } else { KeyFileError::Truncated };
        assert_eq!(parse(&whole[..length]), Err(expected), "{length}");
        assert!(parse(&whole[length + 1..]).is_err(), "from {length}");
    }
    assert_eq!(parse(&[whole.as_slice(), b"\n"].concat()), Err(KeyFileError::Truncated));
    assert_eq!(parse(&[whole.as_slice(), &whole].concat()), Err(KeyFileError::Changed));
    assert_eq!(parse(&vec![0; MAX_LEN + 1]), Err(KeyFileError::TooLarge));
}

/// What somebody who makes a right checksum can still get wrong.
#[test]
fn a_whole_file_must_make_sense() {
    let body = sample_body();
    let without = |line: &str| {
        body.lines().filter(|found| !found.trim_start().starts_with(line)).map(|l| format!("{l}\n")).collect()
    };
    let secret_2 = STANDARD.encode([2; 32]);
    let cases: [(&str, String, &str); 20] = [
        ("another format", body.replace("file-key/v1", "file-key/v2"), "apiVersion"),
        ("no format", without("apiVersion"), "not of the format"),
        ("unknown field", body.replace("active: 2", "active: 2\nextra: 1"), "not of the format"),
        (
            "unknown field of a version",
            body.replace("number: 2", "number: 2\n    extra: 1"),
            "not of the format",
        ),
        ("doubled field", body.replace("active: 2", "active: 2\nactive: 2"), "not of the format"),
        ("second document", format!("{body}---\n{body}"), "not of the format"),
        ("alias", body.replace("active: 2", "active: &a 2"), "not of the format"),
        ("id", body.replace("id: \"00", "id: \"0"), "not of the format"),
        ("no versions", body[..body.find("versions:").unwrap()].to_owned() + "versions: []\n", "0 versions"),
        ("gap", body.replace("number: 3", "number: 4"), "stands where 3 is due"),
        ("doubled number", body.replace("number: 3", "number: 2"), "stands where 3 is due"),
        ("active is not there", body.replace("active: 2", "active: 4"), "does not stand in it"),
        ("active is 0", body.replace("active: 2", "active: 0"), "activated after version 0"),
        ("active is retired", body.replace("active: 2", "active: 1"), "activated after version 1"),
        ("active was not activated", body.replace("active: 2", "active: 3"), "never activated"),
        ("other secret", body.replace(&secret_2, &STANDARD.encode([9; 32])), "secret of version 2"),
        ("short secret", body.replace(&secret_2, &STANDARD.encode([2; 31])), "not of the format"),
        ("long secret", body.replace(&secret_2, &STANDARD.encode([2; 33])), "not of the format"),
        ("neither secret nor retired", without("retired:"), "version 1 has not exactly one"),
        ("not a time", body.replace("staged: 2025-12-01", "staged: 2025-13-01"), "not of the format"),
    ];
    for (name, changed, expected) in cases {
        assert_ne!(changed, body, "{name} changes nothing");
        let error = parse(&sealed(&changed)).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let mut binary = body.clone().into_bytes();
    binary.splice(body.len().., [b'#', 0xff, b'\n']);
    let digest = hex::encode(sha256(&binary));
    binary.extend_from_slice(format!("{TRAILER}{digest}\n").as_bytes());
    assert!(matches!(parse(&binary), Err(KeyFileError::Malformed { .. })));
    assert_eq!(parse(&sealed(&body)), Ok(sample()), "the unchanged body is accepted");
}

#[test]
fn errors_say_where_and_show_nothing() {
    let misplaced = STANDARD.encode([0x5a; 32]);
    for changed in [
        sample_body().replace("number: 2", &format!("number: \"{misplaced}\"")),
        sample_body().replace("active: 2", &format!("active: 2\n{misplaced}: 1")),
        sample_body().replace("id: \"", &format!("id: \"{misplaced}")),
        sample_body().replace("staged: ", &format!("staged: {misplaced}")),
    ] {
        let error = parse(&sealed(&changed)).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(matches!(error, KeyFileError::Malformed { line: 1.., .. }), "{shown}");
        assert!(!shown.contains(&misplaced[..8]), "{shown}");
    }
}

#[test]
fn the_largest_key_file_fits() {
    let comment = "\"".repeat(200).parse().unwrap();
    let mut keyring = Keyring::new(FileKeyId::generate(), Some(comment), secret(0), at(0));
    for byte in 1..=u8::MAX {
        let number = keyring.stage(secret(byte), at(i64::from(byte))).unwrap();
        keyring.activate(number, at(4_000_000_000), Haste::Wait).unwrap();
    }
    let text = render(&keyring);
    assert!(text.len() < MAX_LEN, "{}", text.len());
    assert_eq!(parse(text.as_bytes()), Ok(keyring));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        id in any::<[u8; 16]>(),
        comment in proptest::option::of("[ -~äß漢]{1,40}"),
        steps in proptest::collection::vec((0u8..3, 1u32..12, any::<[u8; 32]>(), 0i64..250_000_000_000), 0..30),
    ) {
        let id = hex::encode(id).parse().unwrap();
        let first = Secret::from_bytes(&[0; 32]).unwrap();
        let mut keyring = Keyring::new(id, comment.map(|text| text.parse().unwrap()), first, at(0));
        for (verb, number, bytes, now) in steps {
            match verb {
                0 => drop(keyring.stage(Secret::from_bytes(&bytes).unwrap(), at(now))),
                1 => drop(keyring.activate(number, at(now), Haste::Wait)),
                _ => drop(keyring.retire(number, at(now))),
            }
        }
        prop_assert_eq!(parse(render(&keyring).as_bytes()), Ok(keyring));
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(parse(&bytes).is_err());
        let body = String::from_utf8_lossy(&bytes).into_owned() + "\n";
        prop_assert!(parse(&sealed(&body)).is_err());
    }
}

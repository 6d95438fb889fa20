use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Version 1 is active since 0, 2 staged at 0, 3 at 1000.
fn three() -> Keyring {
    let mut keyring = Keyring::new(FileKeyId::generate(), None, Secret::generate(), at(0));
    assert_eq!(keyring.stage(Secret::generate(), at(0)), Ok(2));
    assert_eq!(keyring.stage(Secret::generate(), at(1_000)), Ok(3));
    keyring
}

fn states(keyring: &Keyring) -> Vec<State> {
    keyring.versions().map(|(number, _)| keyring.state(number).unwrap()).collect()
}

#[test]
fn a_new_key_writes_with_version_1() {
    let keyring = Keyring::new(FileKeyId::generate(), None, Secret::generate(), at(5));
    assert_eq!((keyring.active(), keyring.highest(), keyring.newest_staged()), (1, 1, None));
    assert_eq!(states(&keyring), [State::Active]);
    assert_eq!(keyring.version(1).unwrap().activated_at(), Some(at(5)));
    assert_eq!((keyring.version(0), keyring.version(2)), (None, None));
}

#[test]
fn activations() {
    use ChangeRefused::{Backwards, NoSuchVersion, TooFresh};
    let fresh = |wait| Err(TooFresh { number: 3, staged: at(1_000), wait: Duration::from_secs(wait) });
    let cases = [
        // number, now, haste, outcome, active afterwards
        (1, 1_000, Haste::Wait, Ok(Change::AlreadySo), 1),
        (2, 599, Haste::Now, Ok(Change::Made), 2),
        (2, 600, Haste::Wait, Ok(Change::Made), 2),
        (3, 1_000, Haste::Wait, fresh(600), 1),
        (3, 1_599, Haste::Wait, fresh(1), 1),
        (3, 1_600, Haste::Wait, Ok(Change::Made), 3),
        (3, 1_599, Haste::Now, Ok(Change::Made), 3),
        // This host's clock is a minute behind.
        (3, 940, Haste::Wait, fresh(660), 1),
        (0, 9_000, Haste::Now, Err(NoSuchVersion { number: 0, highest: 3 }), 1),
        (4, 9_000, Haste::Now, Err(NoSuchVersion { number: 4, highest: 3 }), 1),
    ];
    for (number, now, haste, outcome, active) in cases {
        let mut keyring = three();
        let before = keyring.clone();
        assert_eq!(keyring.activate(number, at(now), haste), outcome, "{number} at {now}");
        assert_eq!(keyring.active(), active);
        if outcome != Ok(Change::Made) {
            assert_eq!(keyring, before, "{number} at {now}");
        }
    }

    let mut keyring = three();
    keyring.activate(3, at(5_000), Haste::Wait).unwrap();
    assert_eq!(states(&keyring), [State::Superseded, State::Staged, State::Active]);
    for earlier in [1, 2] {
        assert_eq!(keyring.activate(earlier, at(9_000), Haste::Now), Err(Backwards { active: 3 }));
    }
    assert_eq!(keyring.newest_staged(), None);
    assert_eq!(keyring.version(3).unwrap().activated_at(), Some(at(5_000)));
}

#[test]
fn retirements() {
    let mut keyring = three();
    assert_eq!(keyring.retire(1, at(7)), Err(ChangeRefused::Active { number: 1 }));
    assert_eq!(keyring.retire(4, at(7)), Err(ChangeRefused::NoSuchVersion { number: 4, highest: 3 }));
    keyring.activate(2, at(5_000), Haste::Wait).unwrap();

    let lineage = keyring.lineage(1);
    assert_eq!(keyring.retire(1, at(6_000)), Ok(Change::Made));
    assert_eq!(keyring.retire(1, at(7_000)), Ok(Change::AlreadySo));
    assert_eq!(keyring.retire(3, at(7_000)), Ok(Change::Made));
    assert_eq!(states(&keyring), [State::Retired, State::Active, State::Retired]);
    assert_eq!(keyring.version(1).unwrap().retired_at(), Some(at(6_000)));
    assert_eq!(keyring.version(1).unwrap().secret(), None);
    assert_eq!(keyring.lineage(1), lineage, "a retired version keeps its name");
    assert_eq!(
        keyring.activate(3, at(9_000), Haste::Now),
        Err(ChangeRefused::Retired { number: 3, at: at(7_000) })
    );
    assert_eq!(keyring.stage(Secret::generate(), at(9_000)), Ok(4), "numbers are not used again");
}

#[test]
fn a_full_key_file_takes_no_more() {
    let mut keyring = three();
    while keyring.highest() < u32::try_from(MAX_VERSIONS).unwrap() {
        keyring.stage(Secret::generate(), at(0)).unwrap();
    }
    assert_eq!(keyring.stage(Secret::generate(), at(0)), Err(ChangeRefused::Full));
}

#[test]
fn the_refusal_of_a_fresh_version_says_how_long_and_why() {
    let text = three().activate(3, at(1_055), Haste::Wait).unwrap_err().to_string();
    for part in ["version 3", "wait 9m 05s more", "Every control plane node needs the file", "--now"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Computed with Python: HMAC-SHA256 of 00000001 ‖ label ‖ 00 ‖ 00000100 under 32 × 0b.
#[test]
fn derivations_agree_with_an_independent_implementation() {
    let secret = Secret::from_bytes(&[0x0b; 32]).unwrap();
    assert_eq!(secret.check(), "1e44547d05aed12d");
    assert_eq!(
        hex::encode(*secret.wrap_key()),
        "b5f239fedb1386f083ff39096fee22d84a81d84073d546e3acd3cff099d20ad5"
    );
    let mut keyring = three();
    keyring.id = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
    keyring.versions[1] = Version::staged(secret, at(0));
    assert_eq!(
        keyring.lineage(2).unwrap().as_str(),
        "file:000102030405060708090a0b0c0d0e0f/2/1e44547d05aed12d"
    );
}

#[test]
fn ids_have_one_spelling() {
    let id = FileKeyId::generate();
    assert_eq!(id.to_string().parse(), Ok(id));
    let hex = "000102030405060708090a0b0c0d0e0f";
    for bad in ["", &hex[1..], &format!("{hex}00"), &hex.to_uppercase(), &format!(" {}", &hex[1..])] {
        assert!(bad.parse::<FileKeyId>().is_err(), "{bad:?}");
    }
}

#[test]
fn comments_are_one_line() {
    for good in ["x", "prod: \"rack\" 3 \\ \u{e4}", &"a".repeat(200)] {
        assert!(good.parse::<Comment>().is_ok(), "{good:?}");
    }
    for bad in ["", "a\nb", "a\tb", "\u{feff}", "\u{2028}", "\u{202e}", &"a".repeat(201)] {
        assert!(bad.parse::<Comment>().is_err(), "{bad:?}");
    }
}

#[test]
fn debug_shows_no_secret() {
    let secret = Secret::from_bytes(&[0xab; 32]).unwrap();
    let keyring = Keyring::new(FileKeyId::generate(), None, secret, at(0));
    let shown = format!("{keyring:?}");
    assert!(shown.contains("Secret(…)") && !shown.contains("171") && !shown.contains("abab"), "{shown}");
}

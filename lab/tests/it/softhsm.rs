//! SoftHSM's tokens, as `pkcs11-tool` sees them.

use aws_lc_rs::digest::{SHA256, digest};
use casemate_lab::softhsm::{Class, Object, SoftHsm, Token};
use tempfile::TempDir;

const PIN: &str = "1234";

fn host() -> (TempDir, SoftHsm) {
    let folder = TempDir::new().unwrap();
    let hsm = SoftHsm::create(&folder.path().join("hsm")).unwrap();
    (folder, hsm)
}

fn labels(token: &Token, pin: &str) -> Vec<String> {
    token.objects(pin).unwrap().into_iter().map(|object| object.label).collect()
}

#[test]
fn keys_are_made_listed_and_deleted() {
    let (_folder, hsm) = host();
    let token = hsm.init_token("main", PIN).unwrap();
    assert_eq!((token.label(), token.serial().len()), ("main", 16));
    assert_eq!(token.objects(PIN).unwrap(), []);

    let aes = token.new_aes_key(PIN, "kek").unwrap();
    assert_eq!(aes.len(), 16);
    let kind = "Secret Key Object; AES length 32".to_owned();
    assert_eq!(token.objects(PIN).unwrap(), [Object { kind, label: "kek".into(), id: aes.clone() }]);
    // Two keys of one label, as a rotation by label finds them.
    let other = token.new_aes_key(PIN, "kek").unwrap();
    assert_ne!(aes, other);
    token.delete(PIN, Class::Secret, &aes).unwrap();
    let left = token.objects(PIN).unwrap();
    assert_eq!(left.iter().map(|object| &object.id).collect::<Vec<_>>(), [&other]);

    for bits in [2048, 3072] {
        let id = token.new_rsa_pair(PIN, "rsa", bits).unwrap();
        let public = token.public_key(PIN, &id).unwrap();
        // The modulus and 38 bytes around it.
        assert_eq!(public.len() as u32, bits / 8 + 38);
        assert_eq!(digest(&SHA256, &public).as_ref().len(), 32);
    }
    assert_eq!(token.objects(PIN).unwrap().len(), 5);
}

#[test]
fn two_tokens_of_one_label_are_two() {
    let (_folder, hsm) = host();
    let (left, right) = (hsm.init_token("same", PIN).unwrap(), hsm.init_token("same", "4321").unwrap());
    assert_eq!(left.label(), right.label());
    assert_ne!(left.serial(), right.serial());
    left.new_aes_key(PIN, "of-left").unwrap();
    right.new_aes_key("4321", "of-right").unwrap();
    assert_eq!(labels(&left, PIN), ["of-left"]);
    assert_eq!(labels(&right, "4321"), ["of-right"]);
}

#[test]
fn a_pin_is_changed_by_its_user_and_set_by_the_officer() {
    let (_folder, hsm) = host();
    let token = hsm.init_token("main", PIN).unwrap();
    let wrong = token.new_aes_key("9999", "kek").unwrap_err().to_string();
    assert!(wrong.contains("CKR_PIN_INCORRECT"), "{wrong}");
    token.change_pin(PIN, "5678").unwrap();
    token.objects(PIN).unwrap_err();
    token.new_aes_key("5678", "kek").unwrap();
    token.set_pin("1111").unwrap();
    assert_eq!(labels(&token, "1111"), ["kek"]);
}

#[test]
fn a_token_is_pulled_put_back_and_restored_from_a_backup() {
    let (_folder, hsm) = host();
    let token = hsm.init_token("main", PIN).unwrap();
    token.new_aes_key(PIN, "old").unwrap();
    token.pull().unwrap();
    token.objects(PIN).unwrap_err();
    token.put_back().unwrap();
    assert_eq!(labels(&token, PIN), ["old"]);

    let backup = token.back_up().unwrap();
    token.new_aes_key(PIN, "new").unwrap();
    assert_eq!(labels(&token, PIN).len(), 2);
    token.restore(&backup).unwrap();
    assert_eq!(labels(&token, PIN), ["old"]);
}

#![allow(clippy::unwrap_used)]

use std::path::Path;

use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm};

use crate::config::Config;
use crate::reload::rules::may_take_over;

const P256: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEoTnJP/GgNIeCpDTn62U2Q+ABmrsT
34vv9fGoV/B0tFUfqy++AUhS7XBaIzwdj0H5vvpFffmfUe4GRsYXJIOZcw==
-----END PUBLIC KEY-----
";
const P384: &str = "\
-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEk5LrBfFQatZo/W7qGjJZ3ttFSCWeF7Xh
JBNGibuuw/MKx+BP7DsfVv2PWVIYiYucvBhvXD/XMoetJch/jsJtoDRGGxiDDXEU
elZVRNnVcv29TquhEfb9ENpGavQS54uu
-----END PUBLIC KEY-----
";
/// It is `pkcs11:e2d01257b411bc9b9654370b611b50bd`.
const RSA_3072: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBojANBgkqhkiG9w0BAQEFAAOCAY8AMIIBigKCAYEA0C+tGWqFGPpF+UPpZuyg
9t+gOqsxXXzhm0IP+YEU1IdghMvlqLI0wov+/BikubXVVvJq2pGL4lfvt6N3XLJq
kCZt+08C6kxwb4zLbVwSq1KE/HAuLbJeCjz9X9aSC83YbsS6JdL5/dHfTsEqdDqK
QH7In1OIKB8BhVnnepjjH3hPNw2gpJnDMF6D1IXIETps6ydDhUrtycdpZfsQHXyc
Q9NweNgBtMJ3tOhgPx9u23gQVL4WG7ZaWFOtg7Ug6tiY9AdnQVsuroSnzo1zK9/h
bbbowoK/xVtxbioWMmrfdGUKxI5xX93dOAYCFYTYydSLluE3WuqB8OMWQnAd/JIq
WysJj4qPYktNfoPKs5AYZGU6sahwoTZYl/ZLjrEhPZLedivYF5r7LmLMYQTcW66G
8xF/PwsxaFKYhSsY/aI/a43jOGjQ+q82036vIAnSP+41U+ihh0s/rnONph5qmIgf
7jqJ7W85+AKY7lripq68uCOfdMBno0nNWwOxioTH/Kd9AgMBAAE=
-----END PUBLIC KEY-----
";
const SIGNER: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OLDER: &str = "pkcs11:e2d01257b411bc9b9654370b611b50bd";

fn block(pem: &str) -> String {
    pem.lines().fold("|".into(), |block, line| format!("{block}\n        {line}"))
}

fn signer(key: &str, pem: &str) -> String {
    let pkcs11 = format!("{{module: /lib/p11.so, token: {{label: t}}, pinFile: /etc/pin, key: {key}}}");
    format!("    signer:\n      pkcs11: {pkcs11}\n      publicKey: {}\n", block(pem))
}

fn signers(name: &str, lineage: &str, pem: &str) -> String {
    format!("    signers:\n    - name: {name}\n      lineage: {lineage}\n      publicKey: {}\n", block(pem))
}

/// One RSA root key that writes; `more` are further fields of the provider.
fn text(more: &str) -> String {
    format!(
        "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nproviders:\n  - name: a\n    \
         endpoint: unix:///run/a.sock\n    rootKeys:\n    - name: hsm\n      pkcs11:\n        module: /lib/p11.so\n        \
         token: {{label: t}}\n        pinFile: /etc/pin\n        mechanism: rsa-oaep\n        keys: [bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]\n{more}"
    )
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/kms.yaml")).map_err(|error| error.to_string())
}

/// That key only reads.
fn reading(more: &str) -> String {
    let file =
        "    - name: f\n      file: {path: /k, id: \"cccccccccccccccccccccccccccccccc\"}\n    readKeys:\n";
    text(more).replace("rootKeys:\n", &format!("rootKeys:\n{file}"))
}

#[test]
fn whose_signatures_are_believed_stands_in_the_configuration() {
    let both = signer(SIGNER, P256) + &signers("older", OLDER, RSA_3072);
    let config = parse(&text(&both)).unwrap();
    let provider = &config.providers[0];
    let OriginPolicy::Signed(pinned) = provider.read_policy(&config.cluster_id).origin else {
        unreachable!("it is not said that anything else is accepted")
    };
    let named: Vec<_> = pinned.iter().map(|one| (one.lineage.as_str(), one.algorithm)).collect();
    let own = format!("pkcs11:{SIGNER}");
    assert_eq!(named, [(&*own, SignatureAlgorithm::EcdsaP256), (OLDER, SignatureAlgorithm::RsaPss3072)]);
    // On the same terms the module is held once.
    let hosts: Vec<_> = config.hosts().collect();
    assert_eq!((hosts.len(), &hosts[0]), (2, &hosts[1]));

    let other = both.replace("pinFile: /etc/pin", "pinFile: /etc/other");
    let config = parse(&text(&other)).unwrap();
    assert_ne!(config.hosts().next(), config.hosts().last());
    assert!(config.files(Path::new("/c")).contains(&"/etc/other".into()));

    let config = parse(&text(&(both + "    acceptUnprovenOrigin: true\n"))).unwrap();
    assert_eq!(config.providers[0].origin(), OriginPolicy::AcceptUnproven);
    for more in [signers("a", OLDER, RSA_3072), "    acceptUnprovenOrigin: true\n".into()] {
        assert!(parse(&reading(&more)).is_ok());
    }
}

#[test]
fn an_rsa_key_needs_who_proves_its_records() {
    let private = P256.replace("PUBLIC", "PRIVATE");
    let cut = P256.replace("-----END PUBLIC KEY-----\n", "");
    let twice = signer(SIGNER, P256) + &signers("a", &format!("pkcs11:{SIGNER}"), P256);
    let own = signer(SIGNER, P256);
    #[rustfmt::skip]
    let wrong = [
        (text(""), 13, &["mechanism:", "root key hsm", "`signer`"][..]),
        (text(&signers("a", OLDER, RSA_3072)), 13, &["mechanism:", "`signer`"]),
        (text("    acceptUnprovenOrigin: true\n"), 13, &["mechanism:", "`signer`"]),
        (reading(""), 16, &["mechanism:", "root key hsm", "`signers`"]),
        (reading("    acceptUnprovenOrigin: false\n"), 16, &["mechanism:", "`signers`"]),
        (text("").replace("rsa-oaep", "rsa-oaep-sha1"), 13, &["mechanism:", "rsa-oaep-sha1", "and rsa-oaep"]),
        (text(&signer(SIGNER, &private)), 18, &["publicKey", "BEGIN PUBLIC KEY"]),
        (text(&signer(SIGNER, &cut)), 18, &["publicKey", "BEGIN PUBLIC KEY"]),
        (text(&signer(SIGNER, "nothing")), 18, &["publicKey", "BEGIN PUBLIC KEY"]),
        (text(&signer(SIGNER, P384)), 18, &["publicKey", "P-256", "3072"]),
        (text(&signer(SIGNER, RSA_3072)), 16, &["publicKey:", OLDER, SIGNER]),
        (text(&signer("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", P256)), 16, &["signer:", "root key too"]),
        (text(&twice), 24, &["signers:", SIGNER, "line 16"]),
        (text(&(own.clone() + &signers("A", OLDER, RSA_3072))), 23, &["name:", "a-z"]),
        (text(&(own.clone() + &signers("a", "pkcs11", RSA_3072))), 24, &["lineage:", "pkcs11"]),
        (text(&own.replace("key: aaaa", "label: aaaa")), 16, &["label", "unknown field", "key"]),
    ];
    for (text, line, told) in wrong {
        let error = parse(&text).expect_err(&text);
        assert!(error.starts_with(&format!("/etc/kms.yaml:{line}:")), "line {line}: {error}");
        assert!(told.iter().all(|part| error.contains(part)), "{told:?}: {error}");
        assert!(!error.contains("MFkw"), "{error}");
    }
}

#[test]
fn a_running_process_goes_on_to_believe_whom_it_believed() {
    let own = signer(SIGNER, P256);
    let [one, both, other] = [
        own.clone(),
        own.clone() + &signers("older", OLDER, RSA_3072),
        signer("dddddddddddddddddddddddddddddddd", P256) + &signers("s", &format!("pkcs11:{SIGNER}"), P256),
    ]
    .map(|more| parse(&text(&more)).unwrap());
    let accepting = parse(&text(&(own + "    acceptUnprovenOrigin: true\n"))).unwrap();
    for (before, after) in [(&one, &both), (&one, &other), (&one, &accepting), (&both, &accepting)] {
        assert_eq!(may_take_over(before, after, 0), Ok(()));
        assert!(!before.providers[0].is_same_behind_the_door(&after.providers[0]));
    }
    for (before, after, why) in [
        (&both, &one, format!("signer {OLDER} is missing")),
        (&both, &other, format!("signer {OLDER} is missing")),
        (&other, &one, "signer pkcs11:dddd".to_owned()),
        (&accepting, &one, "acceptUnprovenOrigin changed from true to false".to_owned()),
    ] {
        let refused = may_take_over(before, after, 0).unwrap_err().to_string();
        assert!(refused.contains(&why) && refused.contains("restart"), "{refused}");
    }
    assert!(one.providers[0].is_same_behind_the_door(&one.providers[0]));
}

#![allow(clippy::unwrap_used)]

use super::*;

/// A file with one provider, which is on line 6.
fn with(provider: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers:\n  - {provider}\n"
    )
}

fn refusal(text: &str) -> String {
    EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap_err().to_string()
}

#[test]
fn a_refusal_names_line_field_what_was_found_and_what_to_do() {
    let kms = "resources[0].providers[0].kms";
    for (provider, told) in [
        (
            "kms: {apiVersion: v2, name: a, endpoint: 'unix:///x', timeout: 3}",
            format!("line 6, column 59: {kms}.timeout: found a number; accepted is text: put it in quotes"),
        ),
        (
            "kms: {apiVersion: v2, name: a, endpoint: 'unix:///x', timeout: 0s}",
            format!(
                "line 6, column 59: {kms}.timeout: found `0s`; accepted is a time above zero with its unit, such as \
                 `3s`, `500ms` or `1m30s`: write that"
            ),
        ),
        (
            "kms: {name: a, endpoint: 'unix:///x'}",
            format!(
                "line 6, column 5: {kms}: found a plugin of KMS v1, which is also what no `apiVersion` means; accepted \
                 is `v2`: write `apiVersion: v2`, or start the API server with `--feature-gates=KMSv1=true`"
            ),
        ),
        (
            "kms: {apiVersion: v2, name: 'a:b', endpoint: 'unix:///x'}",
            format!(
                "line 6, column 27: {kms}.name: found `a:b`; accepted is a name without `:`: take another, it becomes \
                 part of what is stored"
            ),
        ),
        (
            "kms: {apiVersion: v2, endpoint: 'unix:///x'}",
            format!("line 6, column 5: {kms}.name: found nothing; needed is a name: write it"),
        ),
        (
            "aescbc: {keys: [{name: a, secret: YWJj}]}",
            "line 6, column 31: resources[0].providers[0].aescbc.keys[0].secret: found a key of 3 bytes; accepted are \
             16, 24, 32: make one of such a length"
                .to_owned(),
        ),
        (
            "aescbc: {keyz: []}",
            "line 6, column 14: resources[0].providers[0].aescbc: unknown field `keyz`; accepted are `keys`: correct or \
             remove it"
                .to_owned(),
        ),
        (
            "{}",
            "line 6, column 5: resources[0].providers[0]: found nothing; needed is one of aesgcm, aescbc, secretbox, \
             identity, kms: write it"
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(&with(provider)), told);
    }
    assert_eq!(refusal(""), "the file is empty: write a configuration, or start the API server without one");
    assert_eq!(
        refusal("kind: Pod\n"),
        "line 1, column 1: apiVersion: found apiVersion ``, kind `Pod`; accepted is `apiserver.config.k8s.io/v1`, \
         `EncryptionConfiguration`: correct both"
    );
}

#[test]
fn each_problem_is_told() {
    let text = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, secrets, '*.']
  providers:
  - secretbox: {keys: [{name: '', secret: YWJj}]}
- resources: ['*.apps']
  providers: []
- resources: [deployments.apps]
  providers: [{identity: {}}]
";
    let refused = EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap_err();
    let told: Vec<(usize, &str)> =
        refused.problems().iter().map(|found| (found.position.unwrap().line, found.field.as_str())).collect();
    assert_eq!(
        told,
        [
            (5, "resources[0].resources[1]"),
            (5, "resources[0].resources[2]"),
            (7, "resources[0].providers[0].secretbox.keys[0].name"),
            (7, "resources[0].providers[0].secretbox.keys[0].secret"),
            (9, "resources[1].providers"),
            (10, "resources[2].resources[0]"),
        ]
    );
}

#[test]
fn what_the_file_does_not_say_has_its_default() {
    let flags = ServerFlags { kms_v1: true, ..ServerFlags::default() };
    let read = |provider: &str| {
        let config = EncryptionConfiguration::read(with(provider).as_bytes(), flags).unwrap();
        config.entries[0].providers[0].clone()
    };
    let Provider::KmsV1(v1) = read("kms: {name: a, endpoint: 'unix:///x'}") else { panic!("not v1") };
    assert_eq!((v1.cache_size, v1.timeout), (1000, Duration::from_secs(3)));
    let Provider::KmsV1(v1) = read("kms: {name: a, endpoint: 'unix:///x', cachesize: -0x5, timeout: 1.5s}")
    else {
        panic!("not v1")
    };
    assert_eq!((v1.cache_size, v1.timeout), (-5, Duration::from_millis(1500)));
    let Provider::KmsV2(v2) = read("kms: {apiVersion: v2, name: a, endpoint: 'unix:///x'}") else {
        panic!("not v2")
    };
    assert_eq!(v2.timeout, Provider::DEFAULT_TIMEOUT);
}

/// A key that stands where a field's name should be is not quoted; what people mistype is.
#[test]
fn a_key_in_the_place_of_a_field_is_not_shown() {
    for key in ["MDEyMzQ1Njc4OWFiY2RlZg==", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY", "a b"] {
        let told = refusal(&with(&format!("secretbox: {{keys: [{{name: k, '{key}': x}}]}}")));
        assert!(!told.contains(key) && told.contains("it may be a key"), "{told}");
    }
    let told = refusal(&with("secretbox: {keys: [{name: k, Secret: x}]}"));
    assert!(told.contains("unknown field `Secret`"), "{told}");
}

#[test]
fn what_is_too_big_is_refused_in_time() {
    let bomb: String =
        (0..40).map(|level| format!("a{level}: &a{level} [*a{}, *a{}]\n", level - 1, level - 1)).collect();
    let bomb = bomb.replacen("[*a-1, *a-1]", "[x, x]", 1);
    let wide = format!("resources: [{}]", "~,".repeat(200_000));
    let deep_json = format!("{{\"a\": {}", "[".repeat(100_000));
    let deep = format!("a: {}", "[".repeat(100_000));
    for text in [&bomb, &wide, &deep_json] {
        assert!(refusal(text).contains("too deep or too big"), "{}", refusal(text));
    }
    assert!(refusal(&deep).contains("not YAML") || refusal(&deep).contains("too deep"));
}

//! Root keys in key services.

use super::*;

/// Every field of key services that are not files.
pub(super) const SERVICES: &str = "\
apiVersion: casemate.dev/v1alpha1
kind: KmsConfiguration
clusterId: prod
providers:
  - name: casemate
    endpoint: unix:///run/casemate/kms.sock
    rootKeys:
      - name: bao
        version: latest
        minReadVersion: 2
        transit:
          addresses: [\"https://bao-0.example:8200\", \"https://10.0.0.5\"]
          namespace: team-a
          mount: kv/transit
          key: k8s
          authNamespace: \"\"
          auth:
            appRole: {mount: approle, roleId: r, secretIdFile: /etc/casemate/secret-id, wrapped: false}
          tls:
            caFile: /etc/casemate/ca.pem
            serverName: bao.example
            clientCertificateFile: /etc/casemate/tls/client.pem
            clientKeyFile: /etc/casemate/tls/client.key
      - name: hsm
        pkcs11:
          module: /usr/lib/softhsm/libsofthsm2.so
          token: {label: k8s}
          pinFile: /etc/casemate/pin
          mechanism: aes-kwp
          keys: [000102030405060708090a0b0c0d0e0f, \"10111213141516171819202122232425\"]
          writes: {label: casemate-write}
          folders: [/var/lib/softhsm/tokens]
          network: false
          environment: {SOFTHSM2_CONF: /etc/softhsm/softhsm2.conf}
    readKeys:
      - name: local-bao
        transit: {addresses: [\"http://127.0.0.1:8200\"], key: old, auth: {tokenFile: {path: /etc/casemate/token}}}
    removedReadKeys:
      - transit: {namespace: team-b, key: gone}
      - pkcs11: {keys: [ffffffffffffffffffffffffffffffff]}
    signer:
      publicKey: |
        -----BEGIN PUBLIC KEY-----
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEoTnJP/GgNIeCpDTn62U2Q+ABmrsT
        34vv9fGoV/B0tFUfqy++AUhS7XBaIzwdj0H5vvpFffmfUe4GRsYXJIOZcw==
        -----END PUBLIC KEY-----
      pkcs11:
        module: /usr/lib/softhsm/libsofthsm2.so
        token: {label: signer}
        pinFile: /etc/casemate/signer-pin
        key: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        folders: [/var/lib/softhsm/tokens]
        network: false
        environment: {SOFTHSM2_CONF: /etc/softhsm/softhsm2.conf}
    signers:
      - name: older
        lineage: pkcs11:dddddddddddddddddddddddddddddddd
        publicKey: |
          -----BEGIN PUBLIC KEY-----
          MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEoTnJP/GgNIeCpDTn62U2Q+ABmrsT
          34vv9fGoV/B0tFUfqy++AUhS7XBaIzwdj0H5vvpFffmfUe4GRsYXJIOZcw==
          -----END PUBLIC KEY-----
    acceptUnprovenOrigin: true
";

/// (what is replaced in [`SERVICES`], by what, the line of the error, what its text must hold)
#[rustfmt::skip]
const BROKEN_SERVICES: &[(&str, &str, u64, &[&str])] = &[
    ("version: latest", "version: label", 9, &["version:", "root key bao", "no labels", "`latest`"]),
    ("        transit:\n          addresses: [\"h", "        file: {path: /a, id: 0123456789abcdef0123456789abcdef}\n        transit:\n          addresses: [\"h", 8, &["root key bao", "exactly one of"]),
    ("        transit: {addresses: [\"http://127.0.0.1:8200\"], key: old, auth: {tokenFile: {path: /etc/casemate/token}}}", "        minReadVersion: 1", 36, &["root key local-bao", "exactly one of"]),
    ("addresses: [\"https://bao-0.example:8200\", \"https://10.0.0.5\"]", "addresses: []", 12, &["at least one"]),
    ("https://10.0.0.5", "http://10.0.0.5", 12, &["addresses:", "http is not protected"]),
    ("https://10.0.0.5", "https://user:pass@10.0.0.5", 12, &["addresses:", "password"]),
    ("key: k8s", "key: a/b", 15, &["key:", "root key bao", "a/b"]),
    ("key: k8s", "keys: k8s", 15, &["keys", "unknown field"]),
    ("appRole: {mount: approle, roleId: r,", "appRole: {mount: approle,", 15, &["auth:", "roleId or roleIdFile"]),
    ("roleId: r,", "roleId: r, roleIdFile: /r,", 15, &["auth:", "roleId or roleIdFile"]),
    ("appRole: {mount: approle, roleId: r, secretIdFile: /etc/casemate/secret-id, wrapped: false}", "password: {}", 18, &["password", "appRole", "tokenFile"]),
    ("secretIdFile: /etc", "secretIdFile: etc", 18, &["absolute"]),
    ("            clientKeyFile: /etc/casemate/tls/client.key\n", "", 15, &["clientKeyFile:", "needs its key"]),
    ("            clientCertificateFile: /etc/casemate/tls/client.pem\n", "", 15, &["clientCertificateFile:", "needs its certificate"]),
    ("token: {label: k8s}", "token: {slot: 0}", 27, &["slot", "label", "serial"]),
    ("mechanism: aes-kwp", "mechanism: aes-cbc", 29, &["mechanism:", "aes-cbc", "aes-gcm, aes-kwp"]),
    ("000102030405060708090a0b0c0d0e0f", "\"0001\"", 30, &["keys:", "0001", "16 to 64"]),
    ("\"10111213141516171819202122232425\"", "000102030405060708090a0b0c0d0e0f", 30, &["keys:", "line 30"]),
    // One key has one mechanism: also if it is only to read what it wrapped by another one.
    ("    readKeys:\n", "    readKeys:\n      - {name: hsm-before, pkcs11: {module: /m, token: {label: k8s}, pinFile: /p, mechanism: aes-gcm, keys: [000102030405060708090a0b0c0d0e0f]}}\n", 36, &["keys:", "line 30"]),
    ("          writes: {label: casemate-write}\n", "", 26, &["writes: root key hsm lists several keys: add `writes: {id: …}`", "the old one", "{label: …}"]),
    ("writes: {label: casemate-write}", "writes: {id: ffffffffffffffffffffffffffffffff}", 31, &["id: root key hsm must list", "among `keys`"]),
    ("      - name: hsm\n", "      - name: hsm\n        version: 1\n", 25, &["version:", "root key hsm", "no versions", "`writes`"]),
    ("      - name: hsm\n", "      - name: hsm\n        minReadVersion: 1\n", 31, &["minReadVersion:", "no versions", "`keys`"]),
    ("{namespace: team-b, key: gone}", "{namespace: /team-a/, mount: kv/transit/, key: k8s}", 39, &["removedReadKeys:", "in use in line 15"]),
    ("key: old", "namespace: team-a, mount: kv/transit, key: k8s", 37, &["key:", "line 15", "own"]),
    ("[ffffffffffffffffffffffffffffffff]", "[000102030405060708090a0b0c0d0e0f]", 40, &["removedReadKeys:", "in use in line 30"]),
];

#[test]
fn key_services_are_parsed_or_refused_with_what_is_accepted() {
    let config = parse(SERVICES).unwrap();
    let provider = &config.providers[0];
    let rules = provider.read_policy(&config.cluster_id).rules;
    let keys: Vec<_> = rules.iter().map(|rule| rule.key.to_string()).collect();
    let expected = [
        "transit:team-a/kv%2Ftransit/k8s/",
        "pkcs11:000102030405060708090a0b0c0d0e0f",
        "pkcs11:10111213141516171819202122232425",
        "transit:/transit/old/",
    ];
    assert_eq!(keys, expected);
    let mut wrong = Vec::new();
    for (old, new, line, parts) in BROKEN_SERVICES {
        let text = SERVICES.replacen(old, new, 1);
        assert_ne!(text, SERVICES, "{old:?} is not in it");
        let error = parse(&text).expect_err(new);
        let place = format!("/etc/kms.yaml:{line}:");
        let missing: Vec<_> = parts.iter().filter(|part| !error.contains(**part)).collect();
        if !error.starts_with(&place) || !missing.is_empty() {
            wrong.push(format!("{new:?}, line {line}: {error}: {missing:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn what_key_services_need_is_declared_before_confinement() {
    let config = parse(SERVICES).unwrap();
    let files = config.files(Path::new("/etc/kms.yaml"));
    for file in ["secret-id", "ca.pem", "tls/client.pem", "tls/client.key", "pin", "token", "signer-pin"] {
        assert!(files.contains(&Path::new("/etc/casemate").join(file)), "{file} is not in {files:?}");
    }
    let folders = config.folders(Path::new("/etc/kms.yaml"));
    let connecting = |ports: &[u16]| ports.iter().fold(Folders::default(), |all, port| all.connect(*port));
    assert_eq!(folders.lack(&connecting(&[8200, 443, 53])), None);
    assert_eq!(folders.lack(&connecting(&[80])), Some(Lacking::Port(80)));
    let hosts: Vec<_> = config.hosts().collect();
    assert_eq!(hosts.len(), 2);
    assert_eq!(hosts[0].guard_folder, Path::new("/var/lib/casemate-kms/.pkcs11"));
    assert!(parse(WHOLE).is_ok_and(
        |config| config.folders(Path::new("/a")).lack(&connecting(&[53])) == Some(Lacking::Network)
    ));
}

/// A list in another order is no other configuration: sessions with the token go on.
#[test]
fn keys_of_a_token_are_the_same_in_another_order() {
    let with = |keys: &str| {
        let text = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nproviders:\n- name: main\n  \
             endpoint: unix:///run/c/kms.sock\n  rootKeys:\n  - name: hsm\n    pkcs11: {{module: /m.so, token: {{label: t}}, \
             pinFile: /p, keys: [{keys}], writes: {{label: w}}}}\n"
        );
        Config::parse(&text, Path::new("c.yaml")).unwrap().providers.remove(0)
    };
    let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(32));
    let both = with(&format!("{a}, {b}"));
    assert!(both.is_same_behind_the_door(&with(&format!("{b}, {a}"))));
    for other in [a.clone(), format!("{a}, {c}"), format!("{a}, {b}, {c}")] {
        assert!(!both.is_same_behind_the_door(&with(&other)), "{other}");
    }
}

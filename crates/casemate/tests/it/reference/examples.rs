//! Examples that stand in the reference of the configuration, and that the real reader takes.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::Path;

use casemate_kms::config::Config;

/// What is shown with a section.
#[derive(Debug)]
pub(super) struct Example {
    /// The section.
    pub(super) of: &'static str,
    /// To be copied.
    pub(super) yaml: &'static str,
    /// What a provider has, where `EXAMPLE` stands for it.
    frame: &'static str,
}

const PROVIDER: &str = "\
apiVersion: casemate.dev/v1alpha1
kind: KmsConfiguration
clusterId: prod-east
providers:
  - name: casemate
    endpoint: unix:///run/casemate-kms/kms.sock
    EXAMPLE
";

/// The example is all of it.
const ALONE: &str = "EXAMPLE";

const TRANSIT: &str = "\
rootKeys:
  - name: main
    transit:
      addresses: [\"https://10.0.0.5:8200\"]
      key: casemate
      EXAMPLE
";

const TOKEN: &str = "\
rootKeys:
  - name: hsm
    pkcs11:
      module: /usr/lib/softhsm/libsofthsm2.so
      pinFile: /etc/casemate-kms/pin
      keys: [\"3535e41adedfeee014281c0d9804e0a9\"]
      EXAMPLE
";

const WRITES: &str = "\
rootKeys:
  - name: hsm
    pkcs11:
      module: /usr/lib/softhsm/libsofthsm2.so
      token: {label: casemate}
      pinFile: /etc/casemate-kms/pin
      keys: [\"3535e41adedfeee014281c0d9804e0a9\", \"9f0c31d7a2584be6b1d05c7e8a4f2361\"]
      EXAMPLE
";

pub(super) const EXAMPLES: [Example; 12] = [
    Example {
        of: "providers[].rootKeys[].file",
        frame: ALONE,
        yaml: "\
rootKeys:
  - name: main
    file:
      path: /etc/casemate-kms/root.key
      id: \"e77e436ee20de3275dac06dc6259fe5f\"
",
    },
    Example {
        of: "providers[].rootKeys[].transit",
        frame: ALONE,
        yaml: "\
rootKeys:
  - name: main
    transit:
      addresses: [\"https://10.0.0.5:8200\"]
      key: casemate
      auth:
        appRole:
          roleId: 5ee0f5c6-2c5d-4c0e-8d3b-0f2b6f2a9a71
          secretIdFile: /etc/casemate-kms/secret-id
      tls:
        caFile: /etc/casemate-kms/ca.pem
",
    },
    Example {
        of: "providers[].rootKeys[].pkcs11",
        frame: ALONE,
        yaml: "\
rootKeys:
  - name: hsm
    pkcs11:
      module: /usr/lib/softhsm/libsofthsm2.so
      token:
        label: casemate
      pinFile: /etc/casemate-kms/pin
      keys:
        - \"3535e41adedfeee014281c0d9804e0a9\"
        - \"9f0c31d7a2584be6b1d05c7e8a4f2361\"
      writes:
        id: \"9f0c31d7a2584be6b1d05c7e8a4f2361\"
      folders:
        - /var/lib/softhsm/tokens
",
    },
    Example {
        of: "providers[].rootKeys[].transit.auth.tokenFile",
        frame: TRANSIT,
        yaml: "\
auth:
  tokenFile:
    path: /etc/casemate-kms/token
",
    },
    Example {
        of: "providers[].rootKeys[].transit.auth.appRole",
        frame: TRANSIT,
        yaml: "\
auth:
  appRole:
    roleId: 5ee0f5c6-2c5d-4c0e-8d3b-0f2b6f2a9a71
    secretIdFile: /etc/casemate-kms/secret-id
",
    },
    Example {
        of: "providers[].rootKeys[].transit.auth.jwt",
        frame: TRANSIT,
        yaml: "\
auth:
  jwt:
    role: casemate
    jwtFile: /etc/casemate-kms/jwt
",
    },
    Example {
        of: "providers[].rootKeys[].transit.auth.kubernetes",
        frame: TRANSIT,
        yaml: "\
auth:
  kubernetes:
    role: casemate
    tokenFile: /var/run/secrets/openbao/token
",
    },
    Example {
        of: "providers[].rootKeys[].transit.auth.certificate",
        frame: TRANSIT,
        yaml: "\
auth:
  certificate:
    role: casemate
tls:
  clientCertificateFile: /etc/casemate-kms/client.pem
  clientKeyFile: /etc/casemate-kms/client.key
",
    },
    Example {
        of: "providers[].rootKeys[].pkcs11.token.label",
        frame: TOKEN,
        yaml: "\
token:
  label: casemate
",
    },
    Example {
        of: "providers[].rootKeys[].pkcs11.token.serial",
        frame: TOKEN,
        yaml: "\
token:
  serial: \"7a3c1b0e9f2d4856\"
",
    },
    Example {
        of: "providers[].rootKeys[].pkcs11.writes.label",
        frame: WRITES,
        yaml: "\
writes:
  label: casemate-write
",
    },
    Example {
        of: "providers[].rootKeys[].pkcs11.writes.id",
        frame: WRITES,
        yaml: "\
writes:
  id: \"9f0c31d7a2584be6b1d05c7e8a4f2361\"
",
    },
];

pub(super) fn example(of: &str) -> Option<&'static Example> {
    EXAMPLES.iter().find(|example| example.of == of)
}

impl Example {
    fn configuration(&self) -> String {
        fill(PROVIDER, &fill(self.frame, self.yaml))
    }
}

/// `text` in the place of `EXAMPLE`, as far to the right as that.
fn fill(frame: &str, text: &str) -> String {
    let (before, _) = frame.split_once("EXAMPLE").unwrap();
    let indent = &before[before.rfind('\n').map_or(0, |at| at + 1)..];
    frame.replace("EXAMPLE", &text.trim_end().replace('\n', &format!("\n{indent}")))
}

#[test]
fn each_example_is_taken_by_the_reader_of_the_configuration() {
    for example in &EXAMPLES {
        let text = example.configuration();
        let found = Config::parse(&text, Path::new("example"));
        assert!(found.is_ok(), "{}: {}\n{text}", example.of, found.unwrap_err());
        // The whole of it is read: a field of another name is not passed over.
        let name = example.of.rsplit('.').next().unwrap();
        let misspelt = text.replacen(&format!(" {name}:"), &format!(" {name}Else:"), 1);
        assert_ne!(misspelt, text, "{} does not show its field", example.of);
        assert!(Config::parse(&misspelt, Path::new("example")).is_err(), "{}", example.of);
    }
}

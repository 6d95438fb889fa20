//! Pages of the reference that are made from code: `docs/reference/{cli,kms-config}.md`.
//!
//! `CASEMATE_REGENERATE=1 cargo test -p casemate --test it reference` writes them anew.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::docs::repository;
use casemate_kms::config::{Config, Keep, MaxBytes, Mechanism, OnFailure};
use clap::Command;
use fields::Fields;

mod examples;
mod fields;

const REGENERATE: &str = "CASEMATE_REGENERATE=1 cargo test -p casemate --test it reference";

#[test]
fn the_page_of_the_command_line_is_what_the_programs_say() {
    let mut page = format!(
        "# Command line\n\n<!-- Made from the programs: {REGENERATE} -->\n\n\
         Two programs: `casemate` for people, `casemate-kms` on control plane nodes. This is what each says with \
         `--help`; global options are shown once, with their program.\n"
    );
    for program in [casemate::command(), casemate_kms::cli::command()] {
        let mut program = program;
        program.build();
        describe_command(&mut page, &program);
    }
    compare("docs/reference/cli.md", &page);
}

#[test]
fn the_page_of_the_configuration_is_what_the_schema_says() {
    let schema = Config::schema().as_value().clone();
    let mut page = format!("{}\n", CONFIGURATION.replace("REGENERATE", REGENERATE));
    let mut fields = Fields::new(&schema, defaults());
    fields.describe(&mut page, fields::WHOLE, &schema);
    let unused = examples::EXAMPLES.iter().filter(|example| !fields.has_described(example.of));
    assert!(
        unused.clone().next().is_none(),
        "examples of what is not there: {:?}",
        unused.collect::<Vec<_>>()
    );
    compare("docs/reference/kms-config.md", &page);
}

fn compare(page: &str, made: &str) {
    let path = repository().join(page);
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, made).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "{page} is not what the code says; run `{REGENERATE}` and look at the difference");
}

/// The command and all below it, in the order of its help.
fn describe_command(page: &mut String, command: &Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let level = "#".repeat(1 + name.split(' ').count());
    let help = command.clone().color(clap::ColorChoice::Never).render_long_help().to_string();
    let own = if name.contains(' ') { without_global_options(&help) } else { help };
    let own: Vec<&str> = own.lines().map(str::trim_end).collect();
    write!(page, "\n{level} {name}\n\n```\n{}\n```\n", own.join("\n").trim_end()).unwrap();
    let shown = |below: &&Command| below.get_name() != "help" && !below.is_hide_set();
    for below in command.get_subcommands().filter(shown) {
        describe_command(page, below);
    }
}

/// They stand at the program.
fn without_global_options(help: &str) -> String {
    let Some((before, rest)) = help.split_once("Global options:\n") else { return help.to_owned() };
    let after = rest.find("Exit codes:").map_or("", |at| &rest[at..]);
    format!("{before}{after}")
}

const CONFIGURATION: &str = "\
# Configuration of casemate-kms

<!-- Made from the code: REGENERATE -->

One YAML file, `/etc/casemate-kms/config.yaml` unless `--config` names another, at most 1 MiB. It holds no secret. A
running program takes over what changes ([how](../how-to/change-the-configuration.md)). Fields that are not on this page
are refused, and so are doubled ones, anchors and aliases; an error names file, line, column and field, what was found
and what is accepted, and the exit code is 2. `casemate-kms schema` prints the [JSON Schema](kms-config.schema.json) for
editors.

## Example

The least that works; `id` is what `casemate key new` printed:

```yaml
apiVersion: casemate.dev/v1alpha1
kind: KmsConfiguration
clusterId: prod-east
providers:
  - name: casemate
    endpoint: unix:///run/casemate-kms/kms.sock
    rootKeys:
      - name: main
        file:
          path: /etc/casemate-kms/root.key
          id: \"e77e436ee20de3275dac06dc6259fe5f\"
```

Every field:

```yaml
apiVersion: casemate.dev/v1alpha1
kind: KmsConfiguration
clusterId: prod-east
stateDirectory: /var/lib/casemate-kms
admin:
  endpoint: unix:///run/casemate-kms/admin.sock
  socketMode: \"0600\"
audit:
  path: /var/log/casemate-kms/audit.log
  maxBytes: 104857600
  keep: 10
  onFailure: serve
  checkpointKey:
    path: /etc/casemate-kms/audit.key
removedProviders: [retired]
providers:
  - name: casemate
    endpoint: unix:///run/casemate-kms/kms.sock
    socketMode: \"0660\"
    socketOwner: 0
    socketGroup: 0
    allowedPeers:
      uids: [0]
      gids: [0]
    maxConnections: 128
    epoch: 1
    outage:
      policy: failAfter
      after: 5m
    onRefused: keepReads
    sealedCache:
      credential: /run/credentials/casemate-kms.service/sealed-cache
    rootKeys:
      - name: main
        version: latest
        minReadVersion: 2
        file:
          path: /etc/casemate-kms/root.key
          id: \"e77e436ee20de3275dac06dc6259fe5f\"
    readKeys:
      - name: before-the-move
        minReadVersion: 1
        file:
          path: /etc/casemate-kms/old.key
          id: \"000102030405060708090a0b0c0d0e0f\"
    removedReadKeys:
      - file:
          id: \"f0e0d0c0b0a090807060504030201000\"
    alsoAccept:
      - clusterId: prod-west
        until: 2027-03-31T00:00:00Z
    recoveryRecipients:
      - name: safe
        age: age1urngnfswvywrdje6g8ez6ae3fpnwuar92pqvrjj2nuhdwunxgacqszj6e2
```

Names of providers and endpoints are used once in the file; names of keys, ids of keys, cluster ids, and names and
recipients for recovery once in a provider. On all nodes of a cluster, `clusterId`, `epoch`, `rootKeys` with their
`version`, `recoveryRecipients`, and the key files are the same: from them every node derives the same key id.
`endpoint`, `stateDirectory` and all that is said of sockets may differ.

A socket that systemd has bound and passes on is taken instead of a new one, if its name (`FileDescriptorName=`) is the
provider's, or `admin`, or if its path is the endpoint. Then mode, owner and group are those of the `.socket` unit;
`allowedPeers` and `maxConnections` count as always.";

const LEAST: &str = "{apiVersion: casemate.dev/v1alpha1, kind: KmsConfiguration, clusterId: a, providers: [{name: a, \
    endpoint: unix:///a, rootKeys: [{name: a, file: {path: /a, id: 00000000000000000000000000000000}}]}]}";

/// What the schema does not say: values of fields that a file leaves out, as the parser fills them in.
fn defaults() -> Vec<(&'static str, String)> {
    let config = Config::parse(LEAST, Path::new("least")).unwrap();
    let provider = &config.providers[0];
    assert_eq!(provider.root_keys[0].version, Default::default());
    assert_eq!(OnFailure::default(), OnFailure::Serve);
    assert_eq!(Mechanism::default(), "aes-gcm".parse().unwrap());
    vec![
        ("stateDirectory", format!("`{}`", config.state_directory.display())),
        ("socketMode", format!("`\"{}\"`", provider.socket_mode.0)),
        ("maxConnections", format!("`{}`", provider.max_connections.0)),
        ("epoch", format!("`{}`", provider.epoch)),
        ("maxBytes", format!("`{}`", MaxBytes::default().0)),
        ("keep", format!("`{}`", Keep::default().0)),
        ("onFailure", "`serve`".to_owned()),
        ("version", "`latest`".to_owned()),
        ("policy", "`coast`".to_owned()),
        ("onRefused", "`keepReads`".to_owned()),
        ("mechanism", "`aes-gcm`".to_owned()),
    ]
}

//! Where no secret may stand.

use std::fs;
use std::io::ErrorKind;

use super::Acknowledged;
use crate::process::Host;

/// Field complaint 19: a token in the manifest, on a command line or in the environment, for everybody to read
/// (FalcoSuessgott/vault-kubernetes-kms#81, #196).
#[tokio::test]
async fn no_secret_is_on_the_command_line_or_in_the_environment() {
    let (host, acknowledged) = (Host::new(), Acknowledged::default());
    let mut daemon = host.serve();
    acknowledged.encrypt(&mut daemon.healthy().await).await.unwrap();

    let process = format!("/proc/{}", daemon.pid());
    let mut seen = fs::read_to_string(format!("{process}/cmdline")).unwrap();
    assert!(seen.contains("serve") && seen.contains("--config"), "{seen:?}");
    match fs::read(format!("{process}/environ")) {
        Ok(environment) => seen.push_str(&String::from_utf8_lossy(&environment)),
        // Not even the same user may look.
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
    }
    let key_file = fs::read_to_string(host.key()).unwrap();
    let secrets: Vec<_> = key_file
        .lines()
        .filter_map(|line| line.trim().strip_prefix("secret: "))
        .map(|secret| secret.trim_matches('"'))
        .collect();
    assert_eq!(secrets.len(), 1, "the key file has another form");
    for secret in secrets {
        assert!(secret.len() > 40 && !seen.contains(&secret[..12]), "{seen:?}");
    }
    daemon.kill();
    acknowledged.read_after_a_restart(&host).await;
}

/// Nor can one be put there: no option takes any, and the only variable is about the log.
#[test]
fn there_is_no_option_for_a_secret() {
    let host = Host::new();
    let help = host.run(&["serve", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).to_lowercase();
    assert!(help.contains("--config"), "{help}");
    for word in ["secret", "token", "password", "passphrase", "pin"] {
        assert!(!help.split(|c: char| !c.is_alphanumeric()).any(|found| found == word), "{word}: {help}");
    }
}

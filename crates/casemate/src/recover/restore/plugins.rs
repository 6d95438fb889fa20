//! A DEK source of a KMS v2 plugin, as kube-apiserver gets one when it starts.
use std::time::Duration;

use aws_lc_rs::rand;
use casemate_census::recover::NewSource;
use casemate_encryption_config::KmsV2;
use casemate_wire::kms_v2::limits;
use zeroize::Zeroizing;

use crate::kms::client::Plugin;
use crate::output::{Exit, Failure};

/// Longer than an API server waits: a key service may be slow on its first call.
const PATIENCE: Duration = Duration::from_secs(20);

/// A new seed, encrypted by the plugin under the key that its Status names, and decrypted again to see that it can be.
pub(super) async fn new_source(plugin: &KmsV2) -> Result<NewSource, Failure> {
    let wrong = |text: &dyn std::fmt::Display| {
        Failure::new(Exit::Unknown, &format_args!("--encrypt-with: kms:v2:{}: {text}", plugin.name))
    };
    let socket = plugin.endpoint.as_str().parse().map_err(|error| wrong(&error))?;
    let mut seed = Zeroizing::new([0; 32]);
    rand::fill(&mut *seed).map_err(|_| wrong(&"the system gives no random bytes; restart the host"))?;
    let mut client = Plugin::connect(socket, PATIENCE).await.map_err(|error| wrong(&error))?;
    let (status, _) = client.status().await.map_err(|error| wrong(&error))?;
    if let Some(violation) = limits::check_status(&status).first() {
        return Err(wrong(&format_args!("kube-apiserver would not write by it: {violation}")));
    }
    let sealed = client.encrypt(seed.to_vec()).await.map_err(|error| wrong(&error))?;
    limits::check_encrypt_response(&sealed).map_err(|violation| wrong(&violation))?;
    if sealed.key_id != status.key_id {
        return Err(wrong(&"it writes under another key id than its Status says: try again in a minute"));
    }
    let opened = client.decrypt(sealed.clone()).await.map_err(|error| wrong(&error))?;
    if opened.plaintext != seed[..] {
        return Err(wrong(&"it does not decrypt what it encrypted: report it to the plugin's maker"));
    }
    Ok(NewSource { seed, sealed })
}

//! A `casemate-kms` of a benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::rand;
use casemate_wire::kms_v2::key_management_service_client::KeyManagementServiceClient;
use casemate_wire::kms_v2::stored::{self, EncryptedDekSourceType, EncryptedObject};
use casemate_wire::kms_v2::{DecryptRequest, EncryptRequest, EncryptResponse, HEALTHZ_OK, StatusRequest};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::plugin::product;
use crate::{Lab, Process};

/// Looks for its first good Status, and the rest between two.
const LOOKS: u32 = 6_000;
const REST: Duration = Duration::from_millis(5);
const CONFIG: &str = "config.yaml";

/// A running plugin with a state directory of its own.
pub(super) struct Daemon {
    pub(super) process: Process,
    pub(super) socket: PathBuf,
    pub(super) admin: PathBuf,
    /// From its start to its first good Status.
    pub(super) ready: Duration,
    folder: PathBuf,
}

pub(super) type Client = KeyManagementServiceClient<Channel>;

/// A DEK source, and what kube-apiserver keeps of it.
#[derive(Clone)]
pub(super) struct Stored {
    plaintext: Vec<u8>,
    sealed: EncryptResponse,
}

/// For the calls of a benchmark.
pub(super) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("can't start a runtime")
}

impl Daemon {
    /// In the new folder `name`, on this root key, until its Status is good.
    pub(super) fn start(lab: &Lab, runtime: &Runtime, name: &str, root_key: &Value) -> anyhow::Result<Self> {
        let folder = lab.dir().join(name);
        fs::create_dir(&folder)?;
        let (socket, admin) = (folder.join("kms.sock"), folder.join("admin.sock"));
        let mut root_key = root_key.clone();
        root_key["name"] = json!("main");
        let config = json!({
            "apiVersion": "casemate.dev/v1alpha1",
            "kind": "KmsConfiguration",
            "clusterId": "bench",
            "stateDirectory": folder.join("state"),
            "admin": {"endpoint": endpoint(&admin)},
            "providers": [{"name": "bench", "endpoint": endpoint(&socket), "rootKeys": [root_key]}],
        });
        fs::write(folder.join(CONFIG), config.to_string())?;
        let mut command = Command::new(product("casemate-kms")?);
        command.args(["serve", "--config"]).arg(folder.join(CONFIG));
        let started = Instant::now();
        let process = lab.spawn(name, &command)?;
        let is_good = runtime.block_on(async {
            for _ in 0..LOOKS {
                if !process.is_running() {
                    break;
                }
                if is_good(&socket).await {
                    return true;
                }
                tokio::time::sleep(REST).await;
            }
            false
        });
        ensure!(is_good, "{name} has no good Status; its log ends:\n{}", process.log_tail(15));
        Ok(Self { process, socket, admin, ready: started.elapsed(), folder })
    }

    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        Ok(connect(&self.socket).await?)
    }

    /// Seals `count` DEK sources.
    pub(super) async fn seal(&self, count: usize) -> anyhow::Result<Vec<Stored>> {
        let mut client = self.client().await?;
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(Stored::seal(&mut client).await?);
        }
        Ok(all)
    }

    /// The file of its configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }

    /// Kills it, and takes its folder away.
    pub(super) fn remove(self) -> anyhow::Result<()> {
        self.process.kill9();
        Ok(fs::remove_dir_all(&self.folder)?)
    }
}

impl Stored {
    pub(super) async fn seal(client: &mut Client) -> anyhow::Result<Self> {
        let mut plaintext = vec![0; 32];
        aws_lc_rs::rand::fill(&mut plaintext).context("no randomness")?;
        let asked = EncryptRequest { plaintext: plaintext.clone().into(), uid: "bench".into() };
        let sealed = client.encrypt(asked).await?.into_inner();
        Ok(Self { plaintext, sealed })
    }

    /// The value that kube-apiserver would keep at `key` for `object`, under the provider `bench`.
    pub(super) fn encrypt(&self, key: &str, object: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (mut info, mut dek) = ([0; 32], [0; 32]);
        rand::fill(&mut info).context("no randomness")?;
        let seed = Prk::new_less_safe(HKDF_SHA256, &self.plaintext);
        let expanded = seed.expand(&[&info], HKDF_SHA256).and_then(|okm| okm.fill(&mut dek));
        expanded.map_err(|_| anyhow!("no DEK"))?;
        let mut sealed = object.to_vec();
        let nonce = RandomizedNonceKey::new(&AES_256_GCM, &dek)
            .and_then(|dek| dek.seal_in_place_append_tag(Aad::from(key), &mut sealed))
            .map_err(|_| anyhow!("not sealed"))?;
        let object = EncryptedObject {
            encrypted_data: [&info[..], nonce.as_ref(), &sealed].concat().into(),
            key_id: self.sealed.key_id.clone(),
            encrypted_dek_source: self.sealed.ciphertext.clone(),
            annotations: self.sealed.annotations.clone(),
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        let mut value = format!("{}bench:", stored::PREFIX).into_bytes();
        object.encode(&mut value)?;
        Ok(value)
    }

    /// Opens it; anything else than what was sealed is an error.
    pub(super) async fn open(&self, client: &mut Client) -> anyhow::Result<()> {
        let asked = DecryptRequest {
            ciphertext: self.sealed.ciphertext.clone(),
            uid: "bench".into(),
            key_id: self.sealed.key_id.clone(),
            annotations: self.sealed.annotations.clone(),
        };
        let opened = client.decrypt(asked).await?.into_inner();
        ensure!(opened.plaintext == self.plaintext, "a Decrypt gave other bytes than were sealed");
        Ok(())
    }
}

pub(super) fn endpoint(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

async fn is_good(socket: &Path) -> bool {
    let Ok(mut client) = connect(socket).await else { return false };
    client.status(StatusRequest {}).await.is_ok_and(|status| status.get_ref().healthz == HEALTHZ_OK)
}

async fn connect(socket: &Path) -> Result<Client, tonic::transport::Error> {
    Endpoint::from_shared(endpoint(socket))?.connect().await.map(Client::new)
}

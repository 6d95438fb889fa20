//! Root keys in real SoftHSM tokens, through the real keeper and hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use casemate_keys::{Algorithm, Root};
use casemate_keyservice::pkcs11::{
    CkaId, HostConfig, Patience, Pkcs11Config, Pkcs11Key, TokenSelector, Wrapping, Writes,
};
use casemate_keyservice::{Class, Failure, RootKey};
use casemate_kms::pkcs11::Hosts;
use casemate_lab::plugin::product;
use casemate_lab::softhsm::{SoftHsm, Token};
use tempfile::TempDir;

const PIN: &str = "2468-correct";
const CORE: [u8; 32] = [7; 32];
const OTHER_CORE: [u8; 32] = [8; 32];
const PAYLOAD: [u8; 64] = [0xa5; 64];

/// A host with SoftHSM, one token and what a daemon is configured with.
struct Site {
    hsm: SoftHsm,
    token: Token,
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("casemate-pkcs11-").tempdir().unwrap();
        let hsm = SoftHsm::create(&folder.path().join("hsm")).unwrap();
        let token = hsm.init_token("kms", PIN).unwrap();
        let site = Self { hsm, token, folder };
        fs::create_dir(site.at("state")).unwrap();
        site.write_pin(PIN.as_bytes());
        site
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_pin(&self, content: &[u8]) {
        let path = self.at("pin/user");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn new_key(&self, label: &str) -> CkaId {
        hex::encode(self.token.new_aes_key(PIN, label).unwrap()).parse().unwrap()
    }

    fn host(&self) -> HostConfig {
        let (name, conf) = self.hsm.env();
        HostConfig {
            module: SoftHsm::MODULE.into(),
            token: TokenSelector::Serial(self.token.serial()),
            pin_file: self.at("pin/user"),
            guard_file: self.at("state/guard"),
            folders: vec![self.hsm.tokens()],
            network: false,
            environment: [(name.to_owned(), conf.to_str().unwrap().to_owned())].into(),
        }
    }

    fn config(&self, wrapping: Wrapping, keys: &[&CkaId], writes: Writes) -> Pkcs11Config {
        Pkcs11Config {
            host: self.host(),
            wrapping,
            keys: keys.iter().map(|key| (*key).clone()).collect(),
            writes,
        }
    }

    fn open(&self, config: Pkcs11Config) -> Pkcs11Key {
        let patience = Patience { call: Duration::from_secs(20), start: Duration::from_secs(60) };
        self.open_with(config, patience)
    }

    fn open_with(&self, config: Pkcs11Config, patience: Patience) -> Pkcs11Key {
        let hosts = Hosts::start(&product("casemate-kms").unwrap(), [config.host.clone()]).unwrap();
        let launcher = hosts.launcher(&config.host).unwrap();
        Pkcs11Key::with_patience(config, launcher, patience)
    }

    /// The hosts that run for this site.
    fn hosts(&self) -> Vec<u32> {
        let here = self.folder.path().to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let has = |part: &[u8]| command.windows(part.len()).any(|window| window == part);
            if has(b"pkcs11-host\0") && has(here) {
                found.push(pid);
            }
        }
        found
    }
}

fn pinned(key: &CkaId) -> Writes {
    Writes::Pinned(key.clone())
}

fn root(key: &CkaId, algorithm: Algorithm) -> Root {
    Root { lineage: key.lineage(), algorithm }
}

async fn round_trip(key: &Pkcs11Key) -> Result<Vec<u8>, Failure> {
    let root = key.observe().await?;
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await?;
    let opened = key.unwrap(&root, &CORE, &wrap).await?;
    assert_eq!(opened[..], PAYLOAD);
    Ok(wrap)
}

#[tokio::test]
async fn what_is_wrapped_opens_with_the_same_digest_and_key_only() {
    let site = Site::new();
    let (one, other) = (site.new_key("one"), site.new_key("other"));
    for (wrapping, algorithm, length) in [
        (Wrapping::AesGcm, Algorithm::PKCS11_AES256_GCM, 12 + 64 + 16),
        (Wrapping::AesKwp, Algorithm::PKCS11_AES_KWP, 72),
    ] {
        let key = site.open(site.config(wrapping, &[&one, &other], pinned(&one)));
        let observed = key.observe().await.unwrap();
        assert_eq!(observed, root(&one, algorithm));
        let wrap = round_trip(&key).await.unwrap();
        assert_eq!(wrap.len(), length);

        let mut changed = wrap.clone();
        changed[40] ^= 1;
        let refused = [
            (root(&other, algorithm), CORE, wrap.clone()),
            (observed.clone(), CORE, changed),
            (observed.clone(), CORE, wrap[..wrap.len() - 1].to_vec()),
            (observed.clone(), CORE, vec![]),
        ];
        for (root, core, wrap) in refused {
            let failure = key.unwrap(&root, &core, &wrap).await.unwrap_err();
            assert_eq!(failure.class, Class::NotOpened, "{wrapping:?}: {failure}");
        }
        let opened = key.unwrap(&observed, &OTHER_CORE, &wrap).await;
        match wrapping {
            Wrapping::AesGcm => assert_eq!(opened.unwrap_err().class, Class::NotOpened),
            // Key wrap binds no digest beside the one in the payload.
            _ => assert_eq!(opened.unwrap()[..], PAYLOAD),
        }
        assert_eq!(key.binds_associated_data(&observed), wrapping == Wrapping::AesGcm);
        assert_eq!(site.hosts().len(), 1, "no answer made the host end");
        round_trip(&key).await.unwrap();
    }
}

#[tokio::test]
async fn a_host_that_is_killed_is_replaced() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    let wrap = round_trip(&key).await.unwrap();
    let first = site.hosts();
    kill(first[0]);
    // A call may meet the end of the host, and is then told so.
    let observed = root(&one, Algorithm::PKCS11_AES256_GCM);
    let opened = loop {
        match key.unwrap(&observed, &CORE, &wrap).await {
            Ok(opened) => break opened,
            Err(failure) => {
                assert_eq!(failure.class, Class::Unreachable, "{failure}");
                assert!(failure.what.contains("signal 9"), "{failure}");
            }
        }
    };
    assert_eq!(opened[..], PAYLOAD);
    assert_ne!(site.hosts(), first);
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

//! Root keys in real SoftHSM tokens, through the real keeper and hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, RSA_PSS_2048_8192_SHA256, UnparsedPublicKey};
use casemate_keys::origin::SignatureAlgorithm;
use casemate_keys::{Algorithm, Root};
use casemate_keyservice::pkcs11::{
    CkaId, HostConfig, Patience, Pkcs11Config, Pkcs11Key, Pkcs11Signer, TokenSelector, Wrapping, Writes,
};
use casemate_keyservice::{Class, Failure, RecordSigner, RootKey};
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

    /// What the guard remembers of this site's token, if anything.
    fn guard(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(self.at("state")).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.extension().is_some_and(|ending| ending == "pin"))
    }

    fn new_key(&self, label: &str) -> CkaId {
        hex::encode(self.token.new_aes_key(PIN, label).unwrap()).parse().unwrap()
    }

    fn new_ec_pair(&self) -> CkaId {
        let id = hex::encode(std::array::from_fn::<u8, 16, _>(|place| place as u8));
        let mut command = self.token.pkcs11_tool();
        command.args([
            "--login",
            "--pin",
            PIN,
            "--keypairgen",
            "--key-type",
            "EC:prime256v1",
            "--usage-sign",
        ]);
        assert!(command.args(["--label", "signing", "--id", &id]).output().unwrap().status.success());
        id.parse().unwrap()
    }

    fn host(&self) -> HostConfig {
        let (name, conf) = self.hsm.env();
        HostConfig {
            module: SoftHsm::MODULE.into(),
            token: TokenSelector::Serial(self.token.serial()),
            pin_file: self.at("pin/user"),
            guard_folder: self.at("state"),
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
        hosts_in(self.folder.path())
    }
}

/// The hosts that run for who has this folder.
pub(crate) fn hosts_in(folder: &Path) -> Vec<u32> {
    let folder = format!("{}/", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = |part: &[u8]| command.windows(part.len()).any(|window| window == part);
        if has(b"pkcs11-host\0") && has(folder.as_bytes()) {
            found.push(pid);
        }
    }
    found
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

#[tokio::test]
async fn a_host_ends_with_its_key_and_a_keeper_with_its_daemon() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    round_trip(&key).await.unwrap();
    let host = site.hosts()[0];
    let keeper = status(host, "PPid");
    assert_eq!(status(keeper, "PPid"), std::process::id());
    // Whoever runs the tests may have filters, too.
    let filters =
        |process| status(process, "Seccomp_filters") - status(std::process::id(), "Seccomp_filters");
    assert_eq!((filters(keeper), filters(host)), (1, 2), "each is confined, the host also by its keeper");
    for process in [host, keeper] {
        assert_eq!(status(process, "NoNewPrivs"), 1);
        assert!(environment(process).lines().all(|line| line.starts_with("SOFTHSM2_CONF=")));
    }
    drop(key);
    until("the host has ended", || site.hosts().is_empty()).await;
    until("the keeper has ended", || !runs(keeper)).await;
}

/// Anyone on a host can read the arguments of all its processes.
#[tokio::test]
async fn what_a_module_finds_in_its_environment_stands_in_no_arguments() {
    let site = Site::new();
    let one = site.new_key("one");
    let secret = format!("secret of a module {}", site.folder.path().display());
    let mut config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
    config.host.environment.insert("VENDOR_PASSWORD".into(), secret.clone());
    assert!(!format!("{config:?}").contains(&secret));
    let conf = config.host.environment[SoftHsm::CONF].clone();
    let key = site.open(config);
    round_trip(&key).await.unwrap();
    let host = site.hosts()[0];
    let keeper = status(host, "PPid");
    assert!(environment(host).contains(&format!("VENDOR_PASSWORD={secret}\n")), "the module finds it");
    assert!(!environment(keeper).contains(&secret), "nobody else needs it");
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        assert!(!arguments.contains(&secret) && !arguments.contains(&conf), "{pid}: {arguments}");
        seen.push(pid);
    }
    assert!([host, keeper, std::process::id()].iter().all(|pid| seen.contains(pid)));
}

#[tokio::test]
async fn what_the_keeper_was_not_told_of_at_its_start_it_does_not_start() {
    let site = Site::new();
    let one = site.new_key("one");
    let config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
    let hosts = Hosts::start(&product("casemate-kms").unwrap(), [config.host.clone()]).unwrap();
    let other = HostConfig { module: "/usr/lib/other.so".into(), ..config.host.clone() };
    assert!(hosts.launcher(&other).unwrap_err().to_string().contains("needs a restart"));
    // Without a keeper there is no host, and that is said.
    let key = Pkcs11Key::new(config.clone(), hosts.launcher(&config.host).unwrap());
    round_trip(&key).await.unwrap();
    let host = site.hosts()[0];
    kill(status(host, "PPid"));
    kill(host);
    let mut failure = round_trip(&key).await.unwrap_err();
    until_failure(&key, &mut failure, "the keeper has ended").await;
    assert_eq!(failure.class, Class::Unreachable);
}

#[tokio::test]
async fn a_module_that_is_none_is_said() {
    let site = Site::new();
    let one = site.new_key("one");
    let mut config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
    config.host.module = site.at("no/module.so");
    let failure = round_trip(&site.open(config)).await.unwrap_err();
    assert_eq!(failure.class, Class::Unreachable);
    assert!(failure.what.contains("no/module.so"), "{failure}");
    assert!(failure.remedy.contains("correct `module`"), "{failure}");
}

#[tokio::test]
async fn a_module_that_was_given_nothing_is_told_to_want_it() {
    let site = Site::new();
    let one = site.new_key("one");
    let mut config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
    // It is confined, and can't read its configuration.
    (config.host.folders, config.host.environment) = Default::default();
    let failure = round_trip(&site.open(config)).await.unwrap_err();
    assert!(failure.what.contains("C_Initialize answers CKR_GENERAL_ERROR"), "{failure}");
    assert!(
        failure.remedy.contains("under `folders`, and its configuration under `environment`"),
        "{failure}"
    );
}

#[tokio::test]
async fn thousands_of_calls_leave_nothing_open() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesKwp, &[&one], pinned(&one)));
    let observed = key.observe().await.unwrap();
    let wrap = round_trip(&key).await.unwrap();
    let host = site.hosts();
    let open = || fs::read_dir(format!("/proc/{}/fd", host[0])).unwrap().count();
    let at_first = open();
    let mut changed = wrap.clone();
    changed[9] ^= 1;
    for call in 0..2000 {
        if call % 4 == 0 {
            let failure = key.unwrap(&observed, &CORE, &changed).await.unwrap_err();
            assert_eq!(failure.class, Class::NotOpened);
        } else {
            key.unwrap(&observed, &CORE, &wrap).await.unwrap();
        }
    }
    assert_eq!(site.hosts(), host, "the same process answered all");
    assert!(open() <= at_first + 8, "{} descriptors, {at_first} at first", open());
}

#[tokio::test]
async fn calls_go_side_by_side() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    let key = std::sync::Arc::new(key);
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let key = key.clone();
            tokio::spawn(async move { round_trip(&key).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(site.hosts().len(), 1);
}

#[tokio::test]
async fn a_refused_pin_is_tried_once_and_a_changed_file_again() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    site.write_pin(b"wrong");
    let failure = key.observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Credential);
    assert!(failure.what.contains("CKR_PIN_INCORRECT"), "{failure}");
    assert!(!failure.to_string().contains("wrong\n"));

    // Nor after a restart of the host, nor of the keeper and all.
    kill(site.hosts()[0]);
    let again = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    for key in [&key, &again] {
        let mut failure = key.observe().await.unwrap_err();
        until_failure(key, &mut failure, "is not tried again").await;
        assert_eq!(failure.class, Class::Credential);
    }

    // Another wrong one is tried, once.
    site.write_pin(b"wrong too");
    assert!(key.observe().await.unwrap_err().what.contains("CKR_PIN_INCORRECT"));
    assert!(key.observe().await.unwrap_err().what.contains("is not tried again"));
    assert!(again.observe().await.unwrap_err().what.contains("is not tried again"));

    // The right one opens all, whatever an editor added; the token is not locked.
    site.write_pin(&[b"\xef\xbb\xbf", PIN.as_bytes(), b"\r\n"].concat());
    round_trip(&key).await.unwrap();
    round_trip(&again).await.unwrap();
    assert!(site.guard().is_none());
    assert_eq!(site.token.objects(PIN).unwrap().len(), 1);
}

#[tokio::test]
async fn an_empty_or_public_pin_file_is_refused() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    site.write_pin(b"\n");
    let failure = key.observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Credential);
    assert!(failure.what.contains("empty"), "{failure}");
    site.write_pin(PIN.as_bytes());
    fs::set_permissions(site.at("pin/user"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(key.observe().await.unwrap_err().class, Class::Credential);
    site.write_pin(PIN.as_bytes());
    round_trip(&key).await.unwrap();
}

#[tokio::test]
async fn a_token_is_pulled_and_put_back() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    let wrap = round_trip(&key).await.unwrap();
    let observed = root(&one, Algorithm::PKCS11_AES256_GCM);

    site.token.pull().unwrap();
    // SoftHSM shows none of its keys any more; that it is gone is the first that is said of it, and all.
    for _ in 0..5 {
        for failure in [
            key.unwrap(&observed, &CORE, &wrap).await.unwrap_err(),
            key.wrap(&observed, &CORE, &PAYLOAD).await.unwrap_err(),
            key.observe().await.unwrap_err(),
        ] {
            assert_eq!((failure.class, &failure.missing), (Class::Unreachable, &None), "{failure}");
            assert!(failure.what.starts_with("no token with serial number"), "{failure}");
            assert!(!failure.what.contains("\"\""), "a slot without a token is none: {failure}");
        }
    }

    site.token.put_back().unwrap();
    let opened = until_success(async || key.unwrap(&observed, &CORE, &wrap).await).await;
    assert_eq!(opened[..], PAYLOAD);
}

#[tokio::test]
async fn of_two_tokens_with_one_label_none_is_chosen() {
    let site = Site::new();
    let one = site.new_key("one");
    let mut config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
    config.host.token = TokenSelector::Label("kms".into());
    round_trip(&site.open(config.clone())).await.unwrap();

    let twin = site.hsm.init_token("kms", PIN).unwrap();
    let failure = site.open(config).observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Refused);
    for serial in [site.token.serial(), twin.serial()] {
        assert!(failure.what.contains(&serial), "{failure}");
    }
}

#[tokio::test]
async fn a_key_made_anew_under_the_same_id_does_not_open_what_the_old_one_wrapped() {
    let site = Site::new();
    let one = site.new_key("one");
    let key = site.open(site.config(Wrapping::AesGcm, &[&one], pinned(&one)));
    let wrap = round_trip(&key).await.unwrap();
    let observed = key.observe().await.unwrap();

    site.token.delete(PIN, casemate_lab::softhsm::Class::Secret, one.bytes()).unwrap();
    let failure = until_refused(&key).await;
    assert_eq!(failure.missing, Some(one.lineage()));

    site.token.new_aes_key_with_id(PIN, "one", one.bytes()).unwrap();
    until_success(async || round_trip(&key).await).await;
    assert_eq!(key.observe().await.unwrap(), observed, "its name is the same");
    assert_eq!(key.unwrap(&observed, &CORE, &wrap).await.unwrap_err().class, Class::NotOpened);

    site.token.new_aes_key_with_id(PIN, "twin", one.bytes()).unwrap();
    let failure = until_refused(&key).await;
    assert!(failure.what.contains("2 keys with id"), "{failure}");
}

#[tokio::test]
async fn the_key_with_the_write_label_writes_and_only_listed_keys_count() {
    let site = Site::new();
    let (old, new, stranger) = (site.new_key("old"), site.new_key("write"), site.new_key("write"));
    let label = || Writes::Label("write".into());
    let key = site.open(site.config(Wrapping::AesGcm, &[&old, &new], label()));
    assert_eq!(key.observe().await.unwrap().lineage, new.lineage());
    let failure = key.unwrap(&root(&stranger, Algorithm::PKCS11_AES256_GCM), &CORE, &[]).await.unwrap_err();
    assert_eq!(failure.class, Class::Refused);

    let several = site.open(site.config(Wrapping::AesGcm, &[&old, &new, &stranger], label()));
    let failure = several.observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Undecided);
    let none = site.open(site.config(Wrapping::AesGcm, &[&old], label()));
    let failure = none.observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Undecided);
    assert!(failure.what.contains(&old.to_string()), "{failure}");
}

/// What other nodes write under it could not be read here.
#[tokio::test]
async fn a_listed_key_that_the_token_lacks_is_told_and_stops_nothing() {
    let site = Site::new();
    let (one, gone): (_, CkaId) = (site.new_key("write"), "ff".repeat(16).parse().unwrap());
    for writes in [pinned(&one), Writes::Label("write".into()), Writes::Never] {
        let key = site.open(site.config(Wrapping::AesGcm, &[&gone, &one], writes));
        assert_eq!(key.absent(), Vec::<String>::new(), "nobody looked");
        round_trip(&key).await.unwrap();
        assert_eq!(key.absent(), [gone.to_string()]);
        assert_eq!(site.hosts().len(), 1, "it is no doubt of the token");
    }
    let key = site.open(site.config(Wrapping::AesGcm, &[&gone, &one], Writes::Label("other".into())));
    let failure = key.observe().await.unwrap_err();
    assert!(failure.what.contains(&format!("the token does not have {gone}, which")), "{failure}");

    let key = site.open(site.config(Wrapping::AesGcm, &[&gone, &one], pinned(&one)));
    round_trip(&key).await.unwrap();
    site.token.new_aes_key_with_id(PIN, "gone", gone.bytes()).unwrap();
    until("it is there", || site.token.objects(PIN).unwrap().len() == 2).await;
    site.hosts().into_iter().for_each(kill);
    until_success(async || round_trip(&key).await).await;
    assert_eq!(key.absent(), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_that_only_unwraps_is_well_where_none_writes() {
    for wrapping in [Wrapping::AesGcm, Wrapping::AesKwp] {
        let site = Site::new();
        let (one, gone) = (site.new_key("one"), "ff".repeat(16).parse().unwrap());
        let writer = site.open(site.config(wrapping, &[&one], pinned(&one)));
        let wrap = round_trip(&writer).await.unwrap();
        site.token.only_unwraps(PIN, &one.to_string()).unwrap();
        let reader = site.open(site.config(wrapping, &[&gone, &one], Writes::Never));
        let observed = reader.observe().await.unwrap();
        assert_eq!(observed, root(&one, wrapping.algorithm()));
        assert_eq!(reader.unwrap(&observed, &CORE, &wrap).await.unwrap()[..], PAYLOAD);
        assert_eq!(reader.wrap(&observed, &CORE, &PAYLOAD).await.unwrap_err().class, Class::Refused);

        let reader = site.open(site.config(wrapping, &[&gone], Writes::Never));
        let failure = reader.observe().await.unwrap_err();
        assert_eq!((failure.class, failure.missing), (Class::Refused, Some(gone.lineage())));
    }
}

#[tokio::test]
async fn an_rsa_key_wraps_under_its_public_half_and_a_signer_signs() {
    let site = Site::new();
    let token = &site.token;
    let id = token.new_rsa_pair(PIN, "wrapping", 3072).unwrap();
    let spki = token.public_key(PIN, &id).unwrap();
    let named: CkaId = hex::encode(&casemate_keys::names::sha256(&spki)[..16]).parse().unwrap();
    let config = site.config(Wrapping::RsaOaep, &[&named], pinned(&named));
    let host = config.host.clone();
    let hosts = Hosts::start(&product("casemate-kms").unwrap(), [host.clone()]).unwrap();
    let launcher = || hosts.launcher(&host).unwrap();
    let key = Pkcs11Key::new(config, launcher());
    let observed = key.observe().await.unwrap();
    assert_eq!(observed, root(&named, Algorithm::RSA_OAEP_SHA256));
    assert_eq!(key.wrap(&observed, &CORE, &PAYLOAD).await.unwrap().len(), 384);

    let message = b"what a record's origin is proven by";
    let patience = Patience::default();
    let signer = Pkcs11Signer::new(named.clone(), SignatureAlgorithm::RsaPss3072, launcher(), patience);
    let signature = signer.sign(message).await.unwrap();
    UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA256, &spki).verify(message, &signature).unwrap();

    let named = site.new_ec_pair();
    let spki = token.public_key(PIN, named.bytes()).unwrap();
    let signer = Pkcs11Signer::new(named, SignatureAlgorithm::EcdsaP256, launcher(), patience);
    // Of 16 some have a number that begins with a set bit or a zero.
    for _ in 0..16 {
        let signature = signer.sign(message).await.unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &spki).verify(message, &signature).unwrap();
    }
}

/// SoftHSM 2.6.1 does RSA-OAEP with SHA-1 only. Such a token must not look like one that can't be reached, for it will
/// never get better.
#[tokio::test]
async fn a_token_without_oaep_of_sha256_refuses() {
    let site = Site::new();
    let id = site.token.new_rsa_pair(PIN, "wrapping", 2048).unwrap();
    let spki = site.token.public_key(PIN, &id).unwrap();
    let named: CkaId = hex::encode(&casemate_keys::names::sha256(&spki)[..16]).parse().unwrap();
    let key = site.open(site.config(Wrapping::RsaOaep, &[&named], pinned(&named)));
    let failure = round_trip(&key).await.unwrap_err();
    assert_eq!(failure.class, Class::Refused);
    assert!(failure.what.contains("RSA-OAEP with SHA-256"), "{failure}");

    // Nor like one that reads.
    let reader = site.open(site.config(Wrapping::RsaOaep, &[&named], Writes::Never));
    let failure = reader.observe().await.unwrap_err();
    assert_eq!(failure.class, Class::Refused);
    assert!(failure.what.contains("RSA-OAEP with SHA-256"), "{failure}");

    // An RSA key by its CKA_ID is one that is there, and is not found.
    let listed: CkaId = hex::encode(&id).parse().unwrap();
    for writes in [pinned(&listed), Writes::Never] {
        let failure =
            site.open(site.config(Wrapping::RsaOaep, &[&listed], writes)).observe().await.unwrap_err();
        assert!(failure.remedy.contains("SHA-256 of its public key"), "{failure}");
    }
}

mod misbehaving;
mod signed;

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn status(pid: u32, field: &str) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).unwrap();
    line.trim().parse().unwrap()
}

fn environment(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/environ")).unwrap().replace('\0', "\n")
}

/// As often as it takes; a test that waits for ever is ended by whoever runs it, so this says what for.
async fn until(awaited: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited in vain until {awaited}");
}

/// Looks again until the failure says so: a host may be between two lives.
async fn until_failure(key: &Pkcs11Key, failure: &mut Failure, said: &str) {
    for _ in 0..600 {
        if failure.what.contains(said) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        *failure = key.observe().await.unwrap_err();
    }
    panic!("{said:?} was not said, but: {failure}");
}

async fn until_success<T>(mut call: impl AsyncFnMut() -> Result<T, Failure>) -> T {
    let mut last = None;
    for _ in 0..600 {
        match call().await {
            Ok(done) => return done,
            Err(failure) => last = Some(failure),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it never succeeded: {last:?}");
}

/// SoftHSM sees at any time what another process changed.
async fn until_refused(key: &Pkcs11Key) -> Failure {
    for _ in 0..600 {
        match key.observe().await {
            Err(failure) if failure.class == Class::Refused => return failure,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("it was never refused");
}

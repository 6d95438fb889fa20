//! A provider whose signer is in a real token.

use std::sync::Arc;
use std::time::Duration;

use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm};
use casemate_keys::{Algorithm, ClusterId, Epoch, LineagePrefix, ReadPolicy, ReadRule};
use casemate_keyservice::guarded::Guarded;
use casemate_keyservice::pkcs11::{CkaId, Patience, Pkcs11Key, Pkcs11Signer, Wrapping};
use casemate_kms::pkcs11::Hosts;
use casemate_kms::provider::{Observer, Provider, Settings, Signing, Store};
use casemate_kms_state::TroubleKind;
use casemate_kms_state::outage::Rules;
use casemate_lab::plugin::product;

use super::{PIN, Site, pinned};

/// Up to a record, as it is kept over a restart. The root key beside it is AES, for SoftHSM opens
/// nothing by RSA-OAEP with SHA-256.
#[tokio::test]
async fn a_provider_signs_its_records_with_a_key_of_a_token() {
    let site = Site::new();
    let (aes, signs) = (site.new_key("wraps"), site.new_ec_pair());
    let spki = site.token.public_key(PIN, signs.bytes()).unwrap();
    let hosts = Hosts::start(&product("casemate-kms").unwrap(), [site.host()]).unwrap();
    let launcher = || hosts.launcher(&site.host()).unwrap();
    let patience = Patience { call: Duration::from_secs(20), start: Duration::from_secs(60) };
    let signer = |key: &CkaId| {
        let signer = Pkcs11Signer::new(key.clone(), SignatureAlgorithm::EcdsaP256, launcher(), patience);
        Arc::new(Signing::new(Box::new(signer), SignatureAlgorithm::EcdsaP256, spki.clone()))
    };
    let key = || {
        Pkcs11Key::with_patience(site.config(Wrapping::AesGcm, &[&aes], pinned(&aes)), launcher(), patience)
    };
    let provider = |signing: Arc<Signing>| {
        let cluster: ClusterId = "prod".parse().unwrap();
        let rule = ReadRule {
            key: LineagePrefix::exactly(&aes.lineage()),
            algorithms: [Algorithm::PKCS11_AES256_GCM].into(),
            min_version: None,
        };
        let settings = Settings {
            name: "test".into(),
            cluster: cluster.clone(),
            epoch: Epoch(0),
            write_keys: vec![Guarded::around(Box::new(key()))],
            read_only_keys: Vec::new(),
            key_names: Vec::new(),
            read_policy: ReadPolicy {
                cluster,
                also_accept: Vec::new(),
                rules: vec![rule],
                origin: OriginPolicy::Signed(vec![signing.pinned().clone()]),
            },
            signing: Some(signing),
            outage: Rules::default(),
            program: "test/1".parse().unwrap(),
            clock: Arc::new(|| 1_800_000_000),
        };
        Arc::new(Provider::new(settings, Store::open(&site.at("state"), "test").unwrap()))
    };
    let writes = async |provider: &Arc<Provider>| {
        let mut observer = Observer::new(provider.clone(), None).unwrap();
        // A module may take longer to load than a call may last.
        for _ in 0..100 {
            observer.look().await;
            if let Some(kek) = provider.standing().writes() {
                return Some(kek.record().clone());
            }
            if provider
                .snapshot()
                .trouble
                .as_ref()
                .is_some_and(|wrong| wrong.kind != TroubleKind::Unreachable)
            {
                return None;
            }
        }
        panic!("neither a record nor a reason: {:?}", provider.standing());
    };
    let writer = provider(signer(&signs));
    let record = writes(&writer).await.unwrap();
    assert_eq!(record.core().policy.signer(), Some(&signs.lineage()));
    let signing = writer.settings().signing.clone().unwrap();
    assert_eq!(writer.settings().read_policy.origin.check(&record), Ok(()));
    assert!(signing.pinned().verifies(&record.origin_message(), record.origin_signature().unwrap()));
    drop(writer);

    // A restart needs no signer; one that is not on the token makes no other record.
    let absent: CkaId = "ffffffffffffffffffffffffffffffff".parse().unwrap();
    assert_eq!(writes(&provider(signer(&signs))).await.unwrap(), record);
    let without = provider(signer(&absent));
    assert_eq!(writes(&without).await, None);
    let why = without.snapshot().trouble.clone().unwrap().message;
    assert!(why.contains("no key ffff") && why.contains("that signs"), "{why}");
}

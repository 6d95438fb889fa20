//! The same before SoftHSM's module by way of one of ours that misbehaves.

use std::sync::Arc;

use casemate_lab::MisbehavingModule;
use casemate_lab::misbehaving::Misbehaviour::{Abort, Hang, LeakDescriptor, LogOut, Return, Segfault, Slow};
use casemate_lab::misbehaving::ckr;

use super::*;

/// Long enough for a call on a busy machine, and short enough to wait for.
const SHORT: Patience = Patience { call: Duration::from_secs(3), start: Duration::from_secs(20) };

/// A code of some vendor's own.
const VENDOR: u64 = 0x8000_0001;

struct Bad {
    site: Site,
    module: MisbehavingModule,
    one: CkaId,
    key: Arc<Pkcs11Key>,
}

impl Bad {
    fn new(patience: Patience) -> Self {
        let site = Site::new();
        let one = site.new_key("one");
        let module = MisbehavingModule::create(&site.at("module")).unwrap();
        let mut config = site.config(Wrapping::AesGcm, &[&one], pinned(&one));
        config.host.module = module.path().to_owned();
        config.host.folders.push(site.at("module"));
        let variables =
            module.env().map(|(name, value)| (name.to_owned(), value.to_str().unwrap().to_owned()));
        config.host.environment.extend(variables);
        let key = Arc::new(site.open_with(config, patience));
        Self { site, module, one, key }
    }

    fn root(&self) -> Root {
        root(&self.one, Algorithm::PKCS11_AES256_GCM)
    }

    fn calls(&self, function: &str) -> usize {
        self.module.calls(function).unwrap()
    }

    async fn wrap(&self) -> Result<Vec<u8>, Failure> {
        self.key.wrap(&self.root(), &CORE, &PAYLOAD).await
    }
}

#[tokio::test]
async fn a_call_that_hangs_takes_its_process_along_and_nothing_else() {
    let bad = Bad::new(SHORT);
    round_trip(&bad.key).await.unwrap();
    let first = bad.site.hosts();
    bad.module.misbehave("C_Encrypt", Hang, None).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert_eq!(failure.class, Class::Unreachable);
    assert!(failure.what.contains("did not return within 3000 ms"), "{failure}");
    until("the process is gone", || !bad.site.hosts().contains(&first[0])).await;

    // A caller that does not wait leaves nothing behind that would hold up others.
    let impatient = tokio::time::timeout(Duration::from_millis(1), bad.wrap()).await;
    assert!(impatient.is_err());
    bad.module.behave().unwrap();
    until_success(async || bad.wrap().await).await;
    assert_eq!(bad.site.hosts().len(), 1);
}

#[tokio::test]
async fn a_module_that_hangs_at_its_start_is_started_anew() {
    let bad = Bad::new(Patience { start: Duration::from_secs(2), ..SHORT });
    bad.module.misbehave("C_Initialize", Hang, Some(1)).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert!(failure.what.contains("did not return within 2000 ms"), "{failure}");
    until_success(async || bad.wrap().await).await;
}

#[tokio::test]
async fn a_crash_is_told_with_its_signal_and_the_next_call_goes() {
    let bad = Bad::new(SHORT);
    for (crash, signal) in [(Abort, "signal 6"), (Segfault, "signal 11")] {
        until_success(async || bad.wrap().await).await;
        bad.module.misbehave("C_Encrypt", crash, Some(1)).unwrap();
        let failure = bad.wrap().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable);
        assert!(failure.what.contains(signal), "{failure}");
        bad.module.behave().unwrap();
    }
    until_success(async || bad.wrap().await).await;
}

#[tokio::test]
async fn a_module_that_always_crashes_is_not_started_over_and_over() {
    let bad = Bad::new(SHORT);
    bad.module.misbehave("C_Login", Abort, None).unwrap();
    let mut paused = false;
    for _ in 0..200 {
        let failure = bad.wrap().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable);
        paused |= failure.what.contains("it is started again in");
    }
    assert!(paused && bad.calls("C_Initialize") < 20, "{} starts for 200 calls", bad.calls("C_Initialize"));
    bad.module.behave().unwrap();
    until_success(async || bad.wrap().await).await;
}

#[tokio::test]
async fn a_session_that_is_no_good_is_replaced_and_nobody_hears_of_it() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    let host = bad.site.hosts();
    for (function, code) in [
        ("C_EncryptInit", ckr::OPERATION_ACTIVE),
        ("C_DecryptInit", ckr::OPERATION_ACTIVE),
        ("C_FindObjectsInit", ckr::OPERATION_ACTIVE),
        ("C_Decrypt", ckr::SESSION_HANDLE_INVALID),
        ("C_EncryptInit", ckr::SESSION_HANDLE_INVALID),
        ("C_FindObjectsInit", ckr::USER_NOT_LOGGED_IN),
        ("C_Encrypt", ckr::USER_NOT_LOGGED_IN),
    ] {
        let before = bad.calls("C_OpenSession");
        bad.module.misbehave(function, Return(code), Some(1)).unwrap();
        bad.wrap().await.unwrap();
        let opened = bad.key.unwrap(&bad.root(), &CORE, &wrap).await.unwrap();
        assert_eq!(opened[..], PAYLOAD);
        assert!(bad.calls("C_OpenSession") > before, "{function} {code:#x}: no new session");
        bad.module.behave().unwrap();
    }
    assert_eq!(bad.site.hosts(), host, "the same process");

    // If that does not help, a new process may.
    bad.module.misbehave("C_EncryptInit", Return(ckr::OPERATION_ACTIVE), None).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert_eq!(failure.class, Class::Unreachable);
    assert!(failure.what.contains("CKR_OPERATION_ACTIVE"), "{failure}");
    bad.module.behave().unwrap();
    until_success(async || bad.wrap().await).await;
    assert_ne!(bad.site.hosts(), host, "another process");
}

#[tokio::test]
async fn a_device_that_is_gone_is_unreachable_and_looked_for_anew() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    for code in [ckr::DEVICE_REMOVED, ckr::DEVICE_ERROR, ckr::TOKEN_NOT_PRESENT] {
        let host = bad.site.hosts();
        bad.module.misbehave("C_DecryptInit", Return(code), Some(1)).unwrap();
        let failure = bad.key.unwrap(&bad.root(), &CORE, &wrap).await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "{failure}");
        until_success(async || bad.key.unwrap(&bad.root(), &CORE, &wrap).await).await;
        assert_ne!(bad.site.hosts(), host, "another process asks for the device");
        bad.module.behave().unwrap();
    }
}

/// A tag that is wrong and a token that is ill may look alike: a wrap of the token's own tells them apart.
#[tokio::test]
async fn a_code_that_may_mean_both_blames_the_token_only_if_its_own_wraps_do_not_open() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    let root = bad.root();
    let opened = || bad.key.unwrap(&root, &CORE, &wrap);
    for code in [ckr::GENERAL_ERROR, ckr::FUNCTION_FAILED] {
        bad.module.misbehave("C_Decrypt", Return(code), Some(1)).unwrap();
        assert_eq!(opened().await.unwrap()[..], PAYLOAD, "{code:#x}: it was a moment's weakness");
        bad.module.behave().unwrap();
        bad.module.misbehave("C_Decrypt", Return(code), None).unwrap();
        assert_eq!(opened().await.unwrap_err().class, Class::Unreachable, "{code:#x}: all are ill");
        bad.module.behave().unwrap();
        until_success(async || opened().await).await;
    }
}

/// A key that only unwraps has no wrap of its own to try: nothing is concluded about the object.
#[tokio::test]
async fn a_code_that_may_mean_both_never_blames_an_object_whose_key_only_unwraps() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    bad.site.token.only_unwraps(PIN, &bad.one.to_string()).unwrap();
    let root = bad.root();
    let opened = || bad.key.unwrap(&root, &CORE, &wrap);
    bad.site.hosts().into_iter().for_each(kill);
    until_refused(&bad.key).await;
    for code in [ckr::GENERAL_ERROR, ckr::FUNCTION_FAILED, VENDOR] {
        bad.module.misbehave("C_Decrypt", Return(code), Some(1)).unwrap();
        assert_eq!(opened().await.unwrap()[..], PAYLOAD, "{code:#x}: a new session is well");
        bad.module.behave().unwrap();
        let host = bad.site.hosts();
        bad.module.misbehave("C_Decrypt", Return(code), None).unwrap();
        let failure = opened().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "{code:#x}: {failure}");
        bad.module.behave().unwrap();
        until_success(async || opened().await).await;
        assert_ne!(bad.site.hosts(), host, "another process was tried");
    }
    bad.module.misbehave("C_Decrypt", Return(ckr::ENCRYPTED_DATA_INVALID), None).unwrap();
    assert_eq!(opened().await.unwrap_err().class, Class::NotOpened, "a code that means one thing only");
}

/// Without its login a session shows no keys, and no call of it fails.
#[tokio::test]
async fn keys_that_a_lost_login_hides_are_not_missing() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    let host = bad.site.hosts();
    for _ in 0..3 {
        bad.module.misbehave("C_FindObjectsInit", LogOut, Some(1)).unwrap();
        bad.wrap().await.unwrap();
        bad.module.misbehave("C_FindObjectsInit", LogOut, Some(1)).unwrap();
        let opened = bad.key.unwrap(&bad.root(), &CORE, &wrap).await.unwrap();
        assert_eq!(opened[..], PAYLOAD);
        bad.module.misbehave("C_FindObjectsInit", LogOut, Some(1)).unwrap();
        assert_eq!(bad.key.observe().await.unwrap(), bad.root());
        bad.module.misbehave("C_FindObjectsInit", LogOut, Some(1)).unwrap();
        assert_eq!(bad.key.versions().await.unwrap().len(), 1);
    }
    assert_eq!(bad.site.hosts(), host, "a login was enough");
    bad.module.misbehave("C_FindObjectsInit", LogOut, None).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert_eq!(failure.class, Class::Unreachable, "{failure}");
    assert_eq!(failure.missing, None);
    bad.module.behave().unwrap();
    until_success(async || bad.wrap().await).await;
}

#[tokio::test]
async fn a_module_that_never_gets_well_is_not_started_over_and_over() {
    let bad = Bad::new(SHORT);
    bad.module.misbehave("C_OpenSession", Return(ckr::GENERAL_ERROR), None).unwrap();
    let mut paused = false;
    for _ in 0..200 {
        let failure = bad.wrap().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable);
        paused |= failure.what.contains("it is started again in");
    }
    assert!(paused && bad.calls("C_Initialize") < 20, "{} starts for 200 calls", bad.calls("C_Initialize"));
    bad.module.behave().unwrap();
    until_success(async || bad.wrap().await).await;
}

#[tokio::test]
async fn a_module_that_leaks_is_replaced_before_it_fails_and_nobody_hears_of_it() {
    let bad = Bad::new(SHORT);
    bad.wrap().await.unwrap();
    let first = bad.site.hosts();
    bad.module.misbehave("C_Encrypt", LeakDescriptor, None).unwrap();
    let mut calls = 0;
    while bad.site.hosts() == first {
        bad.wrap().await.unwrap();
        calls += 1;
        assert!(calls < 500, "it goes on leaking");
    }
    bad.module.behave().unwrap();
    bad.wrap().await.unwrap();
    until("the first process is gone", || bad.site.hosts().len() == 1).await;

    // Sessions that are not closed, because the module only says so.
    let second = bad.site.hosts();
    calls = 0;
    while bad.site.hosts() == second {
        bad.module.behave().unwrap();
        bad.module.misbehave("C_CloseSession", Return(0), None).unwrap();
        bad.module.misbehave("C_EncryptInit", Return(ckr::OPERATION_ACTIVE), Some(1)).unwrap();
        bad.wrap().await.unwrap();
        calls += 1;
        assert!(calls < 500, "it goes on leaking");
    }
}

#[tokio::test]
async fn calls_that_wait_for_their_turn_do_not_hang() {
    let bad = Bad::new(SHORT);
    bad.wrap().await.unwrap();
    let host = bad.site.hosts();
    // 32 calls in 4 sessions take eight times as long: more than the patience for one.
    bad.module.misbehave("C_Encrypt", Slow(Duration::from_millis(250)), None).unwrap();
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let (key, root) = (bad.key.clone(), bad.root());
            tokio::spawn(async move { key.wrap(&root, &CORE, &PAYLOAD).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(bad.site.hosts(), host);
}

#[tokio::test]
async fn a_wrong_pin_reaches_the_token_once() {
    let bad = Bad::new(SHORT);
    bad.site.write_pin(b"wrong");
    for _ in 0..3 {
        for _ in 0..4 {
            let mut failure = bad.key.observe().await.unwrap_err();
            until_failure(&bad.key, &mut failure, "PIN").await;
            assert_eq!(failure.class, Class::Credential);
        }
        bad.site.hosts().into_iter().for_each(kill);
    }
    assert_eq!(bad.calls("C_Login"), 1, "over three lives of the process");

    bad.site.write_pin(PIN.as_bytes());
    until_success(async || bad.wrap().await).await;
    assert_eq!(bad.calls("C_Login"), 2);
}

#[tokio::test]
async fn a_locked_token_is_told() {
    let bad = Bad::new(SHORT);
    bad.module.misbehave("C_Login", Return(ckr::PIN_LOCKED), None).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert_eq!(failure.class, Class::Credential);
    assert!(failure.what.contains("CKR_PIN_LOCKED"), "{failure}");
    assert!(!bad.site.at("state/guard").exists(), "the PIN was not refused");
}

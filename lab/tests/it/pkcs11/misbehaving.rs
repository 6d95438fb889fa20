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
    config: Pkcs11Config,
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
        let key = Arc::new(site.open_with(config.clone(), patience));
        Self { site, module, one, config, key }
    }

    /// The same key once more, by a keeper and a host of its own.
    fn open(&self, patience: Patience) -> Arc<Pkcs11Key> {
        Arc::new(self.site.open_with(self.config.clone(), patience))
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
    bad.module.misbehave("C_OpenSession", Abort, None).unwrap();
    for _ in 0..200 {
        let failure = bad.wrap().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable);
        assert!(failure.what.contains("signal 6"), "also while none is started: {failure}");
    }
    assert!(bad.calls("C_Initialize") < 20, "{} starts for 200 calls", bad.calls("C_Initialize"));
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
    for code in [ckr::FUNCTION_FAILED, VENDOR] {
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

/// SoftHSM has one code for a wrong tag and for its own illness. Whoever writes etcd gets a few new processes out of that.
#[tokio::test]
async fn who_damages_objects_does_not_have_the_process_replaced_with_each_of_them() {
    let bad = Bad::new(SHORT);
    let wrap = bad.wrap().await.unwrap();
    bad.site.token.only_unwraps(PIN, &bad.one.to_string()).unwrap();
    bad.site.hosts().into_iter().for_each(kill);
    until_refused(&bad.key).await;
    let (root, begun) = (bad.root(), std::time::Instant::now());
    let counted = || ["C_Initialize", "C_Login", "C_OpenSession"].map(|function| bad.calls(function));
    let before = counted();
    let mut damaged = wrap.clone();
    damaged[20] ^= 1;
    for _ in 0..40 {
        let failure = bad.key.unwrap(&root, &CORE, &damaged).await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "nothing is concluded: {failure}");
        let opened = until_success(async || bad.key.unwrap(&root, &CORE, &wrap).await).await;
        assert_eq!(opened[..], PAYLOAD);
    }
    // Four, and one more for each minute that this takes.
    let most = 4 + usize::try_from(begun.elapsed().as_secs() / 60).unwrap();
    let [starts, logins, sessions] = std::array::from_fn(|place| counted()[place] - before[place]);
    assert!((4..=most).contains(&starts), "{starts} starts");
    // A process has four sessions, and one more where it was in doubt.
    assert!(logins <= most && sessions <= 5 * (most + 1), "{logins} logins, {sessions} sessions");
    let host = bad.site.hosts();
    for _ in 0..40 {
        bad.key.observe().await.unwrap_err();
        bad.key.unwrap(&root, &CORE, &wrap).await.unwrap();
    }
    assert_eq!(bad.site.hosts(), host, "what opens needs none of it");
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
    for _ in 0..200 {
        let failure = bad.wrap().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable);
        assert!(failure.what.contains("CKR_GENERAL_ERROR"), "also while none is started: {failure}");
    }
    assert!(bad.calls("C_Initialize") < 20, "{} starts for 200 calls", bad.calls("C_Initialize"));
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

/// The token may have counted it as a wrong one. Documented: twice, whatever is restarted.
#[tokio::test]
async fn a_pin_that_is_not_known_to_be_good_is_tried_twice_without_a_clear_answer() {
    let bad = Bad::new(SHORT);
    for what in [Return(VENDOR), Return(ckr::GENERAL_ERROR), Return(ckr::DEVICE_ERROR), Abort, Segfault, Hang]
    {
        let before = bad.calls("C_Login");
        // Of its own: none of them was ever accepted.
        bad.site.write_pin(format!("perhaps {what:?}").as_bytes());
        bad.module.misbehave("C_Login", what, None).unwrap();
        // A login that hangs takes its process along after so long.
        let key = bad.open(Patience { start: Duration::from_secs(4), ..SHORT });
        let mut failure = key.observe().await.unwrap_err();
        until_failure(&key, &mut failure, "no clear answer; it is not tried again").await;
        assert_eq!((failure.class, bad.calls("C_Login") - before), (Class::Credential, 2), "{what:?}");
        // Nor is it after a restart of the host, nor of the keeper and all.
        bad.module.behave().unwrap();
        bad.site.hosts().into_iter().for_each(kill);
        for key in [key, bad.open(SHORT)] {
            failure = key.observe().await.unwrap_err();
            until_failure(&key, &mut failure, "no clear answer; it is not tried again").await;
        }
        assert_eq!(bad.calls("C_Login") - before, 2, "{what:?}");
    }
    // A person heals it who writes the right one; the ones before are forgotten with it.
    bad.site.write_pin(PIN.as_bytes());
    until_success(async || bad.wrap().await).await;
    assert_eq!(bad.site.guard(), None);
}

/// Several processes at one token are no more than one.
#[tokio::test]
async fn all_hosts_of_a_token_together_try_a_pin_twice() {
    let bad = Bad::new(SHORT);
    bad.site.write_pin(b"perhaps");
    bad.module.misbehave("C_Login", Abort, None).unwrap();
    let keys: Vec<_> = (0..3).map(|_| bad.open(SHORT)).collect();
    let calls: Vec<_> = keys
        .iter()
        .map(|key| {
            let key = key.clone();
            tokio::spawn(async move {
                let mut failure = key.observe().await.unwrap_err();
                until_failure(&key, &mut failure, "no clear answer; it is not tried again").await;
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(bad.calls("C_Login"), 2);
}

/// A power cut, or whatever ends a process: the next one logs in, and nobody hears of it.
#[tokio::test]
async fn a_good_pin_outlives_the_end_of_a_login_and_of_an_outage() {
    let bad = Bad::new(SHORT);
    bad.module.misbehave("C_Login", Hang, Some(1)).unwrap();
    let call = tokio::spawn({
        let key = bad.key.clone();
        async move { key.observe().await }
    });
    until("a login is under way", || bad.calls("C_Login") == 1).await;
    assert!(bad.site.guard().is_some(), "it is noted before");
    bad.site.hosts().into_iter().for_each(kill);
    call.await.unwrap().unwrap_err();
    until_success(async || bad.wrap().await).await;
    assert_eq!((bad.calls("C_Login"), bad.site.guard()), (2, None));

    // An HSM that is ill for longer: the token accepted this file before, so that an hour later it is tried again.
    bad.module.misbehave("C_Login", Return(ckr::DEVICE_ERROR), None).unwrap();
    let key = bad.open(SHORT);
    let mut failure = key.observe().await.unwrap_err();
    until_failure(&key, &mut failure, "is asked again in 60 minutes").await;
    assert_eq!((failure.class, bad.calls("C_Login")), (Class::Credential, 4));
    bad.module.behave().unwrap();
    assert!(key.observe().await.unwrap_err().what.contains("is asked again in"));
    let note = bad.site.guard().unwrap();
    let mut noted: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    let last = noted["tried"][0]["last"].as_u64().unwrap();
    noted["tried"][0]["last"] = (last - 3600).into();
    fs::write(&note, noted.to_string()).unwrap();
    until_success(async || key.observe().await).await;
    assert_eq!((bad.calls("C_Login"), bad.site.guard()), (5, None));

    // That the device was gone says nothing of the PIN.
    bad.module.misbehave("C_Login", Return(ckr::DEVICE_REMOVED), Some(3)).unwrap();
    let key = bad.open(SHORT);
    until_success(async || key.observe().await).await;
    assert_eq!(bad.calls("C_Login"), 9);
}

#[tokio::test]
async fn a_locked_token_is_told() {
    let bad = Bad::new(SHORT);
    bad.module.misbehave("C_Login", Return(ckr::PIN_LOCKED), None).unwrap();
    let failure = bad.wrap().await.unwrap_err();
    assert_eq!(failure.class, Class::Credential);
    assert!(failure.what.contains("CKR_PIN_LOCKED"), "{failure}");
    assert!(bad.site.guard().is_none(), "the PIN was not refused");
}

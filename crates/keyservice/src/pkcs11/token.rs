//! A loaded module, and logged-in sessions at its one token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::session::{Session, SessionState, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::AuthPin;

use super::code::{self, Cure, Verdict};
use super::guard::Guard;
use super::pin::Pin;
use super::{HostConfig, TokenSelector};
use crate::{Class, Failure};

/// A module, initialised once in this process.
#[derive(Debug)]
pub(super) struct Module {
    context: Pkcs11,
    config: HostConfig,
    /// One login at a time: what one learns spares the others a wrong PIN.
    login: Mutex<()>,
    opened: AtomicU64,
    logins: AtomicU64,
    said: Mutex<Vec<String>>,
}

/// Why something at the token did not go.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The module says so.
    Call { error: Error, doing: &'static str },
    /// We do.
    Found(Failure),
    /// We do, and after this cure it may be otherwise.
    Passing(Failure, Cure),
}

impl Module {
    pub(super) fn load(config: HostConfig) -> Result<Self, Failure> {
        let failed = |error: Error, doing: &str| {
            code::failure(&error, &format!("{doing} {}", config.module.display()))
        };
        let context = Pkcs11::new(&config.module).map_err(|error| {
            let failure = failed(error, "loading module");
            if config.module.exists() {
                return failure;
            }
            Failure {
                remedy: "correct `module` in the configuration, or install the module".into(),
                ..failure
            }
        })?;
        context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).map_err(|error| {
            let mut failure = failed(error, "initialising module");
            // It is confined to what it was given, and most need more than themselves.
            if config.folders.is_empty() || config.environment.is_empty() {
                failure.remedy += "; or name what the module reads and writes under `folders`, and its configuration under \
                                   `environment`";
            }
            failure
        })?;
        Ok(Self {
            context,
            config,
            login: Mutex::default(),
            opened: AtomicU64::new(0),
            logins: AtomicU64::new(0),
            said: Mutex::default(),
        })
    }

    /// A new session, logged in.
    pub(super) fn session(&self) -> Result<Session, Trouble> {
        let (slot, token) = self.token()?;
        let session = self.context.open_ro_session(slot).map_err(Trouble::call("opening a session"))?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.log_in(&session, slot, &token)?;
        Ok(session)
    }

    /// How many logins there were.
    pub(super) fn logins(&self) -> u64 {
        self.logins.load(Ordering::Acquire)
    }

    /// Whether what `session` does not show is not there, or only not shown: a session whose login is gone sees public
    /// objects only, and no call of it fails. `logins` is how many there were before it looked.
    pub(super) fn shows_all(&self, session: &Session, logins: u64) -> Result<(), Trouble> {
        let state = self.state(session)?;
        if logged_in(state) && self.logins() == logins {
            return Ok(());
        }
        if !logged_in(state) && !self.token()?.1.login_required() {
            return Ok(());
        }
        let what = "the token's module dropped the login, and shows no keys";
        let remedy = "the program logs in again by itself; if that goes on, look at the module's own log";
        Err(Trouble::Passing(Failure::new(Class::Unreachable, what, remedy), Cure::Session))
    }

    fn state(&self, session: &Session) -> Result<SessionState, Trouble> {
        Ok(session.get_session_info().map_err(Trouble::call("looking at a session"))?.session_state())
    }

    /// How many sessions the token says that there are.
    pub(super) fn sessions(&self) -> Option<u64> {
        self.token().ok()?.1.session_count()
    }

    /// How many sessions were opened here, ever.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// What an operator may want to know, since this was asked last.
    pub(super) fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn token(&self) -> Result<(Slot, TokenInfo), Trouble> {
        let slots = self.context.get_slots_with_token().map_err(Trouble::call("listing slots"))?;
        let mut tokens = Vec::new();
        for slot in slots {
            match self.context.get_token_info(slot) {
                Ok(info) => tokens.push((slot, info)),
                // Another one that is ill is no reason to fail.
                Err(Error::Pkcs11(..)) => {}
                Err(error) => return Err(Trouble::Call { error, doing: "looking at a token" }),
            }
        }
        let wanted = &self.config.token;
        let fits = |info: &TokenInfo| match wanted {
            TokenSelector::Label(label) => info.label() == label,
            TokenSelector::Serial(serial) => info.serial_number() == serial,
        };
        // It has neither label nor serial number, and SoftHSM always shows one.
        tokens.retain(|(_, info)| info.token_initialized());
        let listed = tokens.iter().map(|(_, info)| {
            format!("label {:?} with serial number {:?}", info.label(), info.serial_number())
        });
        let listed = listed.collect::<Vec<_>>().join(", ");
        let listed = if listed.is_empty() { "none that is initialised".into() } else { listed };
        let mut fitting = tokens.into_iter().filter(|(_, info)| fits(info));
        match (fitting.next(), fitting.next()) {
            (Some(found), None) => Ok(found),
            (None, _) => {
                let what = format!("no token with {wanted} is there; the module shows {listed}");
                let remedy = "plug it in or start its service, or correct `token` in the configuration";
                Err(Trouble::Passing(Failure::new(Class::Unreachable, what, remedy), Cure::Host))
            }
            (Some(_), Some(_)) => {
                let what = format!("several tokens have {wanted}; the module shows {listed}");
                let remedy = "name the token by its serial number in the configuration";
                Err(Trouble::Found(Failure::new(Class::Refused, what, remedy)))
            }
        }
    }

    /// A login counts for all sessions of the process.
    fn log_in(&self, session: &Session, slot: Slot, token: &TokenInfo) -> Result<(), Trouble> {
        let _turn = self.login.lock().unwrap_or_else(PoisonError::into_inner);
        if !token.login_required() || logged_in(self.state(session)?) {
            return Ok(());
        }
        // Of now: another session may have tried.
        let token = self.context.get_token_info(slot).map_err(Trouble::call("looking at the token"))?;
        let serial = token.serial_number();
        refuse_at_the_brink(&token)?;
        let pin = Pin::read(&self.config.pin_file).map_err(Trouble::Found)?;
        if !pin.left_out.is_empty() {
            let path = self.config.pin_file.display();
            let said =
                format!("PIN file {path}: {} is not taken as part of the PIN", pin.left_out.join(" and "));
            self.said.lock().unwrap_or_else(PoisonError::into_inner).push(said);
        }
        let guard = Guard::of(&self.config.guard_folder, serial);
        let attempt = guard.allow(&pin, SystemTime::now()).map_err(Trouble::Found)?;
        let error = match session.login(UserType::User, Some(&AuthPin::from(pin.expose().to_owned()))) {
            Ok(()) => {
                attempt.accepted();
                self.logins.fetch_add(1, Ordering::Release);
                return Ok(());
            }
            Err(error) => error,
        };
        let doing = format!("logging in at the token with serial number {serial}");
        match code::verdict(&error) {
            Verdict::Refused => {
                let mut failure = code::failure(&error, &doing);
                failure.remedy = format!(
                    "put the token's user PIN into the PIN file {}{}; this one is not tried again, since a few wrong ones \
                     lock a token. `pkcs11-tool -L` shows the token's state",
                    pin.path.display(),
                    pin.oddity()
                );
                if let Err(error) = attempt.refused() {
                    failure.what += &format!("; that can't be remembered: {error}");
                }
                Err(Trouble::Found(failure))
            }
            // Not at once in another session: that is for the next call to try, and in a new process.
            Verdict::Unclear => Err(Trouble::Passing(code::failure(&error, &doing), Cure::Host)),
            Verdict::NotTried => {
                attempt.dropped();
                if code::of(&error) == Some(RvError::UserAlreadyLoggedIn) {
                    self.logins.fetch_add(1, Ordering::Release);
                    return Ok(());
                }
                Err(Trouble::Call { error, doing: "logging in" })
            }
        }
    }
}

fn logged_in(state: SessionState) -> bool {
    matches!(state, SessionState::RoUser | SessionState::RwUser)
}

/// One more wrong PIN would lock the token, or has: that is for a person to do.
fn refuse_at_the_brink(token: &TokenInfo) -> Result<(), Trouble> {
    let refused = |what: &str, remedy: &str| {
        let what = format!("the token with serial number {} {what}", token.serial_number());
        Err(Trouble::Found(Failure::new(Class::Credential, what, remedy)))
    };
    if token.user_pin_locked() {
        return refused(
            "is locked after too many wrong PINs",
            "have its security officer set a new user PIN",
        );
    }
    if token.user_pin_final_try() {
        return refused(
            "would be locked by one more wrong PIN: none is tried",
            "make sure that the PIN file is right, then log in once by hand (`pkcs11-tool --login -O`)",
        );
    }
    if !token.user_pin_initialized() {
        return refused(
            "has no user PIN yet",
            "have its security officer set one, and write it into the PIN file",
        );
    }
    Ok(())
}

impl Trouble {
    /// For `map_err`.
    pub(super) fn call(doing: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Call { error, doing }
    }

    pub(super) fn cure(&self) -> Cure {
        match self {
            Self::Call { error, .. } => code::of(error).map_or(Cure::None, |code| code::meaning(code).1),
            Self::Found(_) => Cure::None,
            Self::Passing(_, cure) => *cure,
        }
    }

    pub(super) fn code(&self) -> Option<RvError> {
        match self {
            Self::Call { error, .. } => code::of(error),
            Self::Found(_) | Self::Passing(..) => None,
        }
    }

    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Call { error, doing } => code::failure(&error, doing),
            Self::Found(failure) | Self::Passing(failure, _) => failure,
        }
    }
}

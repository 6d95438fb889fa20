//! What a return code of a module means: its class, and what makes the next call better.

use cryptoki::error::{Error, RvError};

use crate::{Class, Failure};

/// What may help after a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// Nothing that a program can do.
    None,
    /// A new session, and the same call again.
    Session,
    /// A new process: the module, or what it knows of its device, is no good any more.
    Host,
}

/// Class and cure of a return code, whichever call gave it. Never of its text.
pub(super) fn meaning(code: RvError) -> (Class, Cure) {
    use RvError::*;
    match code {
        // The token is gone, or came back as another one.
        DeviceRemoved | TokenNotPresent | TokenNotRecognized | SlotIdInvalid | CryptokiNotInitialized => {
            (Class::Unreachable, Cure::Host)
        }
        // It is ill.
        DeviceError | DeviceMemory | HostMemory | GeneralError | FunctionFailed | FunctionCanceled
        | CantLock | MutexBad | MutexNotLocked | NeedToCreateThreads | FipsSelfTestFailed
        | LibraryLoadFailed | SessionCount | SavedStateInvalid => (Class::Unreachable, Cure::Host),
        // The session is.
        OperationActive
        | OperationNotInitialized
        | SessionClosed
        | SessionHandleInvalid
        | UserNotLoggedIn
        | BufferTooSmall => (Class::Unreachable, Cure::Session),
        PinIncorrect
        | PinInvalid
        | PinLenRange
        | PinExpired
        | PinLocked
        | PinTooWeak
        | UserPinNotInitialized
        | UserTypeInvalid
        | UserAnotherAlreadyLoggedIn
        | UserTooManyTypes
        | SessionReadWriteSoExists => (Class::Credential, Cure::None),
        // A handle was found a moment ago: what it led to was replaced.
        KeyHandleInvalid | ObjectHandleInvalid | WrappingKeyHandleInvalid | UnwrappingKeyHandleInvalid => {
            (Class::Refused, Cure::Session)
        }
        ActionProhibited
        | AttributeSensitive
        | AttributeTypeInvalid
        | AttributeValueInvalid
        | AttributeReadOnly
        | FunctionNotSupported
        | FunctionRejected
        | KeyFunctionNotPermitted
        | KeyNotWrappable
        | KeySizeRange
        | KeyTypeInconsistent
        | KeyUnextractable
        | MechanismInvalid
        | MechanismParamInvalid
        | TemplateIncomplete
        | TemplateInconsistent
        | TokenWriteProtected
        | UnwrappingKeySizeRange
        | UnwrappingKeyTypeInconsistent
        | WrappingKeySizeRange
        | WrappingKeyTypeInconsistent => (Class::Refused, Cure::None),
        // Vendors' own codes among them.
        _ => (Class::Unreachable, Cure::Session),
    }
}

/// Whether a decryption that fails so says that the *ciphertext* is bad.
pub(super) fn blames_ciphertext(code: RvError) -> bool {
    use RvError::*;
    matches!(
        code,
        EncryptedDataInvalid
            | EncryptedDataLenRange
            | WrappedKeyInvalid
            | WrappedKeyLenRange
            | SignatureInvalid
            | SignatureLenRange
    )
}

/// Whether it may say so or anything else: modules differ in what they return for a tag that is wrong.
pub(super) fn may_blame_ciphertext(code: RvError) -> bool {
    use RvError::*;
    matches!(
        code,
        ArgumentsBad | DataInvalid | DataLenRange | FunctionFailed | GeneralError | TemplateInconsistent
    ) || matches!(code, VendorDefined(_) | UnknownErrorCode(_))
}

/// What a login that failed tells about the PIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is wrong.
    Refused,
    /// The token did not come to look at it.
    NotTried,
    /// Anything: it may have counted as a wrong one.
    Unclear,
}

/// What a failed C_Login tells about the PIN. A code that the standard lets a module give at any time tells nothing, even
/// if it speaks of the device: the PIN may have reached it.
pub(super) fn verdict(error: &Error) -> Verdict {
    use RvError::*;
    match error {
        Error::Pkcs11(PinIncorrect | PinInvalid | PinLenRange, _) => Verdict::Refused,
        Error::Pkcs11(
            DeviceRemoved
            | TokenNotPresent
            | TokenNotRecognized
            | SlotIdInvalid
            | HostMemory
            | CryptokiNotInitialized
            | SessionClosed
            | SessionHandleInvalid
            | SessionReadOnlyExists
            | SessionReadWriteSoExists
            | OperationActive
            | FunctionNotSupported
            | UserAlreadyLoggedIn
            | UserAnotherAlreadyLoggedIn
            | UserTooManyTypes
            | UserTypeInvalid
            | UserPinNotInitialized
            // Nothing worse can come of it.
            | PinLocked
            // It was right.
            | PinExpired,
            _,
        )
        | Error::NullFunctionPointer => Verdict::NotTried,
        _ => Verdict::Unclear,
    }
}

/// The return code of a failed call, if the module gave one.
pub(super) fn of(error: &Error) -> Option<RvError> {
    match error {
        Error::Pkcs11(code, _) => Some(*code),
        _ => None,
    }
}

/// The failed call as a failure.
pub(super) fn failure(error: &Error, doing: &str) -> Failure {
    let (class, said) = match error {
        Error::Pkcs11(code, function) => {
            (meaning(*code).0, format!("C_{function:?} answers {}", name(*code)))
        }
        Error::NullFunctionPointer | Error::NotSupported => {
            (Class::Refused, "the module lacks the function".into())
        }
        Error::LibraryLoading(why) => (Class::Unreachable, why.to_string()),
        other => (Class::Unreachable, other.to_string()),
    };
    let remedy = match class {
        Class::Credential => {
            "put the token's user PIN into the PIN file; `pkcs11-tool -L` shows the token's state"
        }
        Class::Refused => {
            "look at the key's attributes with `pkcs11-tool -O`, and at the mechanisms of the token with `-M`"
        }
        _ => {
            "see that the device is there and its service runs; `pkcs11-tool -L` with the same module shows it"
        }
    };
    Failure::new(class, format!("{doing}: {said}"), remedy)
}

/// `CKR_DEVICE_REMOVED`: what people search for.
fn name(code: RvError) -> String {
    match code {
        RvError::VendorDefined(number) => format!("CKR_VENDOR_DEFINED {number:#x}"),
        RvError::UnknownErrorCode(number) => format!("an unknown code {number:#x}"),
        known => {
            let mut name = String::from("CKR");
            for letter in format!("{known:?}").chars() {
                if letter.is_ascii_uppercase() {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use cryptoki::context::Function;

    use super::*;

    #[test]
    fn a_code_has_one_meaning_wherever_it_comes_from() {
        use RvError::*;
        for (code, class, cure) in [
            (DeviceRemoved, Class::Unreachable, Cure::Host),
            (GeneralError, Class::Unreachable, Cure::Host),
            (OperationActive, Class::Unreachable, Cure::Session),
            (UserNotLoggedIn, Class::Unreachable, Cure::Session),
            (VendorDefined(0x8000_0001), Class::Unreachable, Cure::Session),
            (PinIncorrect, Class::Credential, Cure::None),
            (PinLocked, Class::Credential, Cure::None),
            (KeyHandleInvalid, Class::Refused, Cure::Session),
            (KeyFunctionNotPermitted, Class::Refused, Cure::None),
            (MechanismInvalid, Class::Refused, Cure::None),
        ] {
            assert_eq!(meaning(code), (class, cure), "{code:?}");
        }
    }

    #[test]
    fn no_code_both_blames_the_ciphertext_and_may() {
        use RvError::*;
        for code in [EncryptedDataInvalid, WrappedKeyInvalid, GeneralError, DeviceRemoved, PinIncorrect] {
            assert!(!(blames_ciphertext(code) && may_blame_ciphertext(code)), "{code:?}");
        }
        assert!(!blames_ciphertext(DeviceRemoved) && !may_blame_ciphertext(DeviceRemoved));
        assert!(!may_blame_ciphertext(UserNotLoggedIn));
    }

    #[test]
    fn what_a_login_says_of_the_pin_is_what_its_code_says_for_certain() {
        use RvError::*;
        for (code, told) in [
            (PinIncorrect, Verdict::Refused),
            (PinLenRange, Verdict::Refused),
            (PinLocked, Verdict::NotTried),
            (TokenNotPresent, Verdict::NotTried),
            (UserAlreadyLoggedIn, Verdict::NotTried),
            (DeviceError, Verdict::Unclear),
            (GeneralError, Verdict::Unclear),
            (FunctionFailed, Verdict::Unclear),
            (FunctionCanceled, Verdict::Unclear),
            (VendorDefined(0x8000_0001), Verdict::Unclear),
            (UnknownErrorCode(0x4711), Verdict::Unclear),
        ] {
            assert_eq!(verdict(&Error::Pkcs11(code, Function::Login)), told, "{code:?}");
        }
        assert_eq!(verdict(&Error::NullFunctionPointer), Verdict::NotTried);
    }

    #[test]
    fn a_failure_names_function_and_code() {
        let error = Error::Pkcs11(RvError::PinIncorrect, Function::Login);
        let failure = failure(&error, "logging in");
        assert_eq!(failure.what, "logging in: C_Login answers CKR_PIN_INCORRECT");
        assert_eq!(failure.class, Class::Credential);
    }
}

//! The cryptographic module in which everything is computed: AWS-LC, in a FIPS build AWS-LC-FIPS.

/// Whether this is a FIPS build: one with the feature `fips`.
pub const FIPS_BUILD: bool = cfg!(feature = "fips");

/// The module, as it tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptoModule {
    /// Its name.
    pub name: &'static str,
    /// Its version. Which certificate that is of, if any, is not for a program to say.
    pub version: &'static str,
    /// Whether it runs in FIPS mode: it has checked its own code and tests its algorithms.
    pub fips_mode: bool,
}

impl CryptoModule {
    /// The one that this program is linked with.
    pub fn linked() -> Self {
        Self {
            name: if FIPS_BUILD { "AWS-LC-FIPS" } else { "AWS-LC" },
            version: aws_lc_rs::awslc_version(),
            fips_mode: aws_lc_rs::try_fips_mode().is_ok(),
        }
    }

    /// What a daemon asks before it touches a key.
    ///
    /// # Errors
    /// [`NotInFipsMode`] in a FIPS build whose module is not.
    pub fn check(self) -> Result<(), NotInFipsMode> {
        self.check_for(FIPS_BUILD)
    }

    fn check_for(self, fips_build: bool) -> Result<(), NotInFipsMode> {
        if fips_build && !self.fips_mode { Err(NotInFipsMode(self)) } else { Ok(()) }
    }
}

/// A FIPS build without FIPS mode: nothing may be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is a FIPS build, but its cryptographic module, {} {}, is not in FIPS mode, so nothing is encrypted or \
     decrypted; build it anew as docs/how-to/fips.md says",
    .0.name, .0.version
)]
pub struct NotInFipsMode(pub CryptoModule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_in_fips_mode_in_a_fips_build_and_in_no_other() {
        let linked = CryptoModule::linked();
        assert_eq!(linked.fips_mode, FIPS_BUILD);
        assert!(linked.version.split('.').count() == 3, "{linked:?}");
        assert_eq!(linked.check(), Ok(()));
    }

    #[test]
    fn only_a_fips_build_needs_fips_mode() {
        for fips_mode in [false, true] {
            let module = CryptoModule { name: "AWS-LC", version: "1.2.3", fips_mode };
            assert_eq!(module.check_for(false), Ok(()));
            assert_eq!(module.check_for(true).is_ok(), fips_mode);
        }
    }
}

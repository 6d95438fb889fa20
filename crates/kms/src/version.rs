//! What was built, from what, and with which cryptography.

use casemate_keys::crypto_module::{CryptoModule, FIPS_BUILD};
use serde::Serialize;

/// What a program says of itself.
#[derive(Debug, Serialize)]
pub struct Version {
    /// The program's name.
    pub program: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The commit that it was built from, `unknown` if the build was not told.
    pub commit: &'static str,
    /// Features that it was built with.
    pub features: Vec<&'static str>,
    /// What computes all cryptography.
    pub crypto_module: Module,
}

/// [`CryptoModule`], for programs.
#[derive(Debug, Serialize)]
pub struct Module {
    name: &'static str,
    version: &'static str,
    fips: bool,
}

impl Version {
    /// `commit` is what the build was told, in the variable `CASEMATE_COMMIT`.
    pub fn of(program: &'static str, version: &'static str, commit: Option<&'static str>) -> Self {
        let CryptoModule { name, version: of_module, fips_mode } = CryptoModule::linked();
        Self {
            program,
            version,
            commit: commit.filter(|commit| !commit.is_empty()).unwrap_or("unknown"),
            features: if FIPS_BUILD { vec!["fips"] } else { Vec::new() },
            crypto_module: Module { name, version: of_module, fips: fips_mode },
        }
    }

    /// For people: names and values.
    pub fn rows(&self) -> Vec<[String; 2]> {
        let Module { name, version, fips } = self.crypto_module;
        let features = if self.features.is_empty() { "none".to_owned() } else { self.features.join(", ") };
        let mode = if fips { "FIPS mode" } else { "not FIPS" };
        [
            (self.program, self.version.to_owned()),
            ("commit", self.commit.to_owned()),
            ("features", features),
            ("crypto module", format!("{name} {version}, {mode}")),
        ]
        .map(|(name, value)| [name.to_owned(), value])
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_was_not_told_its_commit_says_so() {
        for untold in [None, Some("")] {
            assert_eq!(Version::of("casemate", "0.1.0", untold).commit, "unknown");
        }
        let told = Version::of("casemate", "0.1.0", Some("0123abcd"));
        assert_eq!(told.rows()[..2], [["casemate", "0.1.0"], ["commit", "0123abcd"]]);
    }

    #[test]
    fn people_see_whether_it_is_a_fips_build() {
        let mut version = Version::of("casemate", "0.1.0", None);
        version.features = vec!["fips"];
        version.crypto_module = Module { name: "AWS-LC-FIPS", version: "4.0.0", fips: true };
        assert_eq!(
            version.rows()[2..],
            [["features", "fips"], ["crypto module", "AWS-LC-FIPS 4.0.0, FIPS mode"]]
        );
        version.crypto_module.fips = false;
        assert_eq!(version.rows()[3][1], "AWS-LC-FIPS 4.0.0, not FIPS");
    }
}

//! A certificate authority of the lab's own, for servers and clients that speak TLS.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::{Error, Result};

/// An authority, and the folder that it writes to.
pub struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, PKCS #8.
    pub key: PathBuf,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// It is.
    Now,
    /// It ended long ago.
    Expired,
    /// It begins in a far future, as for one whose clock is behind.
    NotYet,
}

impl Authority {
    /// A new one, in the new folder `folder`, called `name`.
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        fs::create_dir(folder).map_err(Error::file("make", folder))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(refused)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(refused)?;
        let authority = Self { folder: folder.to_owned(), issuer };
        write(&authority.certificate(), &authority.pem())?;
        Ok(authority)
    }

    /// The file with its own certificate, which others are to trust.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The same as text.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server's certificate for these names and addresses, in files called `file`. A second call
    /// replaces them.
    pub fn server(&self, file: &str, names: &[&str], validity: Validity) -> Result<Certified> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).map_err(refused)?;
        self.issue(file, params, file, ExtendedKeyUsagePurpose::ServerAuth, validity)
    }

    /// A client's certificate for this common name, in files called after it. A second call replaces
    /// them.
    pub fn client(&self, common_name: &str, validity: Validity) -> Result<Certified> {
        let params = CertificateParams::default();
        self.issue(common_name, params, common_name, ExtendedKeyUsagePurpose::ClientAuth, validity)
    }

    fn issue(
        &self,
        file: &str,
        mut params: CertificateParams,
        common_name: &str,
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> Result<Certified> {
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        match validity {
            Validity::Now => {}
            Validity::Expired => params.not_after = date_time_ymd(2001, 1, 1),
            Validity::NotYet => params.not_before = date_time_ymd(2999, 1, 1),
        }
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(refused)?;
        let at = |kind: &str| self.folder.join(format!("{file}.{kind}"));
        let made = Certified { certificate: at("pem"), key: at("key") };
        write(&made.certificate, &certificate.pem())?;
        write(&made.key, &key.serialize_pem())?;
        Ok(made)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn refused(_: rcgen::Error) -> Error {
    Error::Crypto { what: "a certificate" }
}

/// By a rename, so that who reads it meanwhile gets one or the other.
fn write(path: &Path, text: &str) -> Result<()> {
    let aside = path.with_extension("aside");
    fs::write(&aside, text).map_err(Error::file("write", &aside))?;
    fs::rename(&aside, path).map_err(Error::file("rename", aside))
}

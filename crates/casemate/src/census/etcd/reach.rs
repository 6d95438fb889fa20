//! Flags that say how an etcd is reached, and the files that they name.
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_census::etcd::detect::detect;
use casemate_census::etcd::{Identity, Settings, Tls, User};
use zeroize::Zeroizing;

use crate::output::{Exit, Failure, Output};

/// How an etcd is reached.
#[derive(clap::Args)]
pub(crate) struct Reach {
    /// Find endpoints, certificates and prefix in the files of this host: of kubeadm, RKE2, k3s or OpenShift
    #[arg(long, conflicts_with_all = ["endpoints", "cacert"])]
    pub(crate) detect: bool,

    /// Where the host's files are, if not at /
    #[arg(long, value_name = "DIR", default_value = "/", requires = "detect")]
    pub(crate) root: PathBuf,

    /// Members of one cluster, as https://HOST:PORT; may be given several times, or with commas
    #[arg(long, value_name = "URL", value_delimiter = ',', required_unless_present = "detect")]
    pub(crate) endpoints: Vec<String>,

    /// Certificate of the authority that etcd's certificates are by, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["key", "cacert"])]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// The name that etcd's certificate has, if it is not that of the endpoint
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,

    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// File with the user's password; a line break at its end is none of it
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// How long to go on trying when no member answers any more, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::kms::timeout)]
    pub(crate) patience: Duration,
}

impl Reach {
    /// How to reach it, and below which key the objects are, if that was detected.
    pub(crate) fn settings(&self, output: &Output) -> Result<(Settings, Option<String>), Failure> {
        let (mut settings, prefix) = if self.detect {
            let found = detect(&self.root).map_err(|error| Failure::new(Exit::Unknown, &error))?;
            output.note(format_args!("detected {found}"));
            let mut settings = Settings::new(found.endpoints);
            settings.tls = tls(found.cacert, found.cert, found.key)?;
            (settings, Some(found.prefix))
        } else {
            let mut settings = Settings::new(self.endpoints.iter().map(|endpoint| endpoint.trim()));
            settings.tls = tls(self.cacert.clone(), self.cert.clone(), self.key.clone())?;
            (settings, None)
        };
        if let Some(tls) = &mut settings.tls {
            tls.server_name.clone_from(&self.tls_server_name);
        }
        if let (Some(name), Some(file)) = (&self.user, &self.password_file) {
            settings.user = Some(User { name: name.clone(), password: password(file)? });
        }
        settings.patience = self.patience;
        Ok((settings, prefix))
    }
}

fn tls(cacert: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Tls>, Failure> {
    let Some(cacert) = cacert else { return Ok(None) };
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity { certificate: read(&cert)?.to_vec(), key: read(&key)? }),
        _ => None,
    };
    Ok(Some(Tls { authorities: read(&cacert)?.to_vec(), identity, server_name: None }))
}

fn password(file: &Path) -> Result<Zeroizing<String>, Failure> {
    let bytes = read(file)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| usage(file, "is no text"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    match text {
        "" => Err(usage(file, "holds no password")),
        text => Ok(Zeroizing::new(text.to_owned())),
    }
}

/// At most 1 MiB; wiped, since it may be a key.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    const MOST: u64 = 1 << 20;
    let mut bytes = Zeroizing::new(Vec::new());
    let read = File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes));
    match read.map_err(|error| usage(path, &format!("can't be read: {error}")))? as u64 {
        0 => Err(usage(path, "is empty")),
        length if length > MOST => Err(usage(path, "is larger than any certificate, key or password")),
        _ => Ok(bytes),
    }
}

fn usage(path: &Path, what: &str) -> Failure {
    Failure::new(Exit::Usage, &format_args!("{}: {what}", path.display()))
}

//! SoftHSM: PKCS#11 tokens in a folder, made and handled by Debian's `softhsm2-util` and `pkcs11-tool`.
//!
//! Each [`SoftHsm`] has tokens of its own; a process finds them by one variable, [`SoftHsm::env`].
//! It reads them when it loads the module: one that runs sees other changes than those through
//! PKCS#11 only after C_Finalize and C_Initialize.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use aws_lc_rs::rand;
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::object::{Attribute, ObjectClass};
use cryptoki::session::UserType;
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;

use crate::{Error, Result, plugin::product, process};

/// The security officer's PIN of every token.
pub const SO_PIN: &str = "87654321";

/// A host's tokens.
#[derive(Debug)]
pub struct SoftHsm {
    folder: PathBuf,
    /// Who makes a token finds it as the one that is new.
    making: Mutex<()>,
}

/// One token. It is named by its serial, which a copy keeps, so that two may have one label.
#[derive(Clone, Debug)]
pub struct Token {
    home: PathBuf,
    folder: String,
    label: String,
}

/// One object on a token, as `pkcs11-tool` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its class, as in `Secret Key Object; AES length 32`.
    pub kind: String,
    /// CKA_LABEL.
    pub label: String,
    /// CKA_ID.
    pub id: Vec<u8>,
}

/// What a key is for, as the word that `pkcs11-tool` deletes it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An AES key.
    Secret,
    /// The private half of a pair.
    Private,
    /// The public half.
    Public,
}

/// A copy of a token's folder.
#[derive(Clone, Debug)]
pub struct Backup(PathBuf);

impl SoftHsm {
    /// Where the package installs the module.
    pub const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
    /// The variable that names the configuration.
    pub const CONF: &str = "SOFTHSM2_CONF";

    /// A host without tokens, in the new folder `folder`.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir(folder).map_err(Error::file("make", folder))?;
        let hsm = Self { folder: folder.to_owned(), making: Mutex::default() };
        for kept in [hsm.tokens(), hsm.folder.join(AWAY), hsm.folder.join(COPIES)] {
            fs::create_dir(&kept).map_err(Error::file("make", kept))?;
        }
        let text = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\nslots.removable = true\n",
            hsm.tokens().display()
        );
        fs::write(hsm.conf(), text).map_err(Error::file("write", hsm.conf()))?;
        Ok(hsm)
    }

    /// Its configuration file.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("softhsm2.conf")
    }

    /// What a process needs in its environment to see these tokens.
    pub fn env(&self) -> (&'static str, PathBuf) {
        (Self::CONF, self.conf())
    }

    /// The folder in which each token has one; a process that uses them reads and writes here.
    pub fn tokens(&self) -> PathBuf {
        self.folder.join(TOKENS)
    }

    /// Makes a token. Another with the same label may be there.
    pub fn init_token(&self, label: &str, pin: &str) -> Result<Token> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.token_folders()?;
        let mut command = Command::new("softhsm2-util");
        command.args(["--init-token", "--free", "--label", label, "--so-pin", SO_PIN, "--pin", pin]);
        let (name, conf) = self.env();
        run(command.env(name, conf))?;
        let folder = self.token_folders()?.difference(&before).next().cloned();
        let folder = folder.ok_or_else(|| unreadable(&command, "no token was made"))?;
        Ok(Token { home: self.folder.clone(), folder, label: label.to_owned() })
    }

    fn token_folders(&self) -> Result<BTreeSet<String>> {
        let all = fs::read_dir(self.tokens()).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        });
        all.map_err(Error::file("read", self.tokens()))
    }
}

impl Token {
    /// Its label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its serial number, as C_GetTokenInfo tells it.
    pub fn serial(&self) -> String {
        let digits: String = self.folder.chars().filter(char::is_ascii_hexdigit).collect();
        digits[digits.len().saturating_sub(16)..].to_owned()
    }

    /// `pkcs11-tool` on this token, with SoftHSM's module.
    pub fn pkcs11_tool(&self) -> Command {
        self.pkcs11_tool_with(Path::new(SoftHsm::MODULE))
    }

    /// The same with another module.
    pub fn pkcs11_tool_with(&self, module: &Path) -> Command {
        let mut command = Command::new("pkcs11-tool");
        command.arg("--module").arg(module).args(["--slot", &self.slot().to_string()]);
        command.env(SoftHsm::CONF, self.conf());
        command
    }

    fn conf(&self) -> PathBuf {
        self.home.join("softhsm2.conf")
    }

    /// The slot that SoftHSM puts it into: the serial's end, as a positive number.
    pub fn slot(&self) -> u32 {
        let serial = self.serial();
        let end = &serial[serial.len().saturating_sub(8)..];
        u32::from_str_radix(end, 16).unwrap_or_default() & 0x7fff_ffff
    }

    /// Changes the PIN, as its user.
    pub fn change_pin(&self, old: &str, new: &str) -> Result<()> {
        self.logged_in(old, &["--change-pin", "--new-pin", new]).map(drop)
    }

    /// Sets the PIN, as the security officer.
    pub fn set_pin(&self, new: &str) -> Result<()> {
        let mut command = self.pkcs11_tool();
        command.args(["--login", "--login-type", "so", "--so-pin", SO_PIN, "--init-pin", "--new-pin", new]);
        run(&mut command).map(drop)
    }

    /// Makes an AES-256 key that can't be read; answers its CKA_ID, 16 random bytes.
    pub fn new_aes_key(&self, pin: &str, label: &str) -> Result<Vec<u8>> {
        let id = random_id()?;
        self.new_aes_key_with_id(pin, label, &id)?;
        Ok(id)
    }

    /// The same with this CKA_ID.
    pub fn new_aes_key_with_id(&self, pin: &str, label: &str, id: &[u8]) -> Result<()> {
        let made = [
            "--keygen",
            "--key-type",
            "AES:32",
            "--sensitive",
            "--private",
            "--usage-decrypt",
            "--usage-wrap",
        ];
        self.logged_in(pin, &[&made[..], &["--label", label, "--id", &hex::encode(id)]].concat()).map(drop)
    }

    /// Changes the label of the AES key with this CKA_ID, in hex.
    pub fn set_label(&self, pin: &str, id: &str, label: &str) -> Result<()> {
        // pkcs11-tool can't. The module reads its environment, so it takes a process of its own.
        let mut command = Command::new(product("casemate-lab")?);
        command.args(["set-label", &self.slot().to_string(), id, label]).env(SoftHsm::CONF, self.conf());
        process::run_checked(&command, pin.as_bytes()).map(drop)
    }

    /// Takes from the AES key with this CKA_ID, in hex, all but decrypting and unwrapping.
    pub fn only_unwraps(&self, pin: &str, id: &str) -> Result<()> {
        let mut command = Command::new(product("casemate-lab")?);
        command.args(["only-unwraps", &self.slot().to_string(), id]).env(SoftHsm::CONF, self.conf());
        process::run_checked(&command, pin.as_bytes()).map(drop)
    }

    /// Makes an RSA key pair of `bits`; answers its CKA_ID, 16 random bytes.
    pub fn new_rsa_pair(&self, pin: &str, label: &str, bits: u32) -> Result<Vec<u8>> {
        let id = random_id()?;
        let kind = format!("rsa:{bits}");
        let made = ["--keypairgen", "--key-type", &kind, "--usage-decrypt", "--usage-wrap", "--usage-sign"];
        self.logged_in(pin, &[&made[..], &["--label", label, "--id", &hex::encode(&id)]].concat())?;
        Ok(id)
    }

    /// The public half of a pair, as a DER SubjectPublicKeyInfo.
    pub fn public_key(&self, pin: &str, id: &[u8]) -> Result<Vec<u8>> {
        let to = self.home.join(format!("{}.der", hex::encode(id)));
        let path = to.to_string_lossy();
        let asked = ["--read-object", "--type", "pubkey", "--output-file", &path, "--id", &hex::encode(id)];
        self.logged_in(pin, &asked)?;
        fs::read(&to).map_err(Error::file("read", to))
    }

    /// All objects that a logged-in user sees.
    pub fn objects(&self, pin: &str) -> Result<Vec<Object>> {
        let listed = self.logged_in(pin, &["--list-objects"])?;
        let mut objects: Vec<Object> = Vec::new();
        for line in listed.lines() {
            let field = |name: &str| line.trim().strip_prefix(name).map(str::trim);
            if !line.starts_with(' ') && line.contains(" Object;") {
                objects.push(Object { kind: line.trim().into(), label: String::new(), id: Vec::new() });
            } else if let Some(last) = objects.last_mut() {
                if let Some(label) = field("label:") {
                    label.clone_into(&mut last.label);
                } else if let Some(id) = field("ID:") {
                    last.id = hex::decode(id).unwrap_or_default();
                }
            }
        }
        Ok(objects)
    }

    /// Deletes one object, the first if several have this CKA_ID.
    pub fn delete(&self, pin: &str, class: Class, id: &[u8]) -> Result<()> {
        let kind = match class {
            Class::Secret => "secrkey",
            Class::Private => "privkey",
            Class::Public => "pubkey",
        };
        self.logged_in(pin, &["--delete-object", "--type", kind, "--id", &hex::encode(id)]).map(drop)
    }

    /// Takes the token away, as if it was pulled.
    pub fn pull(&self) -> Result<()> {
        rename(&self.path(), &self.home.join(AWAY).join(&self.folder))
    }

    /// Puts it back.
    pub fn put_back(&self) -> Result<()> {
        rename(&self.home.join(AWAY).join(&self.folder), &self.path())
    }

    /// A copy of all that is on it now.
    pub fn back_up(&self) -> Result<Backup> {
        let copies = self.home.join(COPIES);
        let copy = tempfile::Builder::new().prefix("token-").tempdir_in(&copies);
        let copy = copy.map_err(Error::file("make a folder in", copies))?.keep();
        copy_files(&self.path(), &copy)?;
        Ok(Backup(copy))
    }

    /// Makes it what it was then. No process should be using it.
    pub fn restore(&self, backup: &Backup) -> Result<()> {
        fs::remove_dir_all(self.path()).map_err(Error::file("remove", self.path()))?;
        fs::create_dir(self.path()).map_err(Error::file("make", self.path()))?;
        copy_files(&backup.0, &self.path())
    }

    fn path(&self) -> PathBuf {
        self.home.join(TOKENS).join(&self.folder)
    }

    fn logged_in(&self, pin: &str, args: &[&str]) -> Result<String> {
        run(self.pkcs11_tool().args(["--login", "--pin", pin]).args(args))
    }
}

/// What [`Token::set_label`] starts: on the token in `slot`, of the configuration in the environment.
pub fn relabel(slot: u32, pin: &str, id: &str, label: &str) -> anyhow::Result<()> {
    change(slot, pin, id, &[Attribute::Label(label.into())])
}

/// What [`Token::only_unwraps`] starts, as [`relabel`].
pub fn restrict(slot: u32, pin: &str, id: &str) -> anyhow::Result<()> {
    change(slot, pin, id, &[Attribute::Encrypt(false), Attribute::Wrap(false)])
}

fn change(slot: u32, pin: &str, id: &str, attributes: &[Attribute]) -> anyhow::Result<()> {
    let module = Pkcs11::new(SoftHsm::MODULE)?;
    module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))?;
    let session = module.open_rw_session(Slot::try_from(u64::from(slot))?)?;
    session.login(UserType::User, Some(&AuthPin::new(pin.into())))?;
    let wanted = [Attribute::Class(ObjectClass::SECRET_KEY), Attribute::Id(hex::decode(id)?)];
    let found = session.find_objects(&wanted)?;
    anyhow::ensure!(found.len() == 1, "the token has {} keys with id {id}", found.len());
    session.update_attributes(found[0], attributes)?;
    Ok(())
}

const TOKENS: &str = "tokens";
const AWAY: &str = "pulled";
const COPIES: &str = "backups";

fn random_id() -> Result<Vec<u8>> {
    let mut id = vec![0; 16];
    rand::fill(&mut id).map_err(|_| Error::Crypto { what: "an id" })?;
    Ok(id)
}

fn run(command: &mut Command) -> Result<String> {
    let printed = process::run_checked(command, b"")?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

fn unreadable(command: &Command, found: &str) -> Error {
    Error::Answer { command: process::as_typed(command), found: found.to_owned() }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::file("rename", from))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> std::io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(())
    };
    copy().map_err(Error::file("copy", from))
}

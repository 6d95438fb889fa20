//! No key bytes in what a log line or an error may show.

use std::fmt::{Debug, Display};

use casemate_keys::kdf::{Label, derive};
use casemate_keys::origin::OriginPolicy;
use casemate_keys::{KekError, LocalKek, RECORD_ANNOTATION, Record, Sealed, Suite, gcm, payload};

use crate::peers::Peer;
use crate::sample::{Sample, cluster, sha256};
use crate::vector::read_policy;

/// What was shown of every value, and the secrets that must not be in it.
struct Shown {
    text: Vec<String>,
    secrets: Vec<Vec<u8>>,
}

impl Shown {
    fn debug(&mut self, value: &impl Debug) {
        self.text.extend([format!("{value:?}"), format!("{value:#?}"), format!("{value:x?}")]);
    }

    fn both(&mut self, value: &(impl Debug + Display)) {
        self.debug(value);
        self.text.push(value.to_string());
    }

    /// What shows any four bytes in a row of a secret, however it is written.
    fn leak(&self) -> Option<&str> {
        let shows = |text: &str| {
            let plain: String = text.split_whitespace().collect::<String>().to_lowercase();
            self.secrets.iter().flat_map(|secret| secret.windows(4)).any(|bytes| {
                let decimal = bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
                let hex: String = bytes.iter().map(|byte| format!("{byte:x},")).collect();
                let raw = String::from_utf8_lossy(bytes).to_lowercase();
                let escaped = bytes.escape_ascii().to_string();
                [decimal, hex[..hex.len() - 1].to_owned(), hex::encode(bytes), escaped, raw]
                    .iter()
                    .any(|form| plain.contains(form.as_str()))
            })
        };
        self.text.iter().map(String::as_str).find(|text| shows(text))
    }
}

#[test]
fn nothing_shows_key_bytes() {
    // Bytes that stay recognisable in each form and occur in no other value here.
    let kek = LocalKek::from_bytes(b"Q!w8#Zt5&Lp2*Vn9(Xk4)Bj7_Hf3+Gd6").unwrap();
    let secret = *b"M@r1$Cy0^Us8%Ei5~Oa2|Tq9{Wz4}Kx7";
    let source = *b"?Je3<Nv6>Dm1;Yb8:Rg5'Fs2,Lc9.Ph0";
    let peers = [Peer::file(&"4f".repeat(16), 1, secret)];
    let sample = Sample::of(&peers);
    let record = {
        let core = casemate_keys::Core { kek_id: kek.id(), ..sample.record.core().clone() };
        let wrap = peers[0].wrap(&core.digest(), &*payload::encode(&kek, &core.digest()));
        Record::new(core, vec![wrap], vec![], None).unwrap()
    };
    let value = record.encode();
    let core = record.core().digest();
    let ciphertext = kek.seal(Suite::One, &sha256(&value), &source).unwrap();
    let policy = read_policy(cluster(), &peers, OriginPolicy::Signed(vec![]));
    let annotations = [(RECORD_ANNOTATION, value.as_slice())];
    let key_id = record.core().policy.key_id();
    let sealed = Sealed { ciphertext: &ciphertext, key_id: key_id.as_str(), annotations: &annotations };
    let readable = policy.check(&sealed, 0).unwrap();

    let derived = derive(&secret, Label::FileWrap, &[]);
    let unwrapped = peers[0].unwrap(&core, &readable.attempts()[0].wrap).unwrap();
    let opened_kek = readable.local_kek(&unwrapped).unwrap();
    let opened = readable.open(&opened_kek, &ciphertext).unwrap();
    assert_eq!(*opened, source);

    let secrets = vec![unwrapped[..32].to_vec(), secret.to_vec(), source.to_vec(), derived.to_vec()];
    let mut shown = Shown { text: vec![], secrets };
    shown.debug(&kek);
    shown.debug(&opened_kek);
    shown.debug(&derived);
    shown.debug(&payload::encode(&kek, &core));
    shown.debug(&opened);
    shown.debug(&gcm::open(&derived, &payload::associated_data(&core), &readable.attempts()[0].wrap));
    shown.debug(&readable.open(&kek, &ciphertext));
    shown.debug(&readable);
    shown.debug(&readable.attempts());
    shown.debug(&readable.local_kek(&unwrapped));
    shown.debug(&sealed);
    shown.debug(&policy);
    shown.debug(&record);
    shown.debug(&record.core());
    shown.both(&kek.id());
    shown.both(&key_id);
    // Errors about secrets.
    shown.both(&kek.seal(Suite::One, &core, &source[..15]).unwrap_err());
    shown.both(&kek.open(Suite::One, &core, &source).unwrap_err());
    shown.both(&readable.open(&LocalKek::from_bytes(&secret).unwrap(), &ciphertext).unwrap_err());
    shown.both(&gcm::open(&secret, &source, &unwrapped).unwrap_err());
    shown.both(&KekError::Unauthentic);
    // A payload where a record belongs.
    shown.both(&Record::decode(&unwrapped).unwrap_err());
    assert_eq!(shown.leak(), None);

    // And a leak in any form would be found.
    for leak in [
        format!("{:?}", &source[7..11]),
        format!("{:#?}", &source[..4]),
        format!("{:x?}", &derived[28..]),
        hex::encode(&secret[3..9]),
        String::from_utf8_lossy(&unwrapped[..5]).into_owned(),
    ] {
        shown.text.push(leak.clone());
        assert_eq!(shown.leak(), Some(leak.as_str()));
        shown.text.pop();
    }
}

"""Root keys, recovery identities and signers, and how each wraps and unwraps."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import age
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key
from record import (
    ALGORITHM_NAMES,
    ALGORITHMS,
    P,
    Record,
    Refused,
    Root,
    fingerprint,
    gcm_open,
    gcm_seal,
    kdf,
    kek_id,
    require,
)

OAEP = padding.OAEP(mgf=padding.MGF1(algorithm=SHA256()), algorithm=SHA256(), label=None)
PSS = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=32)


@dataclass(frozen=True)
class RootKey:
    """A root key that this program holds itself, or of which it knows what the key service answers."""

    root: Root
    secret: bytes = b""
    private_key: rsa.RSAPrivateKey | None = None
    # For services that cannot be imitated: the payload by D, to which all of them bind their ciphertext.
    answers: dict[bytes, bytes] = field(default_factory=dict)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> RootKey | None:
        """None if the entry holds no key material."""
        root = Root(entry["lineage"], ALGORITHMS[entry["algorithm"]])
        if entry.get("private_key"):
            key = load_der_private_key(bytes.fromhex(entry["private_key"]), None)
            require(isinstance(key, rsa.RSAPrivateKey), f"{root.lineage}: not an RSA key")
            assert isinstance(key, rsa.RSAPrivateKey)
            return RootKey(root, private_key=key)
        if entry.get("payload"):
            payload = bytes.fromhex(entry["payload"])
            return RootKey(root, answers={payload[32:]: payload})
        secret = bytes.fromhex(entry.get("secret") or entry.get("key") or "")
        if not secret:
            return None
        if root.algorithm == ALGORITHMS["file-aes256-gcm"]:
            commitment = kdf(secret, "root-id", b"")[:8].hex()
            require(root.lineage.split("/")[2:] == [commitment], f"{root.lineage}: not the secret of this lineage")
        return RootKey(root, secret=secret)

    @property
    def asymmetric(self) -> bool:
        return ALGORITHM_NAMES[self.root.algorithm] == "rsa-oaep-sha256"

    @property
    def answered(self) -> bool:
        return not self.secret and self.private_key is None

    def unwrap(self, wrap: bytes, digest: bytes) -> bytes:
        try:
            if self.answered:
                return self.answers[digest]
            match ALGORITHM_NAMES[self.root.algorithm]:
                case "file-aes256-gcm":
                    return gcm_open(kdf(self.secret, "file-wrap", b""), _binding(digest), wrap)
                case "transit" | "pkcs11-aes256-gcm" | "tpm-sealed":
                    return gcm_open(self.secret, _binding(digest), wrap)
                case "pkcs11-aes-kwp":
                    return keywrap.aes_key_unwrap_with_padding(self.secret, wrap)
                case "azure-aes-kw":
                    return keywrap.aes_key_unwrap(self.secret, wrap)
                case "rsa-oaep-sha256":
                    assert self.private_key is not None
                    return self.private_key.decrypt(wrap, OAEP)
                case algorithm:
                    raise Refused(f"{self.root.lineage}: nothing is known of how {algorithm} wraps")
        except (keywrap.InvalidUnwrap, KeyError, ValueError) as error:
            raise Refused(f"{self.root.lineage} does not unwrap it") from error

    def wrap(self, payload: bytes) -> bytes:
        digest = payload[32:]
        if self.answered:
            self.answers[digest] = payload
            return os.urandom(96)
        match ALGORITHM_NAMES[self.root.algorithm]:
            case "file-aes256-gcm":
                return gcm_seal(kdf(self.secret, "file-wrap", b""), _binding(digest), payload)
            case "transit" | "pkcs11-aes256-gcm" | "tpm-sealed":
                return gcm_seal(self.secret, _binding(digest), payload)
            case "pkcs11-aes-kwp":
                return keywrap.aes_key_wrap_with_padding(self.secret, payload)
            case "azure-aes-kw":
                return keywrap.aes_key_wrap(self.secret, payload)
            case "rsa-oaep-sha256":
                assert self.private_key is not None
                return self.private_key.public_key().encrypt(payload, OAEP)
            case algorithm:
                raise Refused(f"{self.root.lineage}: nothing is known of how {algorithm} wraps")


@dataclass(frozen=True)
class RecoveryKey:
    """A recipient, with its identity if this program may open with it."""

    recipient: str
    identity: str | None

    @staticmethod
    def from_json(entry: dict[str, Any]) -> RecoveryKey:
        identity = entry.get("identity")
        derived = age.recipient_of(identity) if identity else None
        recipient = entry.get("recipient") or derived
        require(recipient, "a recovery entry needs a recipient or an identity")
        require(derived in (None, recipient), f"{recipient}: not of this identity")
        return RecoveryKey(str(recipient), identity)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.recipient)

    def unwrap(self, wrap: bytes) -> bytes:
        try:
            return age.decrypt(self.identity or "", wrap)
        except age.NotOpened as error:
            raise Refused(f"{self.recipient}: {error}") from error

    def wrap(self, payload: bytes) -> bytes:
        return age.encrypt(self.recipient, payload)


@dataclass(frozen=True)
class Signer:
    """A key whose origin signatures the reader accepts, and can make if it has the private half."""

    lineage: str
    algorithm: str
    public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
    private_key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Signer:
        private = load_der_private_key(bytes.fromhex(entry["private_key"]), None) if entry.get("private_key") else None
        if entry.get("public_key"):
            public = load_der_public_key(bytes.fromhex(entry["public_key"]))
        else:
            require(private, "a signer needs a public key")
            assert private is not None
            public = private.public_key()
        if entry["algorithm"] == "ecdsa-p256":
            good = isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == "secp256r1"
        else:
            good = entry["algorithm"] == "rsa-pss-3072" and isinstance(public, rsa.RSAPublicKey)
            good = good and public.key_size == 3072  # type: ignore[union-attr]
        require(good, f"{entry['lineage']}: not a key for {entry['algorithm']}")
        return Signer(entry["lineage"], entry["algorithm"], public, private)  # type: ignore[arg-type]

    def proves(self, record: Record) -> bool:
        try:
            if isinstance(self.public_key, ec.EllipticCurvePublicKey):
                self.public_key.verify(record.origin_signature, record.origin_message(), ec.ECDSA(SHA256()))
            else:
                self.public_key.verify(record.origin_signature, record.origin_message(), PSS, SHA256())
        except InvalidSignature:
            return False
        return True

    def sign(self, record: Record) -> bytes:
        if isinstance(self.private_key, ec.EllipticCurvePrivateKey):
            return self.private_key.sign(record.origin_message(), ec.ECDSA(SHA256()))
        require(self.private_key, f"{self.lineage}: no private key to sign with")
        assert self.private_key is not None
        return self.private_key.sign(record.origin_message(), PSS, SHA256())


def local_kek_of(payload: bytes, digest: bytes, expected_kek_id: bytes) -> bytes:
    """The local KEK in an unwrapped payload, which belongs to this core or is refused."""
    require(len(payload) == 64 and payload[32:] == digest, "the payload belongs to another record")
    require(kek_id(payload[:32]) == expected_kek_id, "the payload holds another local KEK")
    return payload[:32]


def _binding(digest: bytes) -> bytes:
    """A of the page."""
    return P + b"wrap\0" + digest

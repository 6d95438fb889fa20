"""Notation, names, record and ciphertext: the parts of formats.md that need no root key."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from wire import Malformed, Message, bytes_field, number_field

P = b"casemate.dev/v1/"
ANNOTATION = "record.casemate.dev"
SUITE = 1
ALGORITHMS = {
    "file-aes256-gcm": 1,
    "transit": 2,
    "pkcs11-aes256-gcm": 3,
    "pkcs11-aes-kwp": 4,
    "rsa-oaep-sha256": 5,
    "aws-symmetric": 6,
    "google-symmetric": 7,
    "azure-aes-kw": 8,
    "tpm-sealed": 9,
    "exec": 10,
}
ALGORITHM_NAMES = {number: name for name, number in ALGORITHMS.items()}

CLUSTER_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
LINEAGE = re.compile(r"[a-z0-9]{1,16}:(?=.)([A-Za-z0-9._~-]|%[0-9A-F]{2}|/)*")
ESCAPE = re.compile(r"%([0-9A-F]{2})")
WRITER = re.compile(r"(?=.{3,32}\Z)[!-~]+/[!-~]+")


class Refused(Exception):
    """A reader does not open this, and why."""


def list_of(*items: bytes) -> bytes:
    """`list(a, b, …)` of the page."""
    return b"".join(len(item).to_bytes(4, "big") + item for item in items)


def decimal(number: int) -> bytes:
    return str(number).encode()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def kdf(key: bytes, label: str, context: bytes) -> bytes:
    """NIST SP 800-108r1 in counter mode, one block of HMAC-SHA256."""
    message = b"\0\0\0\x01" + P + label.encode() + b"\0" + context + b"\0\0\x01\0"
    return hmac.digest(key, message, hashlib.sha256)


def gcm_seal(key: bytes, aad: bytes, plaintext: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, aad)


def gcm_open(key: bytes, aad: bytes, sealed: bytes) -> bytes:
    if len(sealed) < 28:
        raise Refused("too short for a nonce and a tag")
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], aad)
    except InvalidTag as error:
        raise Refused("AES-GCM does not open it") from error


def fingerprint(recipient: str) -> bytes:
    return sha256(list_of(b"age-x25519", recipient.encode()))


def kek_id(local_kek: bytes) -> bytes:
    return kdf(local_kek, "kek-id", b"")


@dataclass(frozen=True)
class Root:
    """A root key as a core names it."""

    lineage: str
    algorithm: int

    def as_list(self) -> bytes:
        return list_of(self.lineage.encode(), decimal(self.algorithm))


@dataclass(frozen=True)
class Core:
    """What all wraps of a record bind."""

    cluster_id: str
    epoch: int
    roots: tuple[Root, ...]
    recipients: tuple[bytes, ...]
    kek_id: bytes
    created: int
    writer: str
    signer: str
    suite: int = SUITE

    @staticmethod
    def decode(encoded: bytes, canonical: bool = True) -> Core:
        """Decodes and checks a core. Without `canonical`, one that has another spelling passes too: that is how the
        fault tests show that the rule, and nothing else, refuses it."""
        message = Message(encoded)
        roots = [Message(root) for root in message.repeated(4)]
        core = Core(
            suite=message.number(1),
            cluster_id=message.text(2),
            epoch=message.number(3),
            roots=tuple(Root(root.text(1), root.number(2)) for root in roots),
            recipients=tuple(message.repeated(5)),
            kek_id=message.blob(6),
            created=message.number(7),
            writer=message.text(8),
            signer=message.text(9),
        )
        if canonical and core.encode() != encoded:
            raise Refused("the core is not canonical")
        core._check()
        return core

    def encode(self) -> bytes:
        roots = [_text(1, root.lineage) + _number(2, root.algorithm) for root in self.roots]
        return (
            _number(1, self.suite)
            + _text(2, self.cluster_id)
            + _number(3, self.epoch)
            + b"".join(bytes_field(4, root) for root in roots)
            + b"".join(bytes_field(5, recipient) for recipient in self.recipients)
            + _bytes(6, self.kek_id)
            + _number(7, self.created)
            + _text(8, self.writer)
            + _text(9, self.signer)
        )

    def key_id(self) -> str:
        name = sha256(
            list_of(
                P + b"key-id",
                decimal(self.suite),
                self.cluster_id.encode(),
                decimal(self.epoch),
                list_of(*(root.as_list() for root in self.roots)),
                list_of(*self.recipients),
                self.signer.encode(),
            )
        )
        return f"{self.cluster_id}:{name[:16].hex()}"

    def _check(self) -> None:
        order = [root.as_list() for root in self.roots]
        require(self.suite == SUITE, f"suite {self.suite}")
        require(CLUSTER_ID.fullmatch(self.cluster_id), "the form of the cluster id")
        require(1 <= len(self.roots) <= 4, f"{len(self.roots)} roots")
        require(all(is_lineage(root.lineage) for root in self.roots), "the form of a lineage")
        # A number of a later version is no fault: no key here matches it, so its wrap is skipped.
        require(all(0 < root.algorithm < 2**31 for root in self.roots), "a root without an algorithm")
        require(order == sorted(order), "the order of the roots")
        require(len({root.lineage for root in self.roots}) == len(self.roots), "a lineage that stands twice")
        require(len(self.recipients) <= 4, f"{len(self.recipients)} recipients")
        require(all(len(recipient) == 32 for recipient in self.recipients), "the length of a fingerprint")
        require(list(self.recipients) == sorted(set(self.recipients)), "the order of the recipients")
        require(len(self.kek_id) == 32, "the length of kek_id")
        require(WRITER.fullmatch(self.writer), "the form of the writer")
        require(not self.signer or is_lineage(self.signer), "the form of the signer")


@dataclass(frozen=True)
class Record:
    """The value of the annotation."""

    core: bytes
    wraps: tuple[bytes, ...]
    recovery_wraps: tuple[bytes, ...]
    origin_signature: bytes

    @staticmethod
    def decode(encoded: bytes, canonical: bool = True) -> tuple[Record, Core]:
        """Decodes and checks a record with its core; `canonical` as in Core.decode."""
        require(len(encoded) <= 8192, f"a record of {len(encoded)} bytes")
        try:
            message = Message(encoded)
            record = Record(
                core=message.blob(1),
                wraps=tuple(message.repeated(2)),
                recovery_wraps=tuple(message.repeated(3)),
                origin_signature=message.blob(4),
            )
            if canonical and record.encode() != encoded:
                raise Refused("the record is not canonical")
            require(len(record.core) <= 2048, f"a core of {len(record.core)} bytes")
            core = Core.decode(record.core, canonical)
        except Malformed as error:
            raise Refused(f"the record: {error}") from error
        wraps = record.wraps + record.recovery_wraps
        require(len(record.wraps) == len(core.roots), "as many wraps as roots")
        require(len(record.recovery_wraps) == len(core.recipients), "as many recovery wraps as recipients")
        require(all(1 <= len(wrap) <= 2048 for wrap in wraps), "the length of a wrap")
        require(bool(record.origin_signature) == bool(core.signer), "a signature exactly if there is a signer")
        require(len(record.origin_signature) <= 384, "the length of the signature")
        return record, core

    def encode(self) -> bytes:
        return self.unsigned() + _bytes(4, self.origin_signature)

    def unsigned(self) -> bytes:
        """The record without field 4."""
        return (
            _bytes(1, self.core)
            + b"".join(bytes_field(2, wrap) for wrap in self.wraps)
            + b"".join(bytes_field(3, wrap) for wrap in self.recovery_wraps)
        )

    def origin_message(self) -> bytes:
        return P + b"origin\0" + sha256(self.unsigned())

    def digest(self) -> bytes:
        """D of the page."""
        return sha256(self.core)


def seal_dek_source(local_kek: bytes, annotation: bytes, dek_source: bytes) -> bytes:
    random = os.urandom(32)
    key = kdf(local_kek, "seal", sha256(annotation) + random)
    return bytes([SUITE]) + random + gcm_seal(key, b"", dek_source)


def open_dek_source(local_kek: bytes, annotation: bytes, ciphertext: bytes) -> bytes:
    key = kdf(local_kek, "seal", sha256(annotation) + ciphertext[1:33])
    return gcm_open(key, b"", ciphertext[33:])


def is_lineage(text: str) -> bool:
    escapes = (chr(int(escape, 16)) for escape in ESCAPE.findall(text))
    return bool(LINEAGE.fullmatch(text)) and not any(re.match(r"[A-Za-z0-9._~-]", letter) for letter in escapes)


def require(condition: object, what: str) -> None:
    if not condition:
        raise Refused(f"refused: {what}")


def _number(number: int, value: int) -> bytes:
    return number_field(number, value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return bytes_field(number, value) if value else b""


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())

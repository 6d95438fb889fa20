"""age v1 (https://age-encryption.org/v1) with X25519 recipients, as far as a recovery wrap needs it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = b"age-encryption.org/v1"
X25519_INFO = b"age-encryption.org/v1/X25519"
# The nonce of the first chunk of a payload which is also the last. A wrap has at most 2048 bytes, a chunk 64 KiB.
ONLY_CHUNK = bytes(11) + b"\x01"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


class NotOpened(ValueError):
    """This is not an age file, or not one for this identity."""


def recipient_of(identity: str) -> str:
    """The `age1…` text that belongs to an `AGE-SECRET-KEY-1…` text."""
    return _bech32_encode("age", _private_key(identity).public_key().public_bytes_raw())


def decrypt(identity: str, file: bytes) -> bytes:
    """Opens a binary age file; stanzas of other kinds are ignored, scrypt is refused."""
    stanzas, header, mac, payload = _parse(file)
    if any(arguments[0] == b"scrypt" for arguments, _ in stanzas):
        raise NotOpened("an age file with a scrypt stanza")
    private = _private_key(identity)
    for arguments, body in stanzas:
        if arguments[0] != b"X25519":
            continue
        share = _base64_decode(arguments[1]) if len(arguments) == 2 else b""
        if len(share) != 32 or len(body) != 32:
            raise NotOpened("an X25519 stanza of another shape")
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(share))
            wrap_key = _hkdf(shared, share + private.public_key().public_bytes_raw(), X25519_INFO)
            file_key = ChaCha20Poly1305(wrap_key).decrypt(bytes(12), body, None)
        except (InvalidTag, ValueError):
            continue
        if not hmac.compare_digest(mac, _mac(file_key, header)):
            raise NotOpened("the MAC of the age header is wrong")
        try:
            return ChaCha20Poly1305(_hkdf(file_key, payload[:16], b"payload")).decrypt(ONLY_CHUNK, payload[16:], None)
        except (InvalidTag, ValueError) as error:
            raise NotOpened("the payload of the age file does not open") from error
    raise NotOpened("no stanza of the age file opens with this identity")


def encrypt(recipient: str, plaintext: bytes) -> bytes:
    """A binary age file for one recipient."""
    public = _bech32_decode("age", recipient)
    ephemeral = X25519PrivateKey.generate()
    share = ephemeral.public_key().public_bytes_raw()
    file_key, nonce = os.urandom(16), os.urandom(16)
    wrap_key = _hkdf(ephemeral.exchange(X25519PublicKey.from_public_bytes(public)), share + public, X25519_INFO)
    body = ChaCha20Poly1305(wrap_key).encrypt(bytes(12), file_key, None)
    header = b"\n".join([VERSION, b"-> X25519 " + _base64(share), _base64(body), b"---"])
    chunk = ChaCha20Poly1305(_hkdf(file_key, nonce, b"payload")).encrypt(ONLY_CHUNK, plaintext, None)
    return header + b" " + _base64(_mac(file_key, header)) + b"\n" + nonce + chunk


def _parse(file: bytes) -> tuple[list[tuple[list[bytes], bytes]], bytes, bytes, bytes]:
    """Stanzas (arguments and body), the header under the MAC, the MAC, and what follows the header."""
    position = 0

    def line() -> bytes:
        nonlocal position
        end = file.find(b"\n", position)
        if end < 0:
            raise NotOpened("the age header has no end")
        text, position = file[position:end], end + 1
        return text

    if line() != VERSION:
        raise NotOpened("not an age v1 file in binary form")
    stanzas: list[tuple[list[bytes], bytes]] = []
    while True:
        start = position
        text = line()
        if text.startswith(b"--- "):
            mac = _base64_decode(text[4:])
            return stanzas, file[: start + 3], mac, file[position:]
        if not text.startswith(b"-> "):
            raise NotOpened("the age header has a line that is no stanza")
        arguments = text[3:].split(b" ")
        if not all(argument and all(33 <= byte <= 126 for byte in argument) for argument in arguments):
            raise NotOpened("the age header has a stanza with a bad argument")
        body = b""
        while len(body_line := line()) == 64:
            body += body_line
        if len(body_line) > 64:
            raise NotOpened("the age header has a line that is too long")
        stanzas.append((arguments, _base64_decode(body + body_line)))


@cache
def _private_key(identity: str) -> X25519PrivateKey:
    if identity != identity.upper():
        raise NotOpened("an age identity is written in upper case")
    return X25519PrivateKey.from_private_bytes(_bech32_decode("age-secret-key-", identity.lower()))


def _hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(key)


def _mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_hkdf(file_key, b"", b"header"), header, hashlib.sha256)


def _base64(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _base64_decode(text: bytes) -> bytes:
    """Unpadded and canonical."""
    try:
        data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise NotOpened("the age header has bad base64") from error
    if _base64(data) != text:
        raise NotOpened("the age header has base64 in another spelling")
    return data


def _bech32_checksum(prefix: str, values: list[int]) -> int:
    checksum = 1
    expanded = [ord(letter) >> 5 for letter in prefix] + [0] + [ord(letter) & 31 for letter in prefix]
    for value in expanded + values:
        top = checksum >> 25
        checksum = (checksum & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            checksum ^= generator if top >> bit & 1 else 0
    return checksum


def _bech32_encode(prefix: str, data: bytes) -> str:
    bits = int.from_bytes(data, "big") << 4  # 32 bytes are 51 groups of five bits and one more bit
    values = [bits >> 5 * group & 31 for group in range(51, -1, -1)]
    checksum = _bech32_checksum(prefix, [*values, *[0] * 6]) ^ 1
    values += [checksum >> 5 * group & 31 for group in range(5, -1, -1)]
    return prefix + "1" + "".join(BECH32[value] for value in values)


def _bech32_decode(prefix: str, text: str) -> bytes:
    if not text.startswith(prefix + "1") or any(letter not in BECH32 for letter in text[len(prefix) + 1 :]):
        raise NotOpened(f"this is no Bech32 text that begins with {prefix}1")
    values = [BECH32.index(letter) for letter in text[len(prefix) + 1 :]]
    if len(values) != 58 or _bech32_checksum(prefix, values) != 1 or values[51] & 15:
        raise NotOpened(f"the {prefix}1 text has a wrong length or checksum")
    bits = 0
    for value in values[:52]:
        bits = bits << 5 | value
    return (bits >> 4).to_bytes(32, "big")

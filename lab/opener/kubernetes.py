"""What kube-apiserver puts around a ciphertext in etcd, and the Secret that it encrypts (KEP-3299)."""

from __future__ import annotations

import base64
import json

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from reader import Reader, Request
from record import Refused, require
from wire import Malformed, Message

PREFIX = b"k8s:enc:kms:v2:"
PROTOBUF = b"k8s\0"
KEY, SEED = 0, 1


def open_value(reader: Reader, path: str, value: bytes) -> bytes:
    """The object in a value read from etcd, as kube-apiserver stores it when it does not encrypt."""
    require(value.startswith(PREFIX), f"the value does not begin with {PREFIX.decode()}")
    _, separator, encoded = value[len(PREFIX) :].partition(b":")
    require(separator, "the value has no provider name")
    try:
        message = Message(encoded)
        request = Request(message.blob(2), tuple(message.entries(4)), message.blob(3))
        data, kind = message.blob(1), message.number(5)
    except Malformed as error:
        hint = "; etcdctl adds a newline" if value.endswith(b"\n") else ""
        raise Refused(f"the EncryptedObject: {error}{hint}") from error
    source, _ = reader.open(request)
    require(kind in (KEY, SEED), f"an encryptedDEKSourceType of {kind}")
    dek = source
    if kind == SEED:
        dek = HKDFExpand(algorithm=SHA256(), length=32, info=data[:32]).derive(source)
        data = data[32:]
    require(len(data) >= 28, "encryptedData is too short")
    try:
        return AESGCM(dek).decrypt(data[:12], data[12:], path.encode())
    except (InvalidTag, ValueError) as error:
        raise Refused(f"the DEK does not open the object; is {path} its key in etcd?") from error


def secret_data(stored: bytes, name: str) -> bytes:
    """One data entry of a stored Secret, which is protobuf or JSON."""
    data: dict[str, bytes]
    if not stored.startswith(PROTOBUF):
        data = {key: base64.b64decode(text) for key, text in (json.loads(stored).get("data") or {}).items()}
    else:
        try:
            unknown = Message(stored[len(PROTOBUF) :])  # 1 = typeMeta (1 = apiVersion, 2 = kind), 2 = raw
            kind = Message(unknown.blob(1)).text(2)
            require(kind == "Secret", f"the object is a {kind}, not a Secret")
            data = dict(Message(unknown.blob(2)).entries(2))  # 1 = metadata, 2 = data
        except Malformed as error:
            raise Refused(f"the stored object: {error}") from error
    require(name in data, f"the Secret has no {name}; it has: {', '.join(sorted(data))}")
    return data[name]

#!/usr/bin/env python3
"""Writes the seeds of `record` and `ciphertext` from the vectors, and those of `authority`, `token_frame` and `transit`.
With --check it writes nothing, and fails if one of them is another one than it would write."""
import base64, json, pathlib, sys

fuzz = pathlib.Path(__file__).resolve().parent
check, drifted = sys.argv[1:] == ["--check"], []


def seed(target, name, content):
    path = fuzz / "corpus" / target / name
    if check:
        if not path.is_file() or path.read_bytes() != content:
            drifted.append(str(path.relative_to(fuzz.parent)))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


for path in sorted((fuzz.parent / "vectors/v1").glob("*.json")):
    vector = json.loads(path.read_text())
    annotation, ciphertext = bytes.fromhex(vector["annotation"]), bytes.fromhex(vector["ciphertext"])
    key_id = vector["key_id"].encode()
    request = bytes([len(key_id)]) + key_id + len(annotation).to_bytes(2, "big") + annotation + ciphertext
    seed("record", path.stem, annotation)
    seed("ciphertext", path.stem, request)


def frame(kind, flags, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 1]) + payload


# A call's start as Go writes it, "%2Frun%2Fkms.sock" in its Huffman code and in plain; then by entries of the table;
# padded with a priority; in two frames.
CODED = bytes.fromhex("8386418d54586cb6a54587ad285d07275f")
PLAIN = bytes.fromhex("83864111") + b"%2Frun%2Fkms.sock"
NAMED = bytes.fromhex("400a") + b":authority" + bytes.fromhex("022540")
AUTHORITY = {
    "coded": frame(4, 0, b"") + frame(1, 4, CODED) + frame(0, 1, b"\0\0\0\0\0") + frame(1, 5, bytes.fromhex("8386be")),
    "plain": frame(1, 4, PLAIN),
    "padded": frame(1, 0x2c, b"\2" + bytes(5) + NAMED + bytes(2)),
    "split": frame(1, 0, CODED[:6]) + frame(9, 0, b"") + frame(9, 4, CODED[6:]),
}
for name, frames in AUTHORITY.items():
    seed("authority", name, b"\7" + frames)


def told(header, payload=b""):
    header = json.dumps(header, separators=(",", ":")).encode()
    return (4 + len(header) + len(payload)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + payload


KEY = "00112233445566778899aabbccddeeff"
ASKED = [
    {"Observe": {"wrapping": "AesGcm", "keys": [KEY], "writes": {"Pinned": KEY}}},
    {"Versions": {"wrapping": "AesKwp", "keys": [KEY]}},
    {"Wrap": {"wrapping": "AesGcm", "key": KEY, "associated": [1, 2]}},
    {"Sign": {"key": KEY, "signing": "EcdsaP256"}},
    {"Unwrap": {"wrapping": "RsaOaep", "key": KEY, "associated": [], "thorough": True}},
]
CAME = [
    "Done",
    {"Writes": {"key": KEY, "absent": [KEY]}},
    {"Versions": [{"version": KEY, "labels": ["a"], "current": False, "disabled": None}]},
    {"Failed": {"class": "Refused", "what": "a", "remedy": "b", "missing": KEY}},
]
LEFT = {"said": ["a"], "spent": "b", "doubted": False}
TOLD = {
    "asked": b"".join(told({"number": number, "ask": ask}, b"bytes") for number, ask in enumerate(ASKED)),
    "answered": b"".join(told({"number": number, "outcome": came, **LEFT}, b"bytes") for number, came in enumerate(CAME)),
}
for name, frames in TOLD.items():
    seed("token_frame", name, frames)


# What is answered, the status, and the body: as the target numbers them.
DESCRIPTION = {
    "name": "casemate", "type": "aes256-gcm96", "latest_version": 2, "keys": {"1": 1700000000, "2": "2023-11-14T22:13:20Z"},
    "min_decryption_version": 1, "min_encryption_version": 0, "derived": False, "soft_deleted": False,
    "supports_encryption": True, "supports_decryption": True,
}
RSA = {**DESCRIPTION, "type": "rsa-2048", "keys": {"2": {"creation_time": "2023-11-14T22:13:20Z", "public_key": "x"}}}
SEALED = "vault:v2:" + base64.b64encode(bytes(92)).decode()
TRANSIT = {
    "key": (0, 0, {"data": DESCRIPTION}),
    "key-of-another-kind": (0, 0, {"data": RSA}),
    "encrypt": (1, 0, {"data": {"ciphertext": SEALED, "key_version": 2}}),
    "decrypt": (2, 0, {"data": {"plaintext": base64.b64encode(bytes(64)).decode()}}),
    "login": (3, 0, {"auth": {"client_token": "t", "lease_duration": 3600, "renewable": True}}),
    "login-refused": (3, 3, {"errors": ["invalid role or secret ID"]}),
    "look-up": (4, 0, {"data": {"ttl": 3600, "renewable": True, "expire_time": "2023-11-14T22:13:20Z"}}),
    "throttled": (1, 6, {"errors": ["request path: rate limit quota exceeded"]}),
}
for name, (asked, status, body) in TRANSIT.items():
    seed("transit", name, bytes([asked, status]) + json.dumps(body).encode())

if drifted:
    sys.exit(f"fuzz/seeds.py would write otherwise, run it: {', '.join(drifted)}")

"""Casemate's key file, as docs/reference/key-file.md describes it.

The standard library has no YAML, so this reads the layout that Casemate writes, line by line, and no other YAML.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from keys import RootKey
from record import ALGORITHMS, Refused, Root, kdf, require, sha256

TRAILER = re.compile(rb"checksum: sha256:([0-9a-f]{64})\n")
TRAILER_SIZE = len("checksum: sha256:") + 64 + 1
LINE = re.compile(r"(?P<indent>|  - |    )(?P<name>[A-Za-z]+):(?: (?P<value>\S.*))?")
TOP_FIELDS = {"apiVersion", "id", "comment", "active", "versions"}
VERSION_FIELDS = {"number", "staged", "activated", "retired", "check", "secret"}


def read_key_file(content: bytes) -> list[RootKey]:
    """The root keys of all versions that still have a secret."""
    top, versions = _parse(_body(content))
    require(top.get("apiVersion") == "casemate.dev/file-key/v1", "key file: another apiVersion")
    require(re.fullmatch(r"[0-9a-f]{32}", top.get("id", "")), "key file: the form of id")
    numbers = [version.get("number") for version in versions]
    require(numbers == [str(index + 1) for index in range(len(numbers))], "key file: the numbers of the versions")
    require(1 <= len(versions) <= 256, f"key file: {len(versions)} versions")
    active = next((version for version in versions if version["number"] == top.get("active")), {})
    require("secret" in active and "activated" in active, "key file: the active version has no secret or did not start")
    keys = []
    for version in versions:
        name = f"key file: version {version['number']}"
        require("staged" in version and "check" in version, f"{name}: a field is missing")
        require(("secret" in version) != ("retired" in version), f"{name}: a secret, or retired")
        require("activated" not in version or int(version["number"]) <= int(top["active"]), f"{name}: activated")
        if "secret" not in version:
            continue
        try:
            secret = base64.b64decode(version["secret"], validate=True)
        except binascii.Error as error:
            raise Refused(f"{name}: the base64 of the secret") from error
        check = kdf(secret, "root-id", b"")[:8].hex()
        require(len(secret) == 32 and check == version["check"], f"{name}: the check digits are not of this secret")
        lineage = f"file:{top['id']}/{version['number']}/{check}"
        keys.append(RootKey(Root(lineage, ALGORITHMS["file-aes256-gcm"]), secret))
    return keys


def _body(content: bytes) -> str:
    require(content, "key file: emptied")
    require(len(content) <= 65536, f"key file: {len(content)} bytes")
    body, trailer = content[:-TRAILER_SIZE], TRAILER.fullmatch(content[-TRAILER_SIZE:])
    if trailer is None or not body.endswith(b"\n"):
        raise Refused("key file: truncated")
    require(trailer[1].decode() == sha256(body).hex(), "key file: changed")
    return body.decode("utf-8")


def _parse(body: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The fields of the file and those of each version, without quotes."""
    top: dict[str, str] = {}
    versions: list[dict[str, str]] = []
    for number, text in enumerate(body.splitlines(), 1):
        if text.startswith("#"):
            continue
        line = LINE.fullmatch(text)
        if line is None:
            raise Refused(f"key file: line {number} has a form that Casemate does not write")
        if line["indent"] == "  - ":
            versions.append({})
        fields, known = (versions[-1], VERSION_FIELDS) if line["indent"] and versions else (top, TOP_FIELDS)
        require(line["name"] in known and line["name"] not in fields, f"key file: line {number}: {line['name']}")
        value = line["value"] or ""
        fields[line["name"]] = json.loads(value) if value.startswith('"') else value
    return top, versions

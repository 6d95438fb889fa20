#!/usr/bin/env python3
"""Opens what Casemate wrote, without any code of Casemate.

This program was written from the pages docs/reference/formats.md and key-file.md alone (and from the standards which
they cite: protobuf, AES-GCM, AES key wrap, RSAES-OAEP, ECDSA, RSASSA-PSS, HKDF, age v1). So it shows that the pages
are enough, and that the formats are what they say rather than what one program happens to do. It opens the committed
vectors and a value of a real etcd, and it makes records which the program in Rust must open. It is also what a person
can read, or run from a laptop, who has the keys but no Casemate.

    casemate_open.py vector FILE...                     open vectors by each of their keys
    casemate_open.py flip FILE...                       every flipped bit and every other spelling is refused
    casemate_open.py etcd --key PATH --value FILE ...   open a value read from etcd
    casemate_open.py make --keys FILE ...               make a vector

The modules beside it: wire (protobuf), record (names, record, ciphertext), keys (wraps), key_file, age (recovery
wraps), reader (the checks in their order), kubernetes (what is around it in etcd), vector and flip. Needs Python 3.11
and the package `cryptography`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip import flip
from key_file import read_key_file
from kubernetes import open_value, secret_data
from record import Refused
from vector import KeyRing, Vector, make


def main() -> int:
    arguments = _arguments()
    try:
        match arguments.command:
            case "vector":
                return _all(_open_vector, arguments.files)
            case "flip":
                return _all(_flip_vector, arguments.files)
            case "etcd":
                return _open_etcd_value(arguments)
            case _:
                return _make(arguments)
    except (Refused, OSError, ValueError, KeyError) as error:
        print(f"casemate_open: {error}", file=sys.stderr)
        return 1


def _open_vector(path: Path) -> bool:
    vector = Vector.read(path)
    ways = vector.ways()
    for name, reader in ways:
        dek_source, local_kek = reader.open(vector.request)
        if dek_source != vector.dek_source or local_kek != vector.local_kek:
            raise Refused(f"{name} opens it to something else than the vector says")
    if not ways:
        raise Refused("it has no key that its record names")
    print(f"{path.name}: opened by {', '.join(name for name, _ in ways)}")
    return True


def _flip_vector(path: Path) -> bool:
    tally = flip(Vector.read(path))
    print(
        f"{path.name}: {tally.ways} keys, {tally.flips} flipped bits, {tally.spellings} other spellings, "
        f"{tally.controls} controls, {len(tally.faults)} faults"
    )
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return not tally.faults


def _all(check: Callable[[Path], bool], paths: list[Path]) -> int:
    """Checks all files even if one fails."""
    good = True
    for path in paths:
        try:
            good &= check(path)
        except (Refused, OSError, KeyError, ValueError) as error:
            print(f"{path.name}: FAILED: {error}")
            good = False
    return 0 if good else 1


def _open_etcd_value(arguments: argparse.Namespace) -> int:
    document = json.loads(arguments.keys.read_text(encoding="utf-8")) if arguments.keys else {}
    reader = KeyRing.from_json(document).reader(_cluster_id(arguments, document))
    for path in arguments.key_file:
        reader = replace(reader, roots=(*reader.roots, *read_key_file(path.read_bytes())))
    stored = open_value(reader, arguments.key, arguments.value.read_bytes())
    sys.stdout.buffer.write(secret_data(stored, arguments.secret) if arguments.secret else stored)
    return 0


def _make(arguments: argparse.Namespace) -> int:
    document = json.loads(arguments.keys.read_text(encoding="utf-8"))
    source = bytes.fromhex(arguments.dek_source)
    cluster_id = _cluster_id(arguments, document)
    vector = make(document, cluster_id, arguments.epoch, int(time.time()), source, arguments.recipient)
    print(json.dumps(vector, indent=2))
    return 0


def _cluster_id(arguments: argparse.Namespace, document: dict[str, Any]) -> str:
    cluster_id = arguments.cluster_id or document.get("cluster_id")
    if not cluster_id:
        raise Refused("say whose data it is: --cluster-id, or cluster_id in KEYS.json")
    return str(cluster_id)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Opens what Casemate wrote, without any code of Casemate.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("vector", "open vectors by each of their keys"), ("flip", "show that changes are refused")):
        command = commands.add_parser(name, help=what)
        command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    etcd = commands.add_parser("etcd", help="open a value read from etcd; writes the stored object, or one data entry")
    etcd.add_argument("--key", required=True, help="the key in etcd, such as /registry/secrets/default/demo")
    etcd.add_argument("--value", required=True, type=Path, help="file with the raw value")
    etcd.add_argument("--keys", type=Path, help="KEYS.json: cluster_id, keys, recovery, signer")
    etcd.add_argument("--key-file", action="append", default=[], type=Path, help="a key file of Casemate")
    etcd.add_argument("--cluster-id", help="instead of the one in KEYS.json")
    etcd.add_argument("--secret", metavar="NAME", help="write only this data entry of the Secret")
    maker = commands.add_parser("make", help="make a record and a ciphertext, and print them as a vector")
    maker.add_argument("--keys", required=True, type=Path, help="KEYS.json: keys, recovery, signer")
    maker.add_argument("--cluster-id", help="instead of the one in KEYS.json")
    maker.add_argument("--epoch", type=int, default=0)
    maker.add_argument("--dek-source", required=True, metavar="HEX", help="16 to 512 bytes")
    maker.add_argument("--recipient", action="append", default=[], metavar="age1…", help="one more recovery recipient")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

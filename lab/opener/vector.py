"""A vector: one ciphertext with its record, and all keys that open it. Also how one is made."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keys import RecoveryKey, RootKey, Signer
from reader import Reader, Request
from record import ANNOTATION, Core, Record, kek_id, require, seal_dek_source, sha256


@dataclass(frozen=True)
class KeyRing:
    """The keys of a JSON object with "keys", "recovery" and "signer"."""

    roots: tuple[RootKey, ...]
    recovery: tuple[RecoveryKey, ...]
    signer: Signer | None

    @staticmethod
    def from_json(document: dict[str, Any]) -> KeyRing:
        signer = document.get("signer")
        return KeyRing(
            roots=tuple(key for entry in document.get("keys", []) if (key := RootKey.from_json(entry))),
            recovery=tuple(RecoveryKey.from_json(entry) for entry in document.get("recovery", [])),
            signer=Signer.from_json(signer) if signer else None,
        )

    def reader(self, cluster_id: str) -> Reader:
        return Reader(cluster_id, self.roots, self.recovery, (self.signer,) if self.signer else ())

    def wrap(self, encoded_core: bytes, core: Core, local_kek: bytes, previous: Record | None = None) -> Record:
        """A record around a core, which may be encoded in any way. What has no key here stays as it was before."""
        payload = local_kek + sha256(encoded_core)
        roots = {key.root: key for key in self.roots}
        recovery = {key.fingerprint: key for key in self.recovery}
        wraps = [
            roots[root].wrap(payload) if root in roots or previous is None else previous.wraps[index]
            for index, root in enumerate(core.roots)
        ]
        recovery_wraps = [
            recovery[name].wrap(payload) if name in recovery or previous is None else previous.recovery_wraps[index]
            for index, name in enumerate(core.recipients)
        ]
        record = Record(encoded_core, tuple(wraps), tuple(recovery_wraps), b"")
        if self.signer and self.signer.private_key and core.signer:
            return replace(record, origin_signature=self.signer.sign(record))
        return replace(record, origin_signature=previous.origin_signature if previous else b"")


@dataclass(frozen=True)
class Vector:
    """One committed example, parsed."""

    name: str
    cluster_id: str
    request: Request
    dek_source: bytes
    local_kek: bytes
    ring: KeyRing

    @staticmethod
    def read(path: Path) -> Vector:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Vector(
            name=path.name,
            cluster_id=document["cluster_id"],
            request=Request(
                key_id=document["key_id"].encode(),
                annotations=((ANNOTATION, bytes.fromhex(document["annotation"])),),
                ciphertext=bytes.fromhex(document["ciphertext"]),
            ),
            dek_source=bytes.fromhex(document["dek_source"]),
            local_kek=bytes.fromhex(document["local_kek"]),
            ring=KeyRing.from_json(document),
        )

    @property
    def annotation(self) -> bytes:
        return self.request.annotations[0][1]

    def ways(self) -> list[tuple[str, Reader]]:
        """A reader for each key alone that the record has a wrap for."""
        _, core = Record.decode(self.annotation)
        whole = self.ring.reader(self.cluster_id)
        roots = [
            (key.root.lineage, replace(whole, roots=(key,), recovery=()))
            for key in self.ring.roots
            if key.root in core.roots
        ]
        recovery = [
            (key.recipient, replace(whole, roots=(), recovery=(key,)))
            for key in self.ring.recovery
            if key.identity and key.fingerprint in core.recipients
        ]
        return roots + recovery


def make(
    document: dict[str, Any], cluster_id: str, epoch: int, created: int, dek_source: bytes, recipients: list[str]
) -> dict[str, Any]:
    """A fresh vector under the keys of a KEYS.json, as JSON; recipients are added to those that stand there."""
    require(16 <= len(dek_source) <= 512, f"a DEK source of {len(dek_source)} bytes")
    known = [entry["recipient"] for entry in document.get("recovery", [])]
    added = [{"recipient": recipient} for recipient in recipients if recipient not in known]
    ring = KeyRing.from_json({**document, "recovery": document.get("recovery", []) + added})
    local_kek = os.urandom(32)
    core = Core(
        cluster_id=cluster_id,
        epoch=epoch,
        roots=tuple(sorted((key.root for key in ring.roots), key=lambda root: root.as_list())),
        recipients=tuple(sorted(key.fingerprint for key in ring.recovery)),
        kek_id=kek_id(local_kek),
        created=created,
        writer="casemate-opener/1",
        signer=ring.signer.lineage if ring.signer else "",
    )
    annotation = ring.wrap(core.encode(), core, local_kek).encode()
    Record.decode(annotation)  # refuses here what any reader would refuse
    keys = []
    for entry in document.get("keys", []):
        key = next((key for key in ring.roots if key.root.lineage == entry["lineage"]), None)
        payload = {"payload": next(reversed(key.answers.values())).hex()} if key and key.answers else {}
        keys.append({**entry, **payload})
    return {
        "description": document.get("description", "made by the independent opener"),
        "cluster_id": cluster_id,
        "key_id": core.key_id(),
        "annotation": annotation.hex(),
        "ciphertext": seal_dek_source(local_kek, annotation, dek_source).hex(),
        "dek_source": dek_source.hex(),
        "local_kek": local_kek.hex(),
        "keys": keys,
        "recovery": [entry for entry in document.get("recovery", []) if entry.get("identity")],
        "signer": document.get("signer"),
    }

"""What a reader checks, in the order of formats.md."""

from __future__ import annotations

from dataclasses import dataclass

from keys import RecoveryKey, RootKey, Signer, local_kek_of
from record import ANNOTATION, Core, Record, Refused, open_dek_source, require


@dataclass(frozen=True)
class Request:
    """What kube-apiserver hands over, and what it keeps in etcd beside an object."""

    key_id: bytes
    annotations: tuple[tuple[str, bytes], ...]
    ciphertext: bytes


@dataclass(frozen=True)
class Checked:
    """A request that passed steps 1 to 4, for which no key was needed."""

    request: Request
    annotation: bytes
    record: Record
    core: Core


@dataclass(frozen=True)
class Reader:
    """What one reader is configured with."""

    cluster_id: str
    roots: tuple[RootKey, ...] = ()
    recovery: tuple[RecoveryKey, ...] = ()
    signers: tuple[Signer, ...] = ()

    def open(self, request: Request, canonical: bool = True) -> tuple[bytes, bytes]:
        """The DEK source, and the local KEK that it was under."""
        return self.open_checked(self.check(request, canonical))

    def check(self, request: Request, canonical: bool = True) -> Checked:
        """Steps 1 to 4."""
        require([name for name, _ in request.annotations] == [ANNOTATION], f"not exactly the annotation {ANNOTATION}")
        annotation = request.annotations[0][1]
        record, core = Record.decode(annotation, canonical)
        require(core.cluster_id == self.cluster_id, f"a record of cluster {core.cluster_id}")
        require(core.key_id().encode() == request.key_id, f"the key id: by its record it is {core.key_id()}")
        require(16 <= len(request.ciphertext) - 61 <= 512, f"a ciphertext of {len(request.ciphertext)} bytes")
        require(request.ciphertext[0] == core.suite, "the suite of the ciphertext")
        return Checked(request, annotation, record, core)

    def open_checked(self, checked: Checked) -> tuple[bytes, bytes]:
        """Steps 5 to 7."""
        local_kek = self._unwrap(checked.record, checked.core)
        return open_dek_source(local_kek, checked.annotation, checked.request.ciphertext), local_kek

    def _unwrap(self, record: Record, core: Core) -> bytes:
        digest, reasons = record.digest(), []
        for root, wrap in zip(core.roots, record.wraps, strict=True):
            for key in self.roots:
                if key.root != root:
                    continue
                try:
                    require(not key.asymmetric or self._origin_is_proven(record, core), "the origin is not proven")
                    return local_kek_of(key.unwrap(wrap, digest), digest, core.kek_id)
                except Refused as error:
                    reasons.append(str(error))
        for recipient, wrap in zip(core.recipients, record.recovery_wraps, strict=True):
            for identity in self.recovery:
                if identity.fingerprint != recipient or identity.identity is None:
                    continue
                try:
                    return local_kek_of(identity.unwrap(wrap), digest, core.kek_id)
                except Refused as error:
                    reasons.append(str(error))
        raise Refused("; ".join(reasons) or "no wrap is for a key of this reader")

    def _origin_is_proven(self, record: Record, core: Core) -> bool:
        return any(signer.lineage == core.signer and signer.proves(record) for signer in self.signers)

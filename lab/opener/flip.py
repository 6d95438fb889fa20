"""Every flipped bit, and every other spelling of a record, must be refused.

A test that only sees refusals proves little: a broken change may be refused for another reason than the rule it was
meant for. So a core in another spelling is also wrapped, signed, named and sealed anew, and a control shows that it
opens as soon as the canonical rule, and only that, is switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from reader import Reader, Request
from record import ANNOTATION, Core, Record, Refused, seal_dek_source
from vector import Vector
from wire import BYTES, Field, bytes_field, number_field, split_fields, varint

# Scalars by their numbers, and whether they are numbers (wire type 0) rather than bytes.
RECORD_SCALARS = {1: False, 4: False}
CORE_SCALARS = {1: True, 2: False, 3: True, 6: False, 7: True, 8: False, 9: False}
ROOT_SCALARS = {1: False, 2: True}
# In a core these numbers may be 0, so they can be spelled out as 0.
CORE_ZEROS = (3, 7)
ROOTS = 4


@dataclass
class Tally:
    """What was tried on one vector, and what went wrong."""

    ways: int = 0
    flips: int = 0
    spellings: int = 0
    controls: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Spelling:
    """Another encoding of a message; `decodable` if a protobuf library would take it for the same kind of message."""

    name: str
    encoded: bytes
    decodable: bool = True


def flip(vector: Vector) -> Tally:
    """Tries everything on one vector, through each of its keys."""
    tally = Tally()
    ways = vector.ways()
    tally.ways = len(ways)
    if not ways:
        tally.faults.append("no key here opens this vector, so nothing can be shown")
    for name, reader in ways:
        if _refusal(reader, vector.request) is not None:
            tally.faults.append(f"{name} does not even open the vector itself")
        if _refusal(replace(reader, cluster_id="other"), vector.request) is None:
            tally.faults.append(f"{name} opens it for another cluster")
        asymmetric = any(key.asymmetric for key in reader.roots)
        if asymmetric and _refusal(replace(reader, signers=()), vector.request) is None:
            tally.faults.append(f"{name} opens it without a proof of its origin")
    for what, request in _flips(vector.request):
        tally.flips += 1
        _expect_refusal(tally, ways, request, what)
    for what, given in _annotations(vector):
        tally.spellings += 1
        _expect_refusal(tally, ways, replace(vector.request, annotations=given), what)
    for spelling in _spellings(vector.annotation, RECORD_SCALARS):
        _expect_canonical(tally, ways, spelling, _resealed(vector, spelling.encoded, vector.request.key_id))
    _try_cores(tally, ways, vector)
    return tally


def _try_cores(tally: Tally, ways: list[tuple[str, Reader]], vector: Vector) -> None:
    record, core = Record.decode(vector.annotation)
    for spelling in _core_spellings(record.core):
        in_place = replace(record, core=spelling.encoded)
        tally.spellings += 1
        _expect_refusal(tally, ways, _resealed(vector, in_place.encode(), vector.request.key_id), spelling.name)
        if not spelling.decodable:
            continue
        spelled = Core.decode(spelling.encoded, canonical=False)
        remade = vector.ring.wrap(spelling.encoded, spelled, vector.local_kek, record)
        signed = not core.signer or remade.origin_signature != record.origin_signature
        able = [way for way in ways if signed or not any(key.asymmetric for key in way[1].roots)]
        request = _resealed(vector, remade.encode(), spelled.key_id().encode())
        _expect_canonical(tally, able, replace(spelling, name=f"{spelling.name}, wrapped anew"), request)


def _expect_canonical(tally: Tally, ways: list[tuple[str, Reader]], spelling: Spelling, request: Request) -> None:
    """Refused, and if it can be decoded at all, refused by the canonical rule alone."""
    tally.spellings += 1
    _expect_refusal(tally, ways, request, spelling.name)
    for name, reader in ways if spelling.decodable else ():
        tally.controls += 1
        refusal = _refusal(reader, request, canonical=False)
        if refusal is not None:
            tally.faults.append(f"{spelling.name}: not the canonical rule but this refuses it: {name}: {refusal}")


def _expect_refusal(tally: Tally, ways: list[tuple[str, Reader]], request: Request, what: str) -> None:
    if not ways:
        return
    try:
        checked = ways[0][1].check(request)  # the same for all: it needs no key
    except Refused:
        return
    for name, reader in ways:
        try:
            reader.open_checked(checked)
        except Refused:
            continue
        tally.faults.append(f"accepted through {name}: {what}")


def _refusal(reader: Reader, request: Request, canonical: bool = True) -> str | None:
    try:
        reader.open(request, canonical)
    except Refused as refused:
        return str(refused)
    return None


def _flips(request: Request) -> Iterator[tuple[str, Request]]:
    for what, flipped in _bits("ciphertext", request.ciphertext):
        yield what, replace(request, ciphertext=flipped)
    for what, flipped in _bits("key id", request.key_id):
        yield what, replace(request, key_id=flipped)
    for what, flipped in _bits("annotation", request.annotations[0][1]):
        yield what, replace(request, annotations=((ANNOTATION, flipped),))


def _bits(what: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit % 8} of byte {bit // 8} of the {what}", bytes(flipped)


def _annotations(vector: Vector) -> Iterator[tuple[str, tuple[tuple[str, bytes], ...]]]:
    good = vector.request.annotations
    yield "no annotation", ()
    yield "the annotation under another name", (("Record.casemate.dev", vector.annotation),)
    yield "the annotation twice", good * 2
    yield "one more annotation", (*good, ("other.casemate.dev", b""))


def _resealed(vector: Vector, annotation: bytes, key_id: bytes) -> Request:
    """The DEK source sealed again, so that the changed annotation is the one that the ciphertext binds."""
    ciphertext = seal_dek_source(vector.local_kek, annotation, vector.dek_source)
    return Request(key_id, ((ANNOTATION, annotation),), ciphertext)


def _core_spellings(core: bytes) -> Iterator[Spelling]:
    yield from _spellings(core, CORE_SCALARS, "core")
    fields = split_fields(core)
    for number in CORE_ZEROS:
        before = b"".join(one.encoded for one in fields if one.number < number)
        after = b"".join(one.encoded for one in fields if one.number > number)
        yield Spelling(f"core: field {number} is 0 and is spelled out", before + number_field(number, 0) + after)
    for index, one in enumerate(fields):
        if one.number != ROOTS or not isinstance(one.value, bytes):
            continue
        for spelling in _spellings(one.value, ROOT_SCALARS, "root"):
            encoded = _with(fields, index, bytes_field(ROOTS, spelling.encoded))
            yield replace(spelling, name=f"core: {spelling.name}", encoded=encoded)


def _spellings(message: bytes, scalars: dict[int, bool], what: str = "record") -> Iterator[Spelling]:
    fields = split_fields(message)
    yield Spelling(f"{what}: unknown number appended", message + number_field(15, 1))
    yield Spelling(f"{what}: unknown bytes appended", message + bytes_field(16, b"?"))
    yield Spelling(f"{what}: unknown number in front", number_field(15, 1) + message)
    for garbage in (b"\0", b"\x08", b"\xff", b"\x12\x01"):
        yield Spelling(f"{what}: {garbage.hex()} appended", message + garbage, decodable=False)
    yield Spelling(f"{what}: last byte cut off", message[:-1], decodable=False)
    for index, one in enumerate(fields):
        at = f"{what}: field {one.number} (part {index})"
        for name, padded in _padded(one):
            yield Spelling(f"{at}: {name}", _with(fields, index, padded))
        if index and fields[index - 1].number != one.number:
            swapped = [*fields[: index - 1], one, fields[index - 1], *fields[index + 1 :]]
            yield Spelling(f"{at}: before the one before it", b"".join(each.encoded for each in swapped))
        if one.number in scalars:
            yield Spelling(f"{at}: doubled", _with(fields, index, one.encoded * 2))
            yield Spelling(f"{at}: after a default", _with(fields, index, _default(one.number, scalars) + one.encoded))
    for number in scalars.keys() - {one.number for one in fields}:
        before = b"".join(one.encoded for one in fields if one.number < number)
        after = b"".join(one.encoded for one in fields if one.number > number)
        yield Spelling(f"{what}: field {number} as default", before + _default(number, scalars) + after)


def _padded(one: Field) -> Iterator[tuple[str, bytes]]:
    """The same field with its tag, its length or its number in a longer varint than needed."""
    tag = varint(one.number << 3 | one.wire_type)
    rest = one.encoded[len(tag) :]
    yield "long tag", _long(tag) + rest
    if one.wire_type == BYTES and isinstance(one.value, bytes):
        yield "long length", tag + _long(varint(len(one.value))) + one.value
    else:
        yield "long number", tag + _long(rest)
        if len(rest) < 10:
            yield "number of ten bytes", tag + _long(rest, 10)


def _long(number: bytes, size: int | None = None) -> bytes:
    padding = (size or len(number) + 1) - len(number)
    return number[:-1] + bytes([number[-1] | 0x80]) + b"\x80" * (padding - 1) + b"\0"


def _default(number: int, scalars: dict[int, bool]) -> bytes:
    return number_field(number, 0) if scalars[number] else bytes_field(number, b"")


def _with(fields: list[Field], index: int, encoded: bytes) -> bytes:
    return b"".join(encoded if position == index else one.encoded for position, one in enumerate(fields))

"""The protobuf wire format, by hand: enough for Casemate's record and for what kube-apiserver stores."""

from __future__ import annotations

from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """These bytes are not a protobuf message of the expected shape."""


@dataclass(frozen=True)
class Field:
    """One field as it stands in a message; `encoded` is its tag, length and value."""

    number: int
    wire_type: int
    value: int | bytes
    encoded: bytes


def split_fields(message: bytes) -> list[Field]:
    """Takes a message apart without knowing its schema."""
    fields: list[Field] = []
    position = 0
    while position < len(message):
        start = position
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise Malformed(f"field number {number} at byte {start}")
        value: int | bytes
        if wire_type == VARINT:
            value, position = _read_varint(message, position)
        else:
            if wire_type == BYTES:
                size, position = _read_varint(message, position)
            elif wire_type in (FIXED64, FIXED32):
                size = 8 if wire_type == FIXED64 else 4
            else:
                raise Malformed(f"wire type {wire_type} at byte {start}")
            if size > len(message) - position:
                raise Malformed(f"field {number} at byte {start} ends after the message")
            value = message[position : position + size]
            position += size
        fields.append(Field(number, wire_type, value, message[start:position]))
    return fields


class Message:
    """A decoded message: unknown fields are ignored and the last of a scalar wins, as in any protobuf library."""

    def __init__(self, message: bytes) -> None:
        self._fields = split_fields(message)

    def number(self, number: int) -> int:
        """A scalar number; 0 if it is absent."""
        values = [value for value in self._values(number, VARINT) if isinstance(value, int)]
        return values[-1] if values else 0

    def blob(self, number: int) -> bytes:
        """A scalar of bytes; empty if it is absent."""
        values = self.repeated(number)
        return values[-1] if values else b""

    def text(self, number: int) -> str:
        """A scalar string, in UTF-8."""
        try:
            return self.blob(number).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"field {number} is not UTF-8") from error

    def repeated(self, number: int) -> list[bytes]:
        """All elements of a repeated field of bytes."""
        return [value for value in self._values(number, BYTES) if isinstance(value, bytes)]

    def entries(self, number: int) -> list[tuple[str, bytes]]:
        """The entries of a map<string, bytes>, in their order; a key may stand twice."""
        maps = [Message(entry) for entry in self.repeated(number)]
        return [(entry.text(1), entry.blob(2)) for entry in maps]

    def _values(self, number: int, wire_type: int) -> list[int | bytes]:
        found = [field for field in self._fields if field.number == number]
        if any(field.wire_type != wire_type for field in found):
            raise Malformed(f"field {number} has another wire type than {wire_type}")
        return [field.value for field in found]


def varint(value: int) -> bytes:
    """The shortest encoding of a number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    """A field with a number, written even if it is 0."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with bytes, written even if it is empty."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise Malformed("the message ends inside a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise Malformed("a number has more than 64 bits")
            return value, position
    raise Malformed("a number has more than ten bytes")

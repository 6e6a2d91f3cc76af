"""The one strict codec: messages to msgpack and back. Unknown fields are ignored, missing or wrong ones refused."""

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from broker.errors import MessageError

MessageT = TypeVar("MessageT")

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A message as msgpack.

    Raises:
        MessageError: a field holds what cannot be sent.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"no {type(message).__name__} that can be sent: {error}") from error


def pack(values: Sequence[Any]) -> bytes:
    """Plain values as a list in msgpack, as the Lua commands take it: one argument instead of many."""
    return _encoder.encode(list(values))


def decode(kind: type[MessageT], data: bytes) -> MessageT:
    """Msgpack bytes as a message of this kind.

    Raises:
        MessageError: the bytes are not such a message; names the kind and the field's path.
    """
    try:
        return _decoder(kind).decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise MessageError(f"not a valid {kind.__name__}: {error}") from error


def from_fields(kind: type[MessageT], fields: dict[bytes, bytes]) -> MessageT:
    """A Redis hash as a message; every value is text and is converted to its field's type.

    Raises:
        MessageError: a field is missing or does not convert.
    """
    try:
        return msgspec.convert({k.decode(): v.decode() for k, v in fields.items()}, kind, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise MessageError(f"not a valid {kind.__name__}: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)

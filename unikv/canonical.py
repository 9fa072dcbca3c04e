"""Canonical: one JSON text for one value (RFC 8785, no floats, no null). It knows no field."""

import json
import unicodedata
from typing import NoReturn, TypeAlias

import rfc8785
from blake3 import blake3

from unikv.errors import FormatError, SpecError

Json: TypeAlias = bool | int | str | list["Json"] | dict[str, "Json"]
"""What a canonical text is made of: floats and null have more spellings than one, so none."""

DIGEST_BYTES = 16


def encode(value: Json) -> bytes:
    """Return the one text of ``value``: sorted keys, no spaces, UTF-8.

    Raises:
        SpecError: a text is no Unicode, or a number passes 2^53 - 1.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise SpecError(f"no canonical text: {error!s:.200}") from error


def decode(text: bytes) -> dict[str, Json]:
    """Return the object that ``text`` spells; whether it is in canonical form is not checked.

    Raises:
        FormatError: it is no JSON object in UTF-8, a key is there twice, it is nested too deep, or
            it holds a float or a null.
    """
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"text that is no JSON of ours: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise FormatError(f"text that is a JSON {type(value).__name__}: want an object")
    return value


def _unique(pairs: list[tuple[str, Json | None]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {name!r:.80} twice")
        if value is None:
            raise ValueError(f"key {name!r:.80} with null")
        found[name] = value
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"number {text:.80}: want whole numbers or texts")


def hash_text(text: bytes, context: str) -> str:
    """Return the first 16 bytes of BLAKE3 of ``text``, in derive-key mode, as 32 hex digits."""
    return blake3(text, derive_key_context=context).hexdigest(length=DIGEST_BYTES)


def read_label(name: str, value: object, *, empty: bool = True) -> str:
    """Return ``value`` in NFC, so that two spellings of one text are one label.

    Raises:
        SpecError: it is no text, holds a control character, or is empty where that is no choice.
    """
    if not isinstance(value, str):
        raise SpecError(f"{name} {value!r:.80}: want a text")
    if not (value or empty):
        raise SpecError(f"{name} '': want a text that is not empty")
    if any(unicodedata.category(mark) in ("Cc", "Cs") for mark in value):
        raise SpecError(f"{name} {value!r:.80}: want a text without control characters")
    return unicodedata.normalize("NFC", value)

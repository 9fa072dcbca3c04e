"""Tag: the 64-bit checksums of stored bytes, each seeded by its key and its place in the object.

It knows neither headers nor payloads.
"""

from collections.abc import Callable
from typing import NoReturn, TypeAlias

from blake3 import blake3
from xxhash import xxh3_64_intdigest

from unikv.errors import SpecError
from unikv.store import Buffer

Tag: TypeAlias = Callable[[Buffer, int], int]
"""Maps bytes and a seed (both below 2**64) to a tag."""

XXH3_64 = "xxh3_64"
BLAKE3_KEYED = "blake3_keyed"

TAG_NUMBERS: dict[str, int] = {XXH3_64: 0, BLAKE3_KEYED: 1}
"""Each tag algorithm and its number in bits 4..7 of the header's flags."""

SEED_MASK = 2**64 - 1

# Added to `key_seed`: slab i takes i itself, which stays below all of these.
PAYLOAD_SEED = 2**32
DESCRIPTION_SEED = 2**33
HEADER_SEED = 2**34

MIN_TAG_KEY_BYTES = 16
_KEY_CONTEXT = "unikv tag key v1"


def key_seed(key: str) -> int:
    """Return the number that all seeds of the object under ``key`` are counted from."""
    return xxh3_64_intdigest(key.encode())


def tag_function(name: str, tag_key: bytes | None = None) -> Tag:
    """Return the tag algorithm ``name``, keyed with ``tag_key`` where it takes a key.

    Format source: docs/format.md, "Tags and seeds".

    Raises:
        SpecError: the name is unknown, a key is missing or too short, or one was given to an
            algorithm that has none (its owner would think the store safe from forgers).
    """
    if name not in TAG_NUMBERS:
        raise SpecError(f"tags {name!r:.80}: want one of {', '.join(TAG_NUMBERS)}")
    if name == XXH3_64:
        if tag_key is not None:
            raise SpecError(
                f"a tag_key was given, but tags={name!r} takes none: want a namespace with "
                f"tags={BLAKE3_KEYED!r}, or no tag_key"
            )
        return xxh3_64_intdigest
    if not isinstance(tag_key, bytes) or len(tag_key) < MIN_TAG_KEY_BYTES:
        given = f"{len(tag_key)} bytes" if isinstance(tag_key, bytes) else type(tag_key).__name__
        raise SpecError(
            f"tag_key of {given}: tags={name!r} wants {MIN_TAG_KEY_BYTES} or more secret bytes"
        )
    return _blake3_keyed(tag_key)


def no_tag(data: Buffer, seed: int) -> NoReturn:  # noqa: ARG001 - it is a Tag that refuses
    """Refuse: the tag algorithm of a format that was made for keys and sizes only."""
    raise SpecError("this format was made without tags: want ObjectFormat.of(namespace, tag_key)")


def _blake3_keyed(tag_key: bytes) -> Tag:
    # Derived, so that a secret of any length fits and may serve other purposes as well.
    derived = blake3(tag_key, derive_key_context=_KEY_CONTEXT).digest()

    def tag(data: Buffer, seed: int) -> int:
        hasher = blake3(seed.to_bytes(8, "little"), key=derived).update(data)
        return int.from_bytes(hasher.digest(length=8), "little")

    return tag

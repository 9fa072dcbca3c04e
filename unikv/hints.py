"""Hints: records by which the namespaces of a family find each other. They know no backend.

Record, 4,096 bytes, little-endian, at key ``ns_{family}_{slot}`` for slots 0 to 15: u32 n, n bytes
canonical text, label (UTF-8 without NUL), zeros up to 4,088, u64 tag: xxh3_64 of all before it,
seeded with xxh3_64 of the key + 2^35 modulo 2^64.
"""

import re
import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from unikv.canonical import read_label
from unikv.errors import FormatError, SpecError
from unikv.namespace import TEXT_LIMIT, Namespace
from unikv.store import Item, Outcome, Records, Span
from unikv.tags import SEED_MASK, key_seed

HINT_BYTES = 4096
HINT_SLOTS = 16

_TAG_OFFSET = HINT_BYTES - 8
_HINT_SEED = 2**35  # above those of an object's parts
_KEY = re.compile(r"ns_([0-9a-f]{32})_(?:[0-9]|1[0-5])\Z")


class Hint(NamedTuple):
    """A namespace that somebody announced, and the label they gave its model ("" for none)."""

    namespace: Namespace
    label: str


def hint_key(family: str, slot: int) -> str:
    """Return the key of one of the family's 16 records."""
    return f"ns_{family}_{slot}"


def encode_hint(namespace: Namespace, slot: int) -> bytes:
    """Return the 4,096 bytes that announce ``namespace`` in a slot; a long label is cut to fit."""
    text = namespace.canonical
    head = struct.pack("<I", len(text)) + text
    label = namespace.model.encode()[: _TAG_OFFSET - len(head)].decode(errors="ignore")
    body = (head + label.encode()).ljust(_TAG_OFFSET, b"\0")
    return body + struct.pack("<Q", _tag(hint_key(namespace.family, slot), body))


def decode_hint(key: str, data: bytes | bytearray | memoryview) -> Hint:
    """Return what the record at ``key`` announces; nobody vouches for ``data``.

    Raises:
        FormatError: the bytes are no hint record, or not the one of this key.
    """
    match = _KEY.match(key)
    body = bytes(data[:_TAG_OFFSET])
    if match is None or len(data) != HINT_BYTES:
        raise FormatError(f"hint {key!r:.80} of {len(data)} bytes: want a hint key, {HINT_BYTES}")
    if _tag(key, body) != int.from_bytes(data[_TAG_OFFSET:], "little"):
        raise FormatError(f"hint {key}: its tag does not match its bytes")
    (length,) = struct.unpack_from("<I", body)
    if length > TEXT_LIMIT:
        raise FormatError(f"hint {key}: a text of {length} bytes, want at most {TEXT_LIMIT}")
    namespace = Namespace.parse(body[4 : 4 + length])
    if namespace.family != match[1]:
        raise FormatError(f"hint {key}: its text is of family {namespace.family}")
    label, _, rest = body[4 + length :].partition(b"\0")
    try:
        text = read_label("hint label", label.decode())
    except (UnicodeDecodeError, SpecError) as error:
        raise FormatError(f"hint {key}: {error!s:.200}") from error
    if rest.strip(b"\0"):
        raise FormatError(f"hint {key}: bytes behind its label, want zeros")
    return Hint(namespace, text)


def read_hints(store: Records, family: str) -> list[Hint]:
    """Return the namespaces that announced themselves in a family: one batch of reads.

    Records that are missing, unreadable or damaged are left out; each namespace comes once.
    """
    found: dict[str, Hint] = {}
    for hint in _read_slots(store, family, range(HINT_SLOTS)).values():
        if isinstance(hint, Hint):
            found.setdefault(hint.namespace.digest, hint)
    return list(found.values())


def announce(store: Records, namespace: Namespace) -> int | None:
    """Put the namespace's hint into the first free slot of its family, unless it is there.

    Returns:
        The slot it stands in, or None where all 16 are taken or the store failed: whoever saves
        goes on unannounced.
    """
    slots = _read_slots(store, namespace.family, range(HINT_SLOTS))
    for slot, hint in slots.items():
        if _announces(hint, namespace):
            return slot
    for slot in [slot for slot, hint in slots.items() if hint is Outcome.MISS]:
        key = hint_key(namespace.family, slot)
        store.put([Item(key, [encode_hint(namespace, slot)])])
        # Whoever lost a race finds the other's record here, also where stores overwrite.
        if _announces(_read_slots(store, namespace.family, [slot])[slot], namespace):
            return slot
    return None


def _announces(hint: Hint | Outcome, namespace: Namespace) -> bool:
    return isinstance(hint, Hint) and hint.namespace.digest == namespace.digest


def _read_slots(
    store: Records, family: str, slots: "range | list[int]"
) -> dict[int, Hint | Outcome]:
    """Return the hint of each slot, MISS for a free one, FAILED for one that is of no use."""
    memory = memoryview(bytearray(HINT_BYTES * len(slots)))
    views = [memory[i * HINT_BYTES : (i + 1) * HINT_BYTES] for i in range(len(slots))]
    spans = [
        Span(hint_key(family, slot), 0, HINT_BYTES, [view])
        for slot, view in zip(slots, views, strict=True)
    ]
    found: dict[int, Hint | Outcome] = {}
    for slot, span, view, code in zip(slots, spans, views, store.get(spans).codes, strict=True):
        found[slot] = code
        if code is Outcome.OK:
            try:
                found[slot] = decode_hint(span.key, view)
            except FormatError:
                found[slot] = Outcome.FAILED  # foreign or damaged: neither ours nor free
    return found


def _tag(key: str, body: bytes) -> int:
    return xxh3_64_intdigest(body, (key_seed(key) + _HINT_SEED) & SEED_MASK)

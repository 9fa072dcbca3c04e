"""Seal: the tags of one object set into its header, and held against its bytes.

It takes the bytes as laid out right; whose they should be is not its question. All functions take
the tag algorithm and the object's `key_seed`. Format source: docs/format.md, "Tags and seeds".
"""

from struct import pack_into

from unikv.expectation import Expectation
from unikv.header import ENTRY_BYTES, PAYLOAD_TAG_OFFSET, TABLE_OFFSET, TAG_BYTES
from unikv.tags import DESCRIPTION_SEED, HEADER_SEED, PAYLOAD_SEED, SEED_MASK, Tag


def seal_header(
    tag: Tag, seed: int, head: bytearray, payload: memoryview, facts: Expectation
) -> None:
    """Set all tags of ``head``, whose other fields are final, for the whole ``payload``."""
    # A length and the zero behind it read as one u64, so the whole table goes in at one stroke.
    table = [facts.slab_bytes] * (2 * facts.slabs)
    table[::2] = [tag(payload[cut], seed + i & SEED_MASK) for i, cut in enumerate(facts.cuts)]
    pack_into(f"<{len(table)}Q", head, TABLE_OFFSET, *table)
    pack_into("<Q", head, PAYLOAD_TAG_OFFSET, tag(payload, seed + PAYLOAD_SEED & SEED_MASK))
    of_header = tag(head[:-TAG_BYTES], seed + HEADER_SEED & SEED_MASK)
    pack_into("<Q", head, len(head) - TAG_BYTES, of_header)


def seal_text(tag: Tag, seed: int, text: bytes) -> bytes:
    """Return the description ``text`` with its tag behind it."""
    return text + tag(text, seed + DESCRIPTION_SEED & SEED_MASK).to_bytes(TAG_BYTES, "little")


def bad_slabs(
    tag: Tag, seed: int, head: bytes, body: memoryview, slab_bytes: int, first: int = 0
) -> list[int]:
    """Return which of the whole slabs in ``body``, from slab ``first`` on, do not fit their tags.

    ``slab_bytes`` is the reader's own figure. What is left behind the last whole slab is ignored.
    """
    bad = []
    for i in range(len(body) // slab_bytes):
        at = TABLE_OFFSET + ENTRY_BYTES * (first + i)
        stored = int.from_bytes(head[at : at + TAG_BYTES], "little")
        slab = body[i * slab_bytes : (i + 1) * slab_bytes]
        if tag(slab, seed + first + i & SEED_MASK) != stored:
            bad.append(first + i)
    return bad


def text_fits(tag: Tag, seed: int, tail: memoryview) -> bool:
    """Tell whether a description fits the tag at its end."""
    stored = int.from_bytes(tail[-TAG_BYTES:], "little")
    return tag(tail[:-TAG_BYTES], seed + DESCRIPTION_SEED & SEED_MASK) == stored

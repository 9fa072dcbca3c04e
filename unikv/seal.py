"""Seal: the tags of one object set into its header, and held against its bytes.

It takes the bytes as laid out right; whose they should be is not its question. All functions take
the tag algorithm and the object's `key_seed`. Format source: docs/format.md, "Tags and seeds".
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import pack_into
from typing import NamedTuple

from unikv.header import ENTRY_BYTES, PAYLOAD_TAG_OFFSET, TABLE_OFFSET, TAG_BYTES
from unikv.store import Buffer
from unikv.tags import DESCRIPTION_SEED, HEADER_SEED, PAYLOAD_SEED, SEED_MASK, Tag

MISFIT = "it does not fit its tag"
MISFIT_WHOLE = "each slab fits its tag, all together do not"


class Damage(NamedTuple):
    """Bytes of an object that are not what was stored, or not what was asked for."""

    key: str
    where: str  # "key", "size", "header", "slab 3", "payload", "description"
    detail: str

    def __str__(self) -> str:
        return f"{self.where} of object {self.key}: {self.detail}"


def seal_header(
    tag: Tag,
    seed: int,
    head: bytearray,
    payload: memoryview,
    cuts: Sequence[slice],
    lengths: Sequence[int],
) -> None:
    """Set the slab table and all tags of ``head``, whose other fields are final.

    Slab i is ``payload[cuts[i]]``, of ``lengths[i]`` bytes.
    """
    # A length and the zero behind it read as one u64, so the whole table goes in at one stroke.
    table = [0] * (2 * len(lengths))
    table[1::2] = lengths
    table[::2] = [tag(payload[cut], seed + i & SEED_MASK) for i, cut in enumerate(cuts)]
    pack_into(f"<{len(table)}Q", head, TABLE_OFFSET, *table)
    pack_into("<Q", head, PAYLOAD_TAG_OFFSET, tag(payload, seed + PAYLOAD_SEED & SEED_MASK))
    of_header = tag(head[:-TAG_BYTES], seed + HEADER_SEED & SEED_MASK)
    pack_into("<Q", head, len(head) - TAG_BYTES, of_header)


def seal_text(tag: Tag, seed: int, text: bytes) -> bytes:
    """Return the description ``text`` with its tag behind it."""
    return text + tag(text, seed + DESCRIPTION_SEED & SEED_MASK).to_bytes(TAG_BYTES, "little")


def bad_slabs(
    tag: Tag,
    seed: int,
    head: Buffer,
    body: memoryview,
    cuts: Sequence[slice],
    first: int = 0,
) -> list[int]:
    """Return which of the slabs ``body[cut]``, from slab ``first`` on, do not fit their tags.

    The cuts are the reader's own, or bounded by them. A slab that ``body`` ends before is ignored.
    """
    bad, size = [], len(body)
    for slab, cut in enumerate(cuts, first):
        if cut.stop > size:
            break
        at = TABLE_OFFSET + ENTRY_BYTES * slab
        stored = int.from_bytes(head[at : at + TAG_BYTES], "little")
        if tag(body[cut], seed + slab & SEED_MASK) != stored:
            bad.append(slab)
    return bad


def misfit(key: str, bad: Sequence[int], *, whole: bool) -> Damage | None:
    """Return the damage of slabs, a ``whole`` payload of which does not fit its tag."""
    if bad:
        return Damage(key, f"slab {bad[0]}", MISFIT)
    return Damage(key, "payload", MISFIT_WHOLE) if whole else None


def cuts_of(lengths: Sequence[int]) -> tuple[slice, ...]:
    """Return where slabs of such lengths lie that stand side by side."""
    ends = [0, *accumulate(lengths)]
    return tuple(slice(start, stop) for start, stop in pairwise(ends))


def text_fits(tag: Tag, seed: int, tail: memoryview) -> bool:
    """Tell whether a description fits the tag at its end."""
    stored = int.from_bytes(tail[-TAG_BYTES:], "little")
    return tag(tail[:-TAG_BYTES], seed + DESCRIPTION_SEED & SEED_MASK) == stored

"""CodecCheck: stored slabs of coded objects held against their header and tags. It unpacks none.

Who reads such an object has no length of it but from its header: that is checked first, by
`read_lengths`, then the slabs that it places. No content of either makes them raise.
"""

from unikv.expectation import Expectation
from unikv.header import TAG_BYTES
from unikv.seal import MISFIT, Damage, bad_slabs, cuts_of, misfit
from unikv.tags import HEADER_SEED, PAYLOAD_SEED, SEED_MASK, Tag, key_seed


def read_lengths(
    tag: Tag, facts: Expectation, page: str, header: memoryview
) -> tuple[int, ...] | Damage:
    """Return in how many bytes each slab of an object is stored, or what is wrong.

    Each is at least 1 and at most the slab's, and the header fits its tag.
    """
    key, size = page + facts.ending, len(facts.template)
    if len(header) != size:
        return Damage(key, "size", f"{len(header)} bytes were read, want {size}")
    head, name = bytes(header[:-TAG_BYTES]), bytes.fromhex(page)
    found, _, header_tag = facts.variable.unpack_from(header)
    if not facts.met_by(head) or found != name:
        return Damage(key, "header", facts.difference(head, name))
    if tag(head, key_seed(key) + HEADER_SEED & SEED_MASK) != header_tag:
        return Damage(key, "header", MISFIT)
    return facts.lengths(head)


def check_coded(
    tag: Tag,
    facts: Expectation,
    page: str,
    header: memoryview,
    body: memoryview,
    first: int,
    slabs: int,
) -> Damage | None:
    """Return what is wrong with a header and ``slabs`` stored slabs from slab ``first`` on."""
    lengths = read_lengths(tag, facts, page, header)
    if isinstance(lengths, Damage):
        return lengths
    key, wanted = page + facts.ending, lengths[first : first + slabs]
    if len(body) != sum(wanted):
        return Damage(key, "size", f"slabs of {len(body)} bytes were read, want {sum(wanted)}")
    seed, whole = key_seed(key), slabs == facts.slabs
    _, payload_tag, _ = facts.variable.unpack_from(header)
    if whole and tag(body, seed + PAYLOAD_SEED & SEED_MASK) == payload_tag:
        return None
    return misfit(key, bad_slabs(tag, seed, header, body, cuts_of(wanted), first), whole=whole)

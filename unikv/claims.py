"""Claims: what the header of each object of a page must say, and the tags that vouch for its bytes.

Pages of a plan are alike, so that it is worked out once. It holds no byte against another.
"""

from dataclasses import dataclass
from typing import NamedTuple

from unikv.geometry import Interval
from unikv.header import ENTRY_BYTES, PAYLOAD_TAG_OFFSET, TABLE_OFFSET, TAG_BYTES
from unikv.objects import ObjectFormat
from unikv.planner import Plan
from unikv.tags import PAYLOAD_SEED


class Claim(NamedTuple):
    """A run of staged slabs that a tag vouches for; all by bytes of the page's staging."""

    seed: int  # added to the object's `key_seed`
    start: int
    stop: int
    tag: int  # where it lies, as the word of 8 bytes that it is


class Claimed(NamedTuple):
    """One object of a page, as far as it is read."""

    ending: str  # of its key, behind the page's hash
    start: int  # where its header lies in the page's staging
    stop: int  # ... and its tag begins
    wanted: int  # the header less its tag, as one little-endian number, under the mask
    mask: int  # zero where headers of one chunk differ
    slabs: tuple[Claim, ...]  # all as one, or one by one


@dataclass(frozen=True, slots=True)
class Claims:
    """What is claimed of a page's objects that ``layers`` of a box touch. Build it with `of`."""

    objects: tuple[Claimed, ...]  # in the order of `Plan.touched`
    spans: tuple[int, ...]  # of each span that is read: which object it is of
    counts: bytes  # of each object: its spans

    @classmethod
    def of(cls, form: ObjectFormat, plan: Plan, layers: Interval | None) -> "Claims":
        """Return the claims of one page of a plan whose objects have no codec."""
        touched = plan.touched(layers)
        order = {c: n for n, (c, _) in enumerate(touched)}
        spans = tuple(order[c] for c in plan.expand(1, layers).key.tolist())
        return cls(
            tuple(_claimed(form, plan, c, slabs) for c, slabs in touched),
            spans,
            bytes(spans.count(n) for n in range(len(touched))),
        )


def _claimed(form: ObjectFormat, plan: Plan, c: int, slabs: Interval) -> Claimed:
    """Return what is claimed of slabs of an object, counted from the first that the plan reads."""
    facts, head = form.facts(plan.chunks[c]), plan.place[c]
    body, size = head + plan.header_bytes, facts.slab_bytes
    if slabs.size == facts.slabs:
        tag = (head + PAYLOAD_TAG_OFFSET) // TAG_BYTES
        claims = [Claim(PAYLOAD_SEED, body, body + facts.payload_bytes, tag)]
    else:
        claims = []
        for staged in range(slabs.start, slabs.stop):
            slab, at = plan.first_slab[c] + staged, body + staged * size
            tag = (head + TABLE_OFFSET + ENTRY_BYTES * slab) // TAG_BYTES
            claims.append(Claim(slab, at, at + size, tag))
    return Claimed(
        plan.key_tails[c], head, body - TAG_BYTES, facts.wanted, facts.mask, tuple(claims)
    )

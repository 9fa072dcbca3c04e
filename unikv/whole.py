"""Whole: all that is wrong with a whole stored object, description included. It knows no store.

No content of an object makes it raise, nor take memory by a stored number.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unikv.codec import Codec, has_library
from unikv.expectation import Expectation
from unikv.header import TAG_BYTES
from unikv.seal import MISFIT, MISFIT_WHOLE, Damage, bad_slabs, cuts_of, text_fits
from unikv.tags import HEADER_SEED, PAYLOAD_SEED, SEED_MASK, Tag


class Whole(NamedTuple):
    """A stored object, and what its reader knows of it."""

    tag: Tag
    seed: int  # the `key_seed` of its key
    key: str
    facts: Expectation
    text: bytes  # the description that it should end in, without its tag
    codec: Codec | None
    view: memoryview

    def find_damage(self) -> Iterator[Damage]:
        """Yield all that is wrong; each slab is hashed, and unpacked where there is a library."""
        tag, seed, key, facts, _, _, view = self
        size = len(facts.template)
        yield from self._wrong_size(facts.payload_sizes)
        if len(view) < size:
            return
        head, page = bytes(view[: size - TAG_BYTES]), bytes.fromhex(key[:64])
        name, _, header_tag = facts.variable.unpack_from(view)
        if not facts.met_by(head) or name != page:
            # Another object: all its tags would fail, and tell nothing.
            yield Damage(key, "header", facts.difference(head, page))
            return
        fits = tag(head, seed + HEADER_SEED & SEED_MASK) == header_tag
        if not fits:
            yield Damage(key, "header", MISFIT)
        if not facts.coded:
            yield from self._behind_header(head, facts.cuts)
        elif fits:  # it alone tells where each slab lies
            cuts = cuts_of(facts.lengths(head))
            if not [*self._wrong_size(facts.payload_sizes)]:
                yield from self._wrong_size([cuts[-1].stop])
            yield from self._behind_header(head, cuts)

    def _wrong_size(self, payload_sizes: Sequence[int]) -> Iterator[Damage]:
        """Yield the damage of an object that has none of some sizes in a row."""
        around = len(self.facts.template) + len(self.text) + TAG_BYTES
        least, most = around + payload_sizes[0], around + payload_sizes[-1]
        if not least <= len(self.view) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            detail = f"{len(self.view)} bytes are stored, want {wanted}"
            yield Damage(self.key, "size", detail)

    def _behind_header(self, head: bytes, cuts: Sequence[slice]) -> Iterator[Damage]:
        """Yield what is wrong with slabs that lie so, and with the description behind them."""
        tag, seed, key, facts, text, codec, view = self
        size, payload_bytes = len(facts.template), cuts[-1].stop
        body, tail = view[size : size + payload_bytes], view[size + payload_bytes :]
        bad = bad_slabs(tag, seed, head, body, cuts)
        yield from (Damage(key, f"slab {slab}", MISFIT) for slab in bad)
        if codec is not None and has_library():
            yield from _flaws(codec, key, body, cuts, bad)
        if len(body) < payload_bytes:
            return
        payload_tag = facts.variable.unpack_from(view)[1]
        if not bad and tag(body, seed + PAYLOAD_SEED & SEED_MASK) != payload_tag:
            yield Damage(key, "payload", MISFIT_WHOLE)
        if len(tail) != len(text) + TAG_BYTES:
            return
        if tail[:-TAG_BYTES] != text:
            yield Damage(key, "description", "it is not this namespace's text")
        elif not text_fits(tag, seed, tail):
            yield Damage(key, "description", MISFIT)


def _flaws(
    codec: Codec, key: str, body: memoryview, cuts: Sequence[slice], bad: Sequence[int]
) -> Iterator[Damage]:
    """Yield the slabs that fit their tags and are no stored form all the same: somebody's work."""
    scratch = memoryview(bytearray(codec.slab_bytes))
    for slab, cut in enumerate(cuts):
        if slab not in bad and cut.stop <= len(body):
            flaw = codec.unpack(body[cut], [cut.stop - cut.start], scratch)
            if flaw is not None:
                yield Damage(key, f"slab {slab}", flaw.detail)

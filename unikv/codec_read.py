"""CodecRead: coded objects read in two rounds, headers and then the slabs they place. It gets none.

header → arena; stored slabs → the end of their place in the arena → check → unpack

Stored slabs are never longer than the slabs, so that they fit the place that they are unpacked to,
and are read into the arena alone, as everything is that a store is asked for.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

from unikv.geometry import Interval
from unikv.objects import Damage
from unikv.orders import ReadPart
from unikv.store import Span


class Stored(NamedTuple):
    """Slabs of one object, as they are stored, on their way to the end of their place."""

    page: int  # position in the part's pages
    chunk: int  # position in the plan's chunks
    slabs: Interval  # counted from the first that the plan reads
    lengths: Sequence[int]  # of these slabs
    object_bytes: int  # of the whole object, as its header has it
    span: Span

    @property
    def key(self) -> str:
        """The object's key."""
        return self.span.key


def header_spans(part: ReadPart, memory: memoryview) -> list[Span]:
    """Return the headers to read of a part: of the chunks whose first wanted slab is wanted now.

    Further layers of such a chunk find its header in the arena.
    """
    plan = part.passage.read
    size = plan.header_bytes
    cells = [
        (plan.key_tails[c], plan.place[c]) for c, n in plan.touched(part.layers) if not n.start
    ]
    spans: list[Span] = []
    for n, page in enumerate(part.pages):
        base = part.at + n * plan.page_bytes
        for tail, place in cells:
            at = base + place
            spans.append(Span(page + tail, 0, size, (memory[at : at + size],)))
    return spans


def slab_spans(
    part: ReadPart, memory: memoryview, lost: Container[int]
) -> tuple[list[Stored], list[tuple[int, Damage]]]:
    """Return the slabs to read of pages whose headers are in the arena, less those in ``lost``.

    Returns:
        Them, and with the position of its page each header that is damaged.
    """
    plan, form = part.passage.read, part.passage.format
    coming: list[Stored] = []
    damaged: list[tuple[int, Damage]] = []
    for n, page in enumerate(part.pages):
        if n in lost:
            continue
        base = part.at + n * plan.page_bytes
        for c, slabs in plan.touched(part.layers):
            chunk, body = plan.chunks[c], base + plan.place[c] + plan.header_bytes
            lengths = form.read_lengths(page, chunk, memory[base + plan.place[c] : body])
            if isinstance(lengths, Damage):
                damaged.append((n, lengths))
                continue
            first = plan.first_slab[c] + slabs.start
            mine = lengths[first : first + slabs.size]
            start = plan.header_bytes + sum(lengths[:first])
            stop, end = start + sum(mine), body + slabs.stop * chunk.slab_bytes
            span = Span(page + plan.key_tails[c], start, stop, (memory[end + start - stop : end],))
            coming.append(Stored(n, c, slabs, mine, form.stored_bytes(lengths), span))
    return coming, damaged


def unpack(part: ReadPart, one: Stored, memory: memoryview, *, verify: bool) -> Damage | None:
    """Unpack slabs that were read to the front of their place; return what is wrong with them.

    With ``verify`` their tags are checked before. Without it as well the header was, and damage
    that shows in unpacking is found.
    """
    plan, form = part.passage.read, part.passage.format
    chunk, header = plan.chunks[one.chunk], part.at + one.page * plan.page_bytes
    header += plan.place[one.chunk]
    body, first = header + plan.header_bytes, plan.first_slab[one.chunk] + one.slabs.start
    [stored] = one.span.into
    if verify:
        page, head = part.pages[one.page], memory[header:body]
        damage = form.check_apart(page, chunk, head, stored, first, one.slabs.size)
        if damage is not None:
            return damage
    into = memory[
        body + one.slabs.start * chunk.slab_bytes : body + one.slabs.stop * chunk.slab_bytes
    ]
    assert form.codec is not None
    flaw = form.codec.unpack(stored, one.lengths, into)
    return None if flaw is None else Damage(one.key, f"slab {first + flaw.slab}", flaw.detail)

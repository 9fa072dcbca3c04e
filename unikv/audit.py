"""Audit: vouches for objects that were read, each as soon as its bytes have come.

It tells who is not to be trusted, never why: that is for `ObjectFormat.check_apart`. It knows no
store.
"""

from collections.abc import Callable
from time import perf_counter

from unikv.header import PAGE, TAG_BYTES
from unikv.orders import ReadPart
from unikv.tags import HEADER_SEED, SEED_MASK, key_seed


class Audit:
    """The check of one part of an order, whose objects have no codec."""

    def __init__(self, part: ReadPart, memory: memoryview) -> None:
        plan, pages = part.passage.read, len(part.pages)
        self._part = part
        self._claims = part.passage.claims(part.layers)
        self._page_bytes = plan.page_bytes
        self._staged = memory[part.at : part.at + pages * plan.page_bytes]
        self._missing = bytearray(self._claims.counts * pages)  # spans that each object waits for
        self._suspect = bytearray(b"\1" * len(self._missing))
        self.seconds = 0.0
        """How long it took up to now."""

    def listener(self) -> Callable[[int], None]:
        """Return what is to be called with each span of the part that is filled, once.

        It checks an object that is whole then. Spans are counted as `unikv.fetching.spans_of` has
        them.
        """
        # It runs for every object of every load: what it needs is at hand.
        pages, tag, page_bytes = self._part.pages, self._part.passage.format.tag, self._page_bytes
        objects, of_spans = self._claims.objects, self._claims.spans
        missing, suspect, staged = self._missing, self._suspect, self._staged
        # Tags are little-endian: where words are not, none is vouched for, which costs time alone.
        words = staged.cast("Q")
        count, width = len(objects), len(of_spans)

        def hear(span: int) -> None:
            begun = perf_counter()
            page, at = divmod(span, width)
            n = of_spans[at]
            row = page * count + n
            missing[row] -= 1
            if not missing[row]:
                ending, start, stop, wanted, mask, slabs = objects[n]
                base, name = page * page_bytes, pages[page]
                head, seed = bytes(staged[base + start : base + stop]), key_seed(name + ending)
                if (
                    int.from_bytes(head, "little") & mask == wanted
                    and head[PAGE] == bytes.fromhex(name)
                    and tag(head, seed + HEADER_SEED & SEED_MASK)
                    == words[(base + stop) // TAG_BYTES]
                ):
                    word = base // TAG_BYTES
                    for more, first, last, at in slabs:
                        found = tag(staged[base + first : base + last], seed + more & SEED_MASK)
                        if found != words[word + at]:
                            break
                    else:
                        suspect[row] = 0
            self.seconds += perf_counter() - begun

        return hear

    def suspects(self) -> list[tuple[int, int]]:
        """Return what is not all that its header says, or was not heard of: page and chunk of it.

        Pages are positions in the part, chunks in what `Plan.touched` returns.
        """
        if not any(self._suspect):
            return []
        count = len(self._claims.objects)
        return [divmod(row, count) for row, bad in enumerate(self._suspect) if bad]

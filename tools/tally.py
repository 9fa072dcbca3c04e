"""Tally: what was seen of one namespace so far, a bit for each chunk. It reads nothing."""

import re
from dataclasses import dataclass, field

from unikv.store import UNKNOWN_SIZE
from unikv.tools.findings import Fault, Incomplete, NamespaceContent
from unikv.tools.roster import Known

LISTED = 1000
"""Faulty objects or foreign keys of a kind that are named; more are only counted."""

CHUNKS_LISTED = 16
"""Missing chunks of a page that are named."""

_PAGE = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(slots=True)
class Tally:
    """Counts of one namespace. ``pages`` holds a bit for each chunk that is there and good."""

    known: Known
    cells: dict[str, tuple[int, range]]  # how keys end: number of the chunk, sizes of its object
    pages: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    bytes: int = 0
    verified: int = 0
    unverified: int = 0
    wrong_sizes: int = 0
    wrong_size: list[Fault] = field(default_factory=list)
    damages: int = 0
    damaged: list[Fault] = field(default_factory=list)

    @classmethod
    def of(cls, known: Known) -> "Tally":
        """Return the tally of a namespace of which nothing was seen."""
        form = known.form
        return cls(known, {c.suffix: (c.index, form.object_sizes(c)) for c in form.grid.chunks})

    def count(self, page: str, size: int) -> bool:
        """Count an object of ``page``; tell whether that is a page hash at all."""
        if page not in self.pages:
            if not _PAGE.match(page):
                return False
            self.pages[page] = 0
        self.objects += 1
        self.bytes += size
        return True

    def note_wrong_size(self, key: str, size: int, wanted: range) -> None:
        """Count an object that cannot be whole."""
        self.wrong_sizes += 1
        if len(self.wrong_size) < LISTED:
            detail = f"{size} bytes are stored, want {sizes_text(wanted)}"
            self.wrong_size.append(Fault(key, "size", detail))

    def note_read(self, key: str, chunk: int, data: memoryview | str) -> None:
        """Verify an object's bytes, or count why there are none."""
        if isinstance(data, str):
            faults = [Fault(key, "read", data)]
        else:
            faults = [Fault(*damage) for damage in self.known.form.check_object(key, data)]
            self.verified += 1
        if faults:
            self.damages += 1
            self.damaged += faults[: max(0, LISTED - len(self.damaged))]
        else:
            self.pages[key[:64]] |= 1 << chunk

    def content(self, *, verbose: bool) -> NamespaceContent:
        """Return the counts, with ``verbose`` also which pages lack which chunks."""
        full = (1 << len(self.cells)) - 1
        lacking = {page: mask for page, mask in self.pages.items() if mask != full}
        named = sorted(lacking) if verbose else []
        return NamespaceContent(
            namespace=self.known.facts(),
            objects=self.objects,
            bytes=self.bytes,
            pages=len(self.pages),
            complete_pages=len(self.pages) - len(lacking),
            incomplete_pages=len(lacking),
            incomplete=tuple(self._incomplete(page, lacking[page]) for page in named),
            wrong_size_objects=self.wrong_sizes,
            wrong_size=tuple(self.wrong_size),
            verified_objects=self.verified,
            unverified_objects=self.unverified,
            damaged_objects=self.damages,
            damaged=tuple(self.damaged),
        )

    def _incomplete(self, page: str, mask: int) -> Incomplete:
        chunks = list[str]()
        for suffix, (chunk, _) in self.cells.items():
            if len(chunks) < CHUNKS_LISTED and not mask >> chunk & 1:
                chunks.append(suffix)
        return Incomplete(page, len(self.cells) - mask.bit_count(), tuple(chunks))


def sizes_text(sizes: range) -> str:
    """Return the sizes that an object can have, in words."""
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"


def size_to_read(told: int, sizes: range) -> int:
    """Return what a store told, or the one size that an object can have; else `UNKNOWN_SIZE`."""
    return sizes[0] if told == UNKNOWN_SIZE and len(sizes) == 1 else told

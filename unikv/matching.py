"""Matching: how much of a sequence is stored, by the sizes of its objects. It moves no bytes."""

from collections.abc import Container, Sequence
from typing import NamedTuple

from unikv.coverage import Coverage, EveryPage, endpoints, greatest, pages_needed, valid_to
from unikv.grid import Chunk
from unikv.objects import ObjectFormat
from unikv.reports import Match
from unikv.store import UNKNOWN_SIZE, Records

FIRST_KEYS = 512
"""Objects asked for in the first batch of a match; each further batch asks for twice as many."""


class Want(NamedTuple):
    """What must be stored of one component for a page to be of use."""

    name: str
    format: ObjectFormat
    chunks: Sequence[Chunk]
    coverage: Coverage
    required: bool

    @property
    def dense(self) -> bool:
        """Whether an endpoint needs every page before it."""
        return isinstance(self.coverage, EveryPage)

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self.format.namespace.spec.page_tokens


def match_bundle(
    store: Records, wants: Sequence[Want], pages: Sequence[str], damaged: Container[str] = ()
) -> Match:
    """Return the greatest endpoint that all required components can restore.

    ``damaged`` are keys known to hold bad bytes; they count as missing.
    """
    dense = [want for want in wants if want.dense and want.required]
    sparse = [want for want in wants if not want.dense and want.required]
    found = match_prefix(store, dense, pages, damaged)
    reach, exact, missing = found.pages, found.exact, found.first_missing
    sets = [frozenset(range(reach + 1))]
    for want in sparse:
        gaps, known = find_gaps(store, want, pages[:reach], damaged)
        exact = exact and known
        held = [row for row in range(reach) if row not in gaps]
        sets.append(endpoints(want.coverage, frozenset(held), reach, want.page_tokens))
        if reach not in sets[-1]:
            needed = pages_needed(want.coverage, reach, want.page_tokens)
            missing = next((gaps[row] for row in needed if row in gaps), missing)
    end = greatest(*sets)
    valid = {}
    for want in wants:
        if not want.required:
            valid[want.name], known = _valid(store, want, pages[:end], damaged)
            exact = exact and known
    return Match(end, exact, missing, valid)


def match_prefix(
    store: Records, wants: Sequence[Want], pages: Sequence[str], damaged: Container[str] = ()
) -> Match:
    """Return the longest prefix of pages whose wanted objects all have their right size."""
    exact = True
    sizes = [want.format.object_bytes(chunk) for want in wants for chunk in want.chunks]
    window, start = max(1, FIRST_KEYS // max(1, len(sizes))), 0
    while sizes and start < len(pages):
        batch = pages[start : start + window]
        keys = [w.format.key(page, c) for page in batch for w in wants for c in w.chunks]
        for i, (key, found) in enumerate(zip(keys, store.stat(keys), strict=True)):
            exact = exact and found != UNKNOWN_SIZE
            if found not in (sizes[i % len(sizes)], UNKNOWN_SIZE) or key in damaged:
                return Match(start + i // len(sizes), exact, key)
        start += len(batch)
        window *= 2
    return Match(len(pages), exact, None)


def find_gaps(
    store: Records, want: Want, pages: Sequence[str], damaged: Container[str] = ()
) -> tuple[dict[int, str], bool]:
    """Return the positions of pages that lack an object, each with its key; and whether exact."""
    gaps: dict[int, str] = {}
    exact = True
    sizes = [want.format.object_bytes(chunk) for chunk in want.chunks]
    keys = [want.format.key(page, chunk) for page in pages for chunk in want.chunks]
    for i, (key, found) in enumerate(zip(keys, store.stat(keys), strict=True)):
        exact = exact and found != UNKNOWN_SIZE
        if found not in (sizes[i % len(sizes)], UNKNOWN_SIZE) or key in damaged:
            gaps.setdefault(i // len(sizes), key)
    return gaps, exact


def _valid(
    store: Records, want: Want, pages: Sequence[str], damaged: Container[str]
) -> tuple[int, bool]:
    """Return up to which page an optional component could be restored, and whether exact."""
    if want.dense:
        found = match_prefix(store, [want], pages, damaged)
        return found.pages, found.exact
    gaps, exact = find_gaps(store, want, pages, damaged)
    held = frozenset(row for row in range(len(pages)) if row not in gaps)
    return valid_to(want.coverage, held, len(pages), want.page_tokens), exact

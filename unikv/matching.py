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


PROBES = 26
"""Questions a round of `gallop`: three rounds of them reach over 17,000 pages."""

CONFIRMED = 50
"""Objects that `gallop` asks for before the end that it found."""

SPARSE_ROWS = 64
"""Pages before those that an endpoint needs of a window or state, where asking is costly."""


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


def fits(found: int | None, sizes: range) -> bool:
    """Tell whether what `Records.stat` found can be an object that has one of these sizes."""
    return found is not None and (found == UNKNOWN_SIZE or sizes.start <= found < sizes.stop)


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
        rows = _rows_to_ask(store, want, reach)
        gaps, known = find_gaps(store, want, [pages[row] for row in rows], damaged)
        exact = exact and known and len(rows) == reach
        held = frozenset(row for n, row in enumerate(rows) if n not in gaps)
        sets.append(endpoints(want.coverage, held, reach, want.page_tokens))
        if reach not in sets[-1]:
            needed = pages_needed(want.coverage, reach, want.page_tokens)
            lost = {rows[n]: key for n, key in gaps.items()}
            missing = next((lost[row] for row in needed if row in lost), missing)
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
    """Return the longest prefix of pages whose wanted objects all have their right size.

    Where sizes are costly to ask for it is looked for as `gallop` does.
    """
    if getattr(store, "costly_stat", False):
        return gallop(store, wants, pages, damaged)
    exact = True
    sizes = [want.format.object_sizes(chunk) for want in wants for chunk in want.chunks]
    endings = [want.format.key("", chunk) for want in wants for chunk in want.chunks]
    expected = [some.start for some in sizes]
    sure = all(len(some) == 1 for some in sizes)
    window, start = max(1, FIRST_KEYS // max(1, len(sizes))), 0
    while sizes and start < len(pages):
        batch = pages[start : start + window]
        keys = [page + ending for page in batch for ending in endings]
        answers = store.stat(keys)
        whole = sure and not damaged and list(answers) == expected * len(batch)
        for i, (key, found) in enumerate(zip(keys, () if whole else answers, strict=not whole)):
            exact = exact and found != UNKNOWN_SIZE
            if not fits(found, sizes[i % len(sizes)]) or key in damaged:
                return Match(start + i // len(sizes), exact, key)
        start += len(batch)
        window *= 2
    return Match(len(pages), exact, None)


def gallop(
    store: Records, wants: Sequence[Want], pages: Sequence[str], damaged: Container[str] = ()
) -> Match:
    """Return about how long the prefix is, in four rounds of few questions.

    Three rounds find where one chunk of each page is no longer there, as if every stored page had
    all before it stored; a fourth asks for the other chunks of the last pages before that. A hole
    further ahead stays unseen: the load finds it, and ``exact`` is False of any page.
    """
    cells = [(want, chunk) for want in wants for chunk in want.chunks]
    if not cells or not pages:
        return Match(len(pages), exact=True, first_missing=None)
    low, high = 0, len(pages)  # pages[:low] are there, pages[high] is not
    while low < high:
        step = -(-(high - low) // PROBES)
        rows = [*range(low + step - 1, high, step)]
        if low == 0 and step > 1:
            rows.insert(0, 0)  # most paths that miss, miss at once
        lost = _first_lost(store, cells[:1], pages, rows, damaged)
        if lost is None:
            low = high if step == 1 else rows[-1] + 1
        else:
            low, high = (rows[lost - 1] + 1 if lost else low), rows[lost]
    end = low
    rest = cells[1:]
    if rest and end:
        last = range(max(0, end - max(1, CONFIRMED // len(rest))), end)
        lost = _first_lost(store, rest, pages, last, damaged)
        end = last[lost] if lost is not None else end
    first = cells[0][0].format.key(pages[end], cells[0][1]) if end < len(pages) else None
    return Match(end, exact=False, first_missing=first)


def _first_lost(
    store: Records,
    cells: Sequence[tuple[Want, Chunk]],
    pages: Sequence[str],
    rows: Sequence[int],
    damaged: Container[str],
) -> int | None:
    """Return which of ``rows`` is the first that lacks one of the cells; one round."""
    keys = [want.format.key(pages[row], chunk) for row in rows for want, chunk in cells]
    sizes = [want.format.object_sizes(chunk) for want, chunk in cells]
    for i, (key, found) in enumerate(zip(keys, store.stat(keys), strict=True)):
        if not fits(found, sizes[i % len(cells)]) or key in damaged:
            return i // len(cells)
    return None


def _rows_to_ask(store: Records, want: Want, reach: int) -> range:
    """Return the pages of a window or state to ask for: all, or the last where that is costly."""
    if not getattr(store, "costly_stat", False):
        return range(reach)
    needed = pages_needed(want.coverage, reach, want.page_tokens)
    return range(max(0, min(needed.start, reach) - SPARSE_ROWS), reach)


def find_gaps(
    store: Records, want: Want, pages: Sequence[str], damaged: Container[str] = ()
) -> tuple[dict[int, str], bool]:
    """Return the positions of pages that lack an object, each with its key; and whether exact."""
    gaps: dict[int, str] = {}
    exact = True
    sizes = [want.format.object_sizes(chunk) for chunk in want.chunks]
    keys = [want.format.key(page, chunk) for page in pages for chunk in want.chunks]
    for i, (key, found) in enumerate(zip(keys, store.stat(keys), strict=True)):
        exact = exact and found != UNKNOWN_SIZE
        if not fits(found, sizes[i % len(sizes)]) or key in damaged:
            gaps.setdefault(i // len(sizes), key)
    return gaps, exact


def _valid(
    store: Records, want: Want, pages: Sequence[str], damaged: Container[str]
) -> tuple[int, bool]:
    """Return up to which page an optional component could be restored, and whether exact."""
    if want.dense:
        found = match_prefix(store, [want], pages, damaged)
        return found.pages, found.exact
    rows = _rows_to_ask(store, want, len(pages))
    gaps, exact = find_gaps(store, want, [pages[row] for row in rows], damaged)
    held = frozenset(row for n, row in enumerate(rows) if n not in gaps)
    reach = valid_to(want.coverage, held, len(pages), want.page_tokens)
    return reach, exact and len(rows) == len(pages)

"""Catalog: how much of a sequence is stored, for schedulers. It knows no pool, moves no bytes."""

from collections.abc import Container, Mapping, Sequence

from unikv.component import Component, name_components
from unikv.grid import Chunk
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.pages import check_page_hash
from unikv.planner import plan_read
from unikv.reports import Match
from unikv.store import UNKNOWN_SIZE, Store
from unikv.topology import Rank

FIRST_WINDOW = 64
"""Pages asked for in the first batch of a match; each further batch asks for twice as many."""

Needs = Sequence[tuple[ObjectFormat, Sequence[Chunk]]]
"""For each component the chunks of a page that must be stored."""


class Catalog:
    """Answers which leading pages of a sequence a store holds, for all ranks or for some."""

    def __init__(
        self,
        store: Store,
        components: Namespace | Mapping[str, Component],
        *,
        ranks: Sequence[Rank] | None = None,
    ) -> None:
        """Ask for every chunk of a page, or for those that ``ranks`` read."""
        self._store = store
        needs = []
        for component in name_components(components).values():
            form = ObjectFormat.keyless(component.namespace)
            chunks: Sequence[Chunk] = form.grid.chunks
            if ranks is not None:
                boxes = [rank.box(component.namespace.spec) for rank in ranks]
                touched = {c.index for box in boxes for c in plan_read(form, box).chunks}
                chunks = [form.grid.chunks[index] for index in sorted(touched)]
            needs.append((form, chunks))
        self._needs: Needs = needs

    def match(self, pages: Sequence[str]) -> Match:
        """Return the longest stored prefix of ``pages``, page hashes in sequence order.

        Raises:
            KeyFormatError: a text that is no page hash.
        """
        return match_prefix(self._store, self._needs, pages)


def match_prefix(
    store: Store, needs: Needs, pages: Sequence[str], damaged: Container[str] = ()
) -> Match:
    """Return the longest prefix of pages whose needed objects all have their right size.

    ``damaged`` are keys known to hold bad bytes; they count as missing.
    """
    for page in pages:
        check_page_hash(page)
    exact = True
    window, start = FIRST_WINDOW, 0
    while start < len(pages):
        batch = pages[start : start + window]
        keys = [form.key(page, chunk) for page in batch for form, some in needs for chunk in some]
        sizes = [form.object_bytes(chunk) for form, some in needs for chunk in some]
        for i, (key, found) in enumerate(zip(keys, store.stat(keys), strict=True)):
            exact = exact and found != UNKNOWN_SIZE
            if found not in (sizes[i % len(sizes)], UNKNOWN_SIZE) or key in damaged:
                return Match(start + i // len(sizes), exact, key)
        start += len(batch)
        window *= 2
    return Match(len(pages), exact, None)

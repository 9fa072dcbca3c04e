"""One page: what a store holds of it, chunk by chunk, all verified. It knows no other page."""

from unikv.errors import KeyFormatError, StoreError
from unikv.grid import Chunk
from unikv.header import Header
from unikv.keys import ObjectKey
from unikv.matching import fits
from unikv.store import Entry, Store
from unikv.tools.dissect import try_header
from unikv.tools.findings import ChunkFinding, ChunkState, PageContent, PageFindings, Unknown
from unikv.tools.reading import OBJECT_LIMIT, Wanted, read_batches
from unikv.tools.roster import Known, Roster
from unikv.tools.tally import size_to_read, sizes_text

KEY_LIMIT = 2**18
"""Keys of one page that are looked at; a page has some hundred."""

PREFIX_DIGITS = 8
"""Digits of a page hash that are enough to ask for it, if no other page begins with them."""

_TRIES = 4  # objects of a digest that are read in search of its namespace


def inspect_page(store: Store, url: str, prefix: str, tag_key: bytes | None = None) -> PageFindings:
    """Return all that a store holds of the page whose hash begins with ``prefix``.

    Raises:
        StoreError: there is no such page, or the store cannot list.
        KeyFormatError: more than one page begins so.
        SpecError: the tag key is too short.
    """
    by_digest: dict[str, list[Entry]] = {}
    foreign = list[str]()
    page = ""
    for count, entry in enumerate(store.list(prefix)):
        if count >= KEY_LIMIT:
            raise StoreError(f"{url} has more than {KEY_LIMIT} keys that begin with {prefix}")
        try:
            key = ObjectKey.parse(entry.key)
        except KeyFormatError:
            foreign.append(entry.key)
            continue
        if page and key.page != page:
            raise KeyFormatError(
                f"page {prefix!r} is ambiguous: {page} and {key.page} begin so; give more digits"
            )
        page = key.page
        by_digest.setdefault(key.namespace, []).append(entry)
    if not page:
        raise StoreError(f"{url} holds no object of a page {prefix}")
    roster = Roster(store, tag_key)
    roster.read_hints()
    contents, unknown = list[PageContent](), list[Unknown]()
    for digest, entries in by_digest.items():
        known = roster.find(digest) or _learn(roster, digest, entries)
        if isinstance(known, Known):
            sizes = {entry.key[98:]: entry.size for entry in entries}
            contents.append(_content(store, page, known, sizes))
            foreign += [f"{page}_{digest}_{suffix}" for suffix in sizes]
        else:
            total = sum(max(entry.size, 0) for entry in entries)
            unknown.append(Unknown(digest, len(entries), total, known))
    contents.sort(key=lambda c: (c.namespace.model, c.namespace.component, c.namespace.digest))
    return PageFindings(
        form="page",
        url=url,
        page=page,
        namespaces=tuple(contents),
        unknown=tuple(sorted(unknown, key=lambda u: u.digest)),
        foreign=tuple(sorted(foreign)),
    )


def _learn(roster: Roster, digest: str, entries: list[Entry]) -> Known | str:
    reason = "no object of it"
    for entry in entries[:_TRIES]:
        known = roster.learn(digest, entry.key, entry.size)
        if isinstance(known, Known):
            return known
        reason = known
    return reason


def _content(store: Store, page: str, known: Known, sizes: dict[str, int]) -> PageContent:
    """Look at each chunk; what stays in ``sizes`` is no chunk of the namespace."""
    form = known.form
    findings = dict[int, ChunkFinding]()
    to_read = list[tuple[Chunk, Wanted]]()
    for chunk in form.grid.chunks:
        size, wanted = sizes.pop(chunk.suffix, None), form.object_sizes(chunk)
        if size is None:
            findings[chunk.index] = _finding(chunk, "missing", None)
        elif not fits(size, wanted):
            detail = f"want {sizes_text(wanted)} bytes"
            findings[chunk.index] = _finding(chunk, "wrong_size", size, detail)
        elif not 0 <= (whole := size_to_read(size, wanted)) <= OBJECT_LIMIT:
            detail = f"more than {OBJECT_LIMIT} bytes" if whole > 0 else "the store tells no size"
            findings[chunk.index] = _finding(chunk, "unverified", size, detail)
        else:
            to_read.append((chunk, Wanted(form.key(page, chunk), whole)))
    parents, indices = set[str](), set[int]()
    for i, data in read_batches(store, [wanted for _, wanted in to_read]):
        finding, header = _verify(known, *to_read[i], data)
        findings[to_read[i][0].index] = finding
        if header and header.parent is not None:
            parents.add(header.parent)
        if header and header.page_index is not None:
            indices.add(header.page_index)
    return PageContent(
        namespace=known.facts(),
        parents=tuple(sorted(parents)),
        page_indices=tuple(sorted(indices)),
        chunks=tuple(findings[chunk.index] for chunk in form.grid.chunks),
    )


def _verify(
    known: Known, chunk: Chunk, wanted: Wanted, data: memoryview | str | None
) -> tuple[ChunkFinding, Header | None]:
    """Return the state of an object that was read, and its header if that can be believed."""
    if data is None:
        return _finding(chunk, "missing", None, "deleted since it was listed"), None
    if isinstance(data, str):
        return _finding(chunk, "damaged", wanted.size, data), None
    header = try_header(data)[0]
    if not known.verifiable:
        return _finding(
            chunk, "unverified", wanted.size, "keyed: needs the key (--tag-key-file)"
        ), header
    damages = known.form.check_object(wanted.key, data)
    if not damages:
        return _finding(chunk, "ok", wanted.size), header
    detail = "; ".join(f"{damage.where}: {damage.detail}" for damage in damages[:8])
    if any(damage.where == "header" for damage in damages):
        header = None
    return _finding(chunk, "damaged", wanted.size, detail), header


def _finding(chunk: Chunk, state: ChunkState, size: int | None, detail: str = "") -> ChunkFinding:
    layers = (chunk.layers.start, chunk.layers.stop)
    heads = (chunk.heads.start, chunk.heads.stop)
    return ChunkFinding(chunk.suffix, layers, heads, chunk.phase, state, size, detail)

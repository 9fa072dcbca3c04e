"""Dissect: one object taken apart, every tag held against its bytes. It knows no store.

An object is worth looking at when it is damaged, so each part is told as far as it goes: header
without namespace, namespace without header, slabs without either end.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from unikv.description import COUNT_BYTES
from unikv.errors import FormatError, KeyFormatError, StoreError
from unikv.grid import Chunk
from unikv.header import TAG_BYTES, Header, header_size, parse_header
from unikv.keys import LAYER_LIMIT, ObjectKey
from unikv.namespace import TEXT_LIMIT, Namespace
from unikv.tags import (
    DESCRIPTION_SEED,
    HEADER_SEED,
    PAYLOAD_SEED,
    SEED_MASK,
    XXH3_64,
    Tag,
    key_seed,
    tag_function,
)
from unikv.tools.findings import Fault, HeaderFacts, ObjectFindings, TaggedBytes, TagState
from unikv.tools.reading import OBJECT_LIMIT, Source
from unikv.tools.roster import TAIL_BYTES, Known, find_text, know

Find: TypeAlias = Callable[[str], Known | None]
"""Maps a digest to its namespace, where somebody other than the object knows it."""

_HEADER_LIMIT = header_size(LAYER_LIMIT)


def dissect(
    source: Source, name: str, tag_key: bytes | None = None, find: Find | None = None
) -> ObjectFindings:
    """Return what an object is and whether its bytes are right.

    Args:
        source: the object.
        name: its key, or the name of its file; where that is no key, the header tells one.
        tag_key: secret of keyed tags; without it they stay unchecked.
        find: who knows namespaces; where nobody does, the object tells its own.

    Raises:
        StoreError: it cannot be read, or has more than `reading.OBJECT_LIMIT` bytes though its
            namespace may say so.
        SpecError: the tag key is too short.
    """
    size = source.size
    head = source.read(0, min(size, _HEADER_LIMIT))
    header, header_fault = try_header(head)
    key = _key(name) or (header.key if header else None)
    tail = source.read(size - min(size, TAIL_BYTES), size)
    known = (find(key.namespace) if key and find else None) or _known(tail, key, tag_key)
    chunk = _chunk(known, key)
    wanted = _wanted(known, chunk, header) if known and chunk else None
    stop = size if wanted is None else min(size, wanted)
    if stop > OBJECT_LIMIT:
        raise StoreError(
            f"{source.shown}: an object of {size} bytes, want at most {OBJECT_LIMIT} to look into"
        )
    data = source.read(0, stop)
    text = str(key) if key else ""
    tagged = list(_tagged(data, header, text, known, tag_key)) if header and text else []
    return ObjectFindings(
        form="object",
        source=source.shown,
        key=text,
        size_bytes=size,
        wanted_bytes=wanted,
        header=_facts(header) if header else None,
        namespace=known.facts() if known else None,
        tagged=tuple(tagged),
        faults=tuple(_faults(text, size, wanted, data, known, header_fault, tagged)),
    )


def try_header(head: memoryview) -> tuple[Header | None, str]:
    """Return the header that an object begins with, or None and why there is none."""
    try:
        return parse_header(head), ""
    except FormatError as error:
        return None, str(error)


def _key(name: str) -> ObjectKey | None:
    try:
        return ObjectKey.parse(name)
    except KeyFormatError:
        return None


def _known(tail: memoryview, key: ObjectKey | None, tag_key: bytes | None) -> Known | None:
    """Return the namespace that the object's end describes."""
    text = find_text(tail, key.namespace if key else None)
    try:
        return know(Namespace.parse(text), tag_key) if text else None
    except FormatError:
        return None


def _chunk(known: Known | None, key: ObjectKey | None) -> Chunk | None:
    if known is None or key is None:
        return None
    for chunk in known.form.grid.chunks:
        if (chunk.layers, chunk.group, chunk.phase) == (key.layers, key.group, key.phase):
            return chunk
    return None


def _wanted(known: Known, chunk: Chunk, header: Header | None) -> int | None:
    """Return the size that an object should have. With a codec only its own header tells it."""
    sizes = known.form.object_sizes(chunk)
    if len(sizes) == 1:
        return sizes[0]
    if header is None or header.payload_bytes not in range(chunk.payload_bytes + 1):
        return None
    return known.form.stored_bytes([slab.stored_bytes for slab in header.table])


def _facts(header: Header) -> HeaderFacts:
    return HeaderFacts(
        version=header.version,
        codec=header.codec,
        tags=header.tags,
        header_bytes=header.header_bytes,
        namespace=header.namespace,
        page=header.page,
        parent=header.parent,
        page_index=header.page_index,
        layers=(header.layers.start, header.layers.stop),
        group=header.group,
        phase=header.phase,
        slabs=header.slabs,
        payload_bytes=header.payload_bytes,
    )


def _tagged(
    data: memoryview, header: Header, key: str, known: Known | None, tag_key: bytes | None
) -> Iterator[TaggedBytes]:
    """Yield all that a tag covers, placed by the header and bounded by the bytes that are there."""
    name = known.namespace.tags if known else header.tags
    tag: Tag | None = None
    if name == XXH3_64:
        tag = tag_function(name)
    elif tag_key is not None:
        tag = tag_function(name, tag_key)
    seed = key_seed(key)

    def held(
        what: str, start: int, size: int, stored: int, add: int, layer: int | None = None
    ) -> TaggedBytes:
        state: TagState = "keyed"
        if start + size > len(data):
            state = "absent"
        elif tag is not None:
            fits = tag(data[start : start + size], seed + add & SEED_MASK) == stored
            state = "ok" if fits else "bad"
        return TaggedBytes(what, layer, start, size, f"{stored:016x}", state)

    at = header.header_bytes
    yield held("header", 0, at - TAG_BYTES, header.tag, HEADER_SEED)
    layer_ids = known.namespace.spec.layer_ids if known else ()
    for i, slab in enumerate(header.table):
        ordinal = header.layers.start + i
        layer = layer_ids[ordinal] if ordinal < len(layer_ids) else None
        yield held(f"slab {i}", at, slab.stored_bytes, slab.tag, i, layer)
        at += slab.stored_bytes
    yield held(
        "payload", header.header_bytes, header.payload_bytes, header.payload_tag, PAYLOAD_SEED
    )
    count = int.from_bytes(data[at : at + COUNT_BYTES], "little")
    stop = at + COUNT_BYTES + count
    if len(data) < at + COUNT_BYTES or count > TEXT_LIMIT or stop + TAG_BYTES > len(data):
        yield TaggedBytes("description", None, at, max(0, len(data) - at), "", "absent")
    else:
        stored = int.from_bytes(data[stop : stop + TAG_BYTES], "little")
        yield held("description", at, stop - at, stored, DESCRIPTION_SEED)


def _faults(
    key: str,
    size: int,
    wanted: int | None,
    data: memoryview,
    known: Known | None,
    header_fault: str,
    tagged: list[TaggedBytes],
) -> Iterator[Fault]:
    """Yield what is wrong: by the namespace's measure where it is known, else by the header's."""
    if wanted is not None and size != wanted:
        yield Fault(key, "size", f"{size} bytes are stored, want {wanted}")
    if known is not None and key and known.verifiable:
        for damage in known.form.check_object(key, data):
            if damage.where != "size" or wanted is None:
                yield Fault(*damage)
        return
    if header_fault:
        yield Fault(key, "header", header_fault)
    if known is None:
        yield Fault(key, "description", "the object ends in no description of its namespace")
    for part in tagged:
        if part.state == "bad":
            yield Fault(key, part.what, "it does not fit its tag")
        elif part.state == "absent" and part.what != "description":
            yield Fault(key, part.what, "the object ends before it does")

"""Roster: which namespace a digest in a key stands for. It trusts nothing but that the text hashes.

A digest is the hash of its namespace's text, so neither a hint record nor an object can lie about
it: whoever offers the right text, the digest proves it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from unikv.canonical import hash_text
from unikv.description import COUNT_BYTES
from unikv.errors import FormatError, SpecError
from unikv.header import TAG_BYTES
from unikv.hints import HINT_BYTES, Hint, decode_hint
from unikv.namespace import NAMESPACE_CONTEXT, TEXT_LIMIT, Namespace
from unikv.objects import ObjectFormat
from unikv.store import UNKNOWN_SIZE, Outcome, Span, Store
from unikv.tags import BLAKE3_KEYED
from unikv.tools.findings import Fault, NamespaceFacts, PartFacts

HINT_LIMIT = 4096
"""Hint records read at most; a store has one or a few for each namespace."""

CHUNK_BUDGET = 2**18
"""Chunks that the grids of all namespaces may have together: a stranger's text asks for 65,536."""

TAIL_BYTES = COUNT_BYTES + TEXT_LIMIT + TAG_BYTES
"""The longest description: length, text and tag."""

_HINT_PREFIX = "ns_"
_HINT_KEY = re.compile(r"ns_[0-9a-f]{32}_(?:[0-9]|1[0-5])\Z")
_HINT_BATCH = 256
_BRACE = ord("{")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A namespace with its format; ``verifiable`` unless its tags need a key that is not there."""

    namespace: Namespace
    label: str
    announced: bool | None
    form: ObjectFormat
    verifiable: bool

    def facts(self) -> NamespaceFacts:
        """Return the namespace decoded for people."""
        ns, form = self.namespace, self.form
        names = [part.name for part in ns.spec.parts]
        parts = zip(names, form.grid.part_offsets, strict=True)
        return NamespaceFacts(
            digest=ns.digest,
            family=ns.family,
            model=ns.model or self.label,
            announced=self.announced,
            weights=ns.weights,
            component=ns.component,
            spec=ns.spec.describe(),
            quant=ns.quant,
            scales=ns.scales,
            rope=ns.rope,
            numerics=ns.numerics,
            layer_cuts=ns.layer_cuts,
            heads_per_chunk=ns.heads_per_chunk,
            phases=ns.phases,
            interleave=ns.interleave,
            chunks_per_page=len(form.grid.chunks),
            codec=ns.codec,
            tags=ns.tags,
            header_bytes=form.header_bytes,
            slab_parts=tuple(PartFacts(name, *part) for name, part in parts),
            payload_bytes=sum(chunk.payload_bytes for chunk in form.grid.chunks),
            stored_bytes=sum(form.object_bytes(chunk) for chunk in form.grid.chunks),
        )


class Roster:
    """The namespaces of one store, learned from its hint records and from what objects say."""

    def __init__(self, store: Store, tag_key: bytes | None = None) -> None:
        self._store = store
        self._tag_key = tag_key
        self._known: dict[str, Known] = {}
        self._chunks = 0
        self.hint_records = 0
        self.damaged_hints: list[Fault] = []

    def read_hints(self) -> None:
        """Learn from all hint records of the store.

        Raises:
            StoreError: the store cannot list.
        """
        listed = (entry.key for entry in self._store.list(_HINT_PREFIX))
        keys = filter(is_hint_key, listed)
        read = islice(keys, HINT_LIMIT)
        while batch := list(islice(read, _HINT_BATCH)):
            self.hint_records += len(batch)
            for key, hint in zip(batch, read_hint_records(self._store, batch), strict=True):
                if isinstance(hint, Hint):
                    self._add(hint.namespace, hint.label, announced=True)
                else:
                    self.damaged_hints.append(Fault(key, "hint", hint))
        self.hint_records += sum(1 for _ in keys)

    def find(self, digest: str) -> Known | None:
        """Return what is known of a digest."""
        return self._known.get(digest)

    def __iter__(self) -> Iterator[Known]:
        return iter(self._known.values())

    def learn(self, digest: str, key: str, size: int) -> Known | str:
        """Learn a namespace from the end of one of its objects; return why not, if not."""
        found = self._known.get(digest)
        if found is not None:
            return found
        if size == UNKNOWN_SIZE:
            return "the store tells no size of its objects"
        buffer = memoryview(bytearray(min(size, TAIL_BYTES)))
        outcomes = self._store.get([Span(key, max(0, size - TAIL_BYTES), size, [buffer])])
        if outcomes.codes[0] is not Outcome.OK:
            error = outcomes.errors.get(0)
            return f"an object could not be read: {error or 'it is gone'}"
        text = find_text(buffer, digest)
        if text is None:
            return "no object read ends in a description of it"
        try:
            namespace = Namespace.parse(text)
        except FormatError as error:
            return str(error)
        return self._add(namespace, "", announced=False)

    def _add(self, namespace: Namespace, label: str, *, announced: bool) -> Known | str:
        found = self._known.get(namespace.digest)
        if found is not None and (found.label or not label):
            return found
        if found is None:
            chunks = count_chunks(namespace)
            if self._chunks + chunks > CHUNK_BUDGET:
                return f"the namespaces of this store have more than {CHUNK_BUDGET} chunks a page"
            self._chunks += chunks
        known = know(namespace, self._tag_key, label=label, announced=announced)
        self._known[namespace.digest] = known
        return known


def is_hint_key(key: str) -> bool:
    """Tell whether a key is one that hint records have."""
    return bool(_HINT_KEY.match(key))


def count_chunks(namespace: Namespace) -> int:
    """Return how many chunks a page has, without making them."""
    groups = namespace.spec.kv_heads // namespace.heads_per_chunk
    return (len(namespace.layer_cuts) - 1) * groups * namespace.phases


def know(
    namespace: Namespace,
    tag_key: bytes | None,
    *,
    label: str = "",
    announced: bool | None = None,
) -> Known:
    """Return a namespace with its format; ``tag_key`` is left aside where tags take none.

    Raises:
        SpecError: the tag key is too short.
    """
    keyed = namespace.tags == BLAKE3_KEYED
    verifiable = tag_key is not None or not keyed
    form = (
        ObjectFormat.to_check(namespace, tag_key if keyed else None)
        if verifiable
        else ObjectFormat.keyless(namespace)
    )
    return Known(namespace, label, announced, form, verifiable)


def read_hint_records(store: Store, keys: Iterable[str]) -> list[Hint | str]:
    """Return the hint at each key, or why it is of no use."""
    spans = [Span(key, 0, HINT_BYTES, [memoryview(bytearray(HINT_BYTES))]) for key in keys]
    sizes = store.stat([span.key for span in spans])
    outcomes = store.get(spans)
    found = list[Hint | str]()
    for i, (span, size) in enumerate(zip(spans, sizes, strict=True)):
        if size is not None and size not in (HINT_BYTES, UNKNOWN_SIZE):
            found.append(f"{size} bytes: a hint record has {HINT_BYTES}")
        elif outcomes.codes[i] is not Outcome.OK:
            found.append(f"it could not be read: {outcomes.errors.get(i) or 'it is gone'}")
        else:
            try:
                found.append(decode_hint(span.key, span.into[0]))
            except (FormatError, SpecError) as error:
                found.append(str(error))
    return found


def find_text(tail: memoryview, digest: str | None) -> bytes | None:
    """Return the namespace text in the last bytes of an object, or None.

    The one place where a length agrees with where it stands needs no header, so that objects
    whose header is damaged still tell what they were. With ``digest`` the text must hash to it.
    """
    stop = len(tail) - TAG_BYTES
    for count in range(2, min(TEXT_LIMIT, stop - COUNT_BYTES) + 1):
        at = stop - count
        if tail[at] == _BRACE and int.from_bytes(tail[at - COUNT_BYTES : at], "little") == count:
            text = bytes(tail[at:stop])
            if digest is None or hash_text(text, NAMESPACE_CONTEXT) == digest:
                return text
    return None

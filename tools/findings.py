"""Findings: what inspect saw, as frozen values that print and turn into JSON. They read nothing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from unikv.canonical import Json

ChunkState: TypeAlias = Literal["ok", "unverified", "missing", "wrong_size", "damaged"]
"""What there is in place of a chunk; "unverified" is of the right size, its tags not checked."""

TagState: TypeAlias = Literal["ok", "bad", "absent", "keyed"]
"""Of bytes and their tag: "absent" if the object ends first, "keyed" if that takes a secret."""


@dataclass(frozen=True, slots=True)
class PartFacts:
    """One tensor inside every slab: K, V, a latent, rows or one part of a state."""

    name: str
    offset: int  # bytes from the start of the slab
    rows: int
    row_bytes: int  # all heads or groups of the chunk together


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """A namespace decoded. Sizes are bytes."""

    digest: str
    family: str
    model: (
        str  # label from a hint record or, with weights "unversioned", from the text; "" for none
    )
    announced: bool | None  # whether a hint record tells of it; None where none was looked for
    weights: str
    component: str
    spec: Mapping[str, Json]
    quant: str
    scales: str
    rope: Mapping[str, Json] | str
    numerics: str
    layer_cuts: tuple[int, ...]
    heads_per_chunk: int
    phases: int
    interleave: int
    chunks_per_page: int
    codec: str
    tags: str
    header_bytes: int
    slab_parts: tuple[PartFacts, ...]
    payload_bytes: int  # of a page, all chunks
    stored_bytes: int  # of a page: with headers and descriptions; with a codec, at most


@dataclass(frozen=True, slots=True)
class Fault:
    """An object that is not what its key says."""

    key: str
    where: str  # "size", "header", "slab 3", "payload", "description", "key", "read"
    detail: str


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A page that lacks chunks."""

    page: str
    missing: int
    chunks: tuple[str, ...]  # the first of them, as their keys end: "L0-15_H0"


@dataclass(frozen=True, slots=True)
class NamespaceContent:
    """What a store holds of a namespace. The lists of faults are cut at `survey.LISTED`."""

    namespace: NamespaceFacts
    objects: int
    bytes: int
    pages: int
    complete_pages: int
    incomplete_pages: int
    incomplete: tuple[Incomplete, ...]  # empty unless asked for
    wrong_size_objects: int
    wrong_size: tuple[Fault, ...]
    verified_objects: int
    unverified_objects: int  # asked to verify, but the tags are keyed and there is no key
    damaged_objects: int
    damaged: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Objects of a namespace that neither a hint record nor an object could tell of."""

    digest: str
    objects: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class StoreFindings:
    """All that a store holds."""

    form: Literal["store"]
    url: str
    verify: bool
    objects: int  # of namespaces, known or not
    bytes: int
    namespaces: tuple[NamespaceContent, ...]
    unknown: tuple[Unknown, ...]
    hint_records: int
    damaged_hints: tuple[Fault, ...]
    foreign_keys: int  # neither objects nor hint records: unikv wrote none of them
    foreign_bytes: int
    foreign: tuple[str, ...]  # the first of them

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged, and all could be verified where that was asked for."""
        return not (self.damaged_hints or (self.verify and self.unknown)) and not any(
            n.wrong_size_objects or n.damaged_objects or n.unverified_objects
            for n in self.namespaces
        )


@dataclass(frozen=True, slots=True)
class ChunkFinding:
    """One chunk of one page."""

    chunk: str  # as its key ends: "L0-15_H0"
    layers: tuple[int, int]
    heads: tuple[int, int]
    phase: int | None
    state: ChunkState
    size_bytes: int | None  # None where it is missing
    detail: str


@dataclass(frozen=True, slots=True)
class PageContent:
    """What there is of one page in one namespace. Several parents or indices disagree."""

    namespace: NamespaceFacts
    parents: tuple[str, ...]  # page hashes that the headers name; none at the root, or unknown
    page_indices: tuple[int, ...]
    chunks: tuple[ChunkFinding, ...]  # in the grid's order


@dataclass(frozen=True, slots=True)
class PageFindings:
    """One page in all namespaces."""

    form: Literal["page"]
    url: str
    page: str
    namespaces: tuple[PageContent, ...]
    unknown: tuple[Unknown, ...]
    foreign: tuple[str, ...]  # keys that begin with the page and name no chunk

    @property
    def ok(self) -> bool:
        """Whether no chunk is damaged or of a wrong size; a missing one is no damage."""
        return not any(
            c.state in ("damaged", "wrong_size") for n in self.namespaces for c in n.chunks
        )


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The fields of an object's header, as they are stored."""

    version: int
    codec: str
    tags: str
    header_bytes: int
    namespace: str
    page: str
    parent: str | None
    page_index: int | None
    layers: tuple[int, int]
    group: int | None
    phase: int | None
    slabs: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class TaggedBytes:
    """Bytes of an object that a tag covers, and whether they fit it."""

    what: str  # "header", "slab 3", "payload", "description"
    layer: int | None  # of the model, for a slab of a known namespace
    offset: int
    size_bytes: int
    tag: str  # 16 hex digits of the stored number; "" where it is not there
    state: TagState


@dataclass(frozen=True, slots=True)
class ObjectFindings:
    """One object."""

    form: Literal["object"]
    source: str  # URL or path
    key: str  # "" where neither a name nor a header tells it
    size_bytes: int
    wanted_bytes: (
        int | None
    )  # None where the namespace, or of a coded object the header, is not known
    header: HeaderFacts | None
    namespace: NamespaceFacts | None
    tagged: tuple[TaggedBytes, ...]  # header, slabs, payload, description
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing of it is damaged, as far as it could be verified."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class HintFindings:
    """One hint record."""

    form: Literal["hint"]
    source: str
    key: str
    size_bytes: int
    label: str
    namespace: NamespaceFacts | None
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether the record is of use."""
        return not self.faults


Findings: TypeAlias = StoreFindings | PageFindings | ObjectFindings | HintFindings


def as_json(findings: Findings) -> dict[str, object]:
    """Return findings as values that `json` writes; docs/inspect.md names every field."""
    return {**asdict(findings), "ok": findings.ok}

"""Object: one chunk of one page as stored bytes, made and checked. It knows no store and no rank.

Format source: docs/format.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from struct import pack_into

from unikv.codec import ZSTD, Codec, require_library
from unikv.codec_check import check_coded, read_lengths
from unikv.description import pack_description, parse_object_text
from unikv.errors import FormatError, GridError, KeyFormatError, SpecError
from unikv.expectation import Expectation
from unikv.grid import Chunk, Grid
from unikv.header import (
    NONE,
    PAGE,
    PAGE_INDEX_OFFSET,
    PARENT,
    PAYLOAD_BYTES,
    TAG_BYTES,
    Header,
    header_size,
    parse_header,
)
from unikv.keys import ObjectKey
from unikv.namespace import Namespace
from unikv.pages import check_page_hash
from unikv.seal import (
    MISFIT,
    Damage,
    bad_slabs,
    cuts_of,
    misfit,
    seal_header,
    seal_text,
)
from unikv.store import Buffer
from unikv.tags import (
    HEADER_SEED,
    PAYLOAD_SEED,
    SEED_MASK,
    Tag,
    key_seed,
    no_tag,
    tag_function,
)
from unikv.whole import Whole

__all__ = ["Damage", "Header", "ObjectFormat", "parse_header", "parse_object_text"]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectFormat:
    """How the objects of one namespace are written and checked. Build one with `of`.

    Safe to use from several threads. The tag key is in no ``repr`` and in no message, and no
    message tells what a tag should have been: with keyed tags that would forge one.
    """

    namespace: Namespace
    grid: Grid = field(repr=False)
    header_bytes: int  # H: one size for the namespace, from its largest chunk
    codec: Codec | None = field(repr=False)  # None: slabs are stored as they are
    _tag: Tag = field(repr=False)
    _description: bytes = field(repr=False)  # without its tag
    _by_suffix: dict[str, Chunk] = field(repr=False)  # suffix: the key behind page and digest
    _expectations: dict[int, Expectation] = field(default_factory=dict, repr=False)  # on first use

    @classmethod
    def of(cls, namespace: Namespace, tag_key: bytes | None = None) -> "ObjectFormat":
        """Return the format of a namespace; ``tag_key`` is the secret of keyed tags.

        Raises:
            SpecError: the tags need a key that is not there, or take none and there is one.
            MissingExtraError: the codec needs a library that is not installed.
        """
        if namespace.codec == ZSTD:
            require_library()
        return cls.to_check(namespace, tag_key)

    @classmethod
    def to_check(cls, namespace: Namespace, tag_key: bytes | None = None) -> "ObjectFormat":
        """Return a format for who checks what is stored, and moves none: it needs no library.

        Without the codec's, slabs are held against their tags alone.

        Raises:
            SpecError: as `of`.
        """
        return replace(cls.keyless(namespace), _tag=tag_function(namespace.tags, tag_key))

    @classmethod
    def keyless(cls, namespace: Namespace) -> "ObjectFormat":
        """Return a format for who asks for keys and sizes only: it needs no ``tag_key``.

        Its `encode` and `check` raise `SpecError`, whatever the tags.
        """
        grid = Grid.of(namespace)
        return cls(
            namespace,
            grid,
            header_size(max(chunk.slabs for chunk in grid.chunks)),
            Codec.of(grid) if namespace.codec == ZSTD else None,
            no_tag,
            pack_description(namespace.canonical),
            {chunk.suffix: chunk for chunk in grid.chunks},
        )

    @property
    def tag(self) -> Tag:
        """The tag algorithm, with its key if it takes one."""
        return self._tag

    def facts(self, chunk: Chunk) -> Expectation:
        """Return what all objects of a chunk have in common.

        Raises:
            GridError: the chunk is of another grid.
        """
        return self._expect(chunk)

    def object_bytes(self, chunk: Chunk) -> int:
        """Return the size in bytes of a chunk's object: header, payload and description.

        With a codec that is the most it can have; see `object_sizes`.
        """
        return self.header_bytes + chunk.payload_bytes + self._text_bytes

    def object_sizes(self, chunk: Chunk) -> range:
        """Return the sizes that a chunk's object can have: one, but many with a codec."""
        sizes, around = self._expect(chunk).payload_sizes, self.header_bytes + self._text_bytes
        return range(sizes.start + around, sizes.stop + around)

    def stored_bytes(self, lengths: Sequence[int]) -> int:
        """Return the size of an object whose slabs are stored in such lengths."""
        return self.header_bytes + sum(lengths) + self._text_bytes

    def key(self, page: str, chunk: Chunk) -> str:
        """Return the key of a chunk of the page with that hash (64 hex, not checked here)."""
        return page + self._expect(chunk).ending

    def encode(
        self,
        page: str,
        chunk: Chunk,
        payload: Buffer,
        *,
        parent: str | None = None,
        page_index: int | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the header and the description that go around ``payload``, which is not copied.

        Args:
            page: hash of the page, 64 hex.
            chunk: a chunk of `grid`.
            payload: contiguous bytes, ``chunk.payload_bytes`` of them: slab after slab.
            parent: hash of the page before, where there is one and the caller knows it.
            page_index: place of the page in its sequence, where the caller knows it.

        Raises:
            KeyFormatError: ``page`` or ``parent`` is no page hash.
            FormatError: the payload has another size than the chunk, or the index fits no u32.
            GridError: the chunk is of another grid.
            SpecError: the namespace has a codec: its objects are made by `compose`.
        """
        if self.codec is not None:
            raise SpecError(f"codec {self.namespace.codec!r} stores another payload: want compose")
        facts, view = self._expect(chunk), memoryview(payload).cast("B")
        _check_payload(facts, view)
        lengths = (facts.slab_bytes,) * facts.slabs
        return self._seal(page, facts, view, lengths, parent, page_index)

    def compose(
        self,
        page: str,
        chunk: Chunk,
        payload: Buffer,
        *,
        parent: str | None = None,
        page_index: int | None = None,
    ) -> tuple[Buffer, Buffer, Buffer]:
        """Return a whole object as its header, stored payload and description.

        The stored payload is ``payload`` itself, or what the codec makes of it. See `encode`.
        """
        if self.codec is None:
            ends = self.encode(page, chunk, payload, parent=parent, page_index=page_index)
            return ends[0], payload, ends[1]
        facts, view = self._expect(chunk), memoryview(payload).cast("B")
        _check_payload(facts, view)
        forms = self.codec.pack(view)
        stored, lengths = b"".join(forms), tuple(map(len, forms))
        ends = self._seal(page, facts, memoryview(stored), lengths, parent, page_index)
        return ends[0], stored, ends[1]

    def _seal(
        self,
        page: str,
        facts: Expectation,
        stored: memoryview,
        lengths: tuple[int, ...],
        parent: str | None,
        page_index: int | None,
    ) -> tuple[bytes, bytes]:
        """Return the header and the description that go around a stored payload."""
        check_page_hash(page)
        head = bytearray(facts.template)
        head[PAGE] = bytes.fromhex(page)
        if parent is not None:
            check_page_hash(parent)
            head[PARENT] = bytes.fromhex(parent)
        if page_index is not None:
            if not 0 <= page_index < NONE:
                raise FormatError(f"page index {page_index}: want 0 to {NONE - 1}, or None")
            pack_into("<I", head, PAGE_INDEX_OFFSET, page_index)
        cuts = facts.cuts
        if facts.coded:
            cuts = cuts_of(lengths)
            head[PAYLOAD_BYTES] = len(stored).to_bytes(8, "little")
        tag, seed = self._tag, key_seed(page + facts.ending)
        seal_header(tag, seed, head, stored, cuts, lengths)
        return bytes(head), seal_text(tag, seed, self._description)

    def check(
        self,
        page: str,
        chunk: Chunk,
        data: memoryview,
        first_slab: int = 0,
        slabs: int | None = None,
    ) -> Damage | None:
        """Return what is wrong with the bytes that a read brought, None when nothing is.

        ``data`` is the header and, right behind it, slabs ``first_slab`` and on as they are
        stored: ``slabs`` of them, by default all that follow. A whole payload costs one hash; a
        part of it, or finding the bad slab of a whole one, a hash a slab. No content of ``data``
        makes this raise.

        Raises:
            GridError: the chunk is of another grid, or has no such slabs.
        """
        if slabs is None:
            slabs = self._expect(chunk).slabs - first_slab
        size = self.header_bytes
        return self.check_apart(page, chunk, data[:size], data[size:], first_slab, slabs)

    def check_apart(
        self,
        page: str,
        chunk: Chunk,
        header: memoryview,
        body: memoryview,
        first_slab: int,
        slabs: int,
    ) -> Damage | None:
        """Do as `check`, for a header and slabs that do not lie side by side.

        Raises:
            GridError: the chunk is of another grid, or has no such slabs.
        """
        facts = self._expect(chunk)
        if not (first_slab >= 0 and 0 <= slabs <= facts.slabs - first_slab):
            raise GridError(
                f"{slabs} slabs from slab {first_slab}: chunk {chunk.suffix} has {facts.slabs}"
            )
        if facts.coded:
            return check_coded(self._tag, facts, page, header, body, first_slab, slabs)
        key = page + facts.ending
        if len(header) != self.header_bytes or len(body) != slabs * facts.slab_bytes:
            wanted = self.header_bytes + slabs * facts.slab_bytes
            return Damage(key, "size", f"{len(header) + len(body)} bytes were read, want {wanted}")
        # Each line below runs for every object of every load: calls are spelled out on purpose.
        head, tag, seed = bytes(header[:-TAG_BYTES]), self._tag, key_seed(key)
        name, payload_tag, header_tag = facts.variable.unpack_from(header)
        if not facts.met_by(head) or name != bytes.fromhex(page):
            return Damage(key, "header", facts.difference(head, bytes.fromhex(page)))
        if tag(head, seed + HEADER_SEED & SEED_MASK) != header_tag:
            return Damage(key, "header", MISFIT)
        whole = slabs == facts.slabs
        if whole and tag(body, seed + PAYLOAD_SEED & SEED_MASK) == payload_tag:
            return None
        bad = bad_slabs(tag, seed, head, body, facts.cuts[:slabs], first_slab)
        return misfit(key, bad, whole=whole)

    def read_lengths(self, page: str, chunk: Chunk, header: memoryview) -> tuple[int, ...] | Damage:
        """Return in how many bytes each slab of an object is stored, or what is wrong.

        Only of a header that is this object's and fits its tag; each length is 1 to the slab's.

        Raises:
            GridError: the chunk is of another grid.
        """
        return read_lengths(self._tag, self._expect(chunk), page, header)

    def check_object(self, key: str, data: Buffer) -> list[Damage]:
        """Return all that is wrong with a whole stored object, description included.

        Each slab is hashed, and the payload once more. No content of ``key`` or ``data`` makes
        this raise; a key that is none of this namespace's is damage of the "key".
        """
        facts = self._find(key)
        if facts is None:
            detail = f"it names no chunk of namespace {self.namespace.digest}"
            return [Damage(key, "key", detail)]
        view = memoryview(data).cast("B")
        whole = Whole(self._tag, key_seed(key), key, facts, self._description, self.codec, view)
        return [*whole.find_damage()]

    @property
    def _text_bytes(self) -> int:
        return len(self._description) + TAG_BYTES

    def _find(self, key: str) -> Expectation | None:
        try:
            named = ObjectKey.parse(key)
        except KeyFormatError:
            return None
        chunk = self._by_suffix.get(key[len(named.page) + len(named.namespace) + 2 :])
        if chunk is None or named.namespace != self.namespace.digest:
            return None
        return self._expect(chunk)

    def _expect(self, chunk: Chunk) -> Expectation:
        facts = self._expectations.get(chunk.index)
        if facts is None and self._by_suffix.get(chunk.suffix) == chunk:
            facts = Expectation.of(self.namespace, chunk, self.header_bytes)
            self._expectations[chunk.index] = facts
        if facts is None or (facts.chunk is not chunk and facts.chunk != chunk):
            raise GridError(
                f"chunk {chunk.suffix}, number {chunk.index}: want one of "
                f"the {len(self.grid.chunks)} of this format's grid"
            )
        return facts


def _check_payload(facts: Expectation, payload: memoryview) -> None:
    if len(payload) != facts.payload_bytes:
        raise FormatError(
            f"payload of {len(payload)} bytes for chunk {facts.chunk.suffix}: want {facts.slabs} "
            f"slabs of {facts.slab_bytes} bytes, {facts.payload_bytes} in all"
        )

"""Expectation: what a reader knows of a chunk's objects before it has read one, header included.

It trusts no stored byte and computes no tag.
"""

from dataclasses import dataclass
from struct import Struct

from unikv.grid import Chunk
from unikv.header import (
    ENTRY_BYTES,
    MAGIC,
    NONE,
    PAGE,
    PAYLOAD_BYTES,
    PAYLOAD_TAG_OFFSET,
    TABLE_OFFSET,
    TAG_BYTES,
    Header,
    Slab,
    pack_header,
    version_text,
)
from unikv.namespace import Namespace

_PAYLOAD_LENGTH = "payload length"
_FIELDS = (  # name, start, stop; in the order in which somebody at a loss wants to hear of them
    ("magic", 0, 8),
    ("version", 8, 10),
    ("flags", 10, 12),
    ("header size", 12, 16),
    ("namespace", 16, 32),
    ("page", 32, 64),
    ("layer start", 100, 104),
    ("layer stop", 104, 108),
    ("group", 108, 112),
    ("phase", 112, 116),
    ("slabs", 116, 120),
    (_PAYLOAD_LENGTH, 120, 128),
)
_HEX = frozenset({"namespace", "page"})


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """What all objects of one chunk have in common, whatever page they hold."""

    chunk: Chunk
    ending: str  # of the key, behind the page hash
    slabs: int
    slab_bytes: int
    payload_bytes: int
    payload_sizes: range  # what it can be stored in: one size, but many with a codec
    cuts: tuple[slice, ...]  # each slab in the payload
    template: bytes  # the header with page, parent and tags zero, page index unknown
    wanted: int  # the template as one little-endian number, under the mask
    mask: int  # zero over what differs between objects: page, parent, page index, tags
    variable: Struct  # of a whole header: page, payload tag, header tag
    table: Struct  # of a header, from the slab table on: each slab's stored length
    coded: bool  # slabs are stored by a codec, each in as many bytes as the header tells

    @classmethod
    def of(cls, namespace: Namespace, chunk: Chunk, header_bytes: int) -> "Expectation":
        """Return what is expected of the objects of ``chunk``, with headers of that size."""
        slabs, size, coded = chunk.slabs, chunk.slab_bytes, namespace.codec != "none"
        header = Header(
            codec=namespace.codec,
            tags=namespace.tags,
            header_bytes=header_bytes,
            namespace=namespace.digest,
            page="00" * 32,
            parent=None,
            page_index=None,
            layers=chunk.layers,
            group=chunk.group,
            phase=chunk.phase,
            payload_bytes=chunk.payload_bytes,
            payload_tag=0,
            table=(Slab(0, size),) * slabs,
            tag=0,
        )
        template = pack_header(header)
        mask = _mask(header_bytes, slabs, coded=coded)
        return cls(
            chunk=chunk,
            ending=f"_{namespace.digest}_{chunk.suffix}",
            slabs=slabs,
            slab_bytes=size,
            payload_bytes=chunk.payload_bytes,
            payload_sizes=range(slabs if coded else chunk.payload_bytes, chunk.payload_bytes + 1),
            cuts=tuple(slice(i * size, (i + 1) * size) for i in range(slabs)),
            template=template,
            wanted=int.from_bytes(template, "little") & mask,
            mask=mask,
            variable=Struct(f"<32x32s64xQ{header_bytes - PAYLOAD_TAG_OFFSET - 2 * TAG_BYTES}xQ"),
            table=Struct("<" + "8xI4x" * slabs),
            coded=coded,
        )

    def met_by(self, body: bytes) -> bool:
        """Tell whether ``body``, a header less its tag, is one of this chunk, of whatever page.

        One comparison of two long numbers covers every field and every reserved byte. The page
        differs between objects, so that comparing it is left to the caller. Of coded objects the
        lengths, which differ as well, are such as slabs can have.
        """
        met = int.from_bytes(body, "little") & self.mask == self.wanted
        return met and (not self.coded or self._length_flaw(body) is None)

    def lengths(self, head: bytes) -> tuple[int, ...]:
        """Return the stored bytes of each slab of an object whose header is ``head``."""
        return self.table.unpack_from(head, TABLE_OFFSET)

    def difference(self, head: bytes, page: bytes) -> str:
        """Return a sentence on the first field in which ``head`` differs, with both values."""
        want = bytearray(self.template)
        want[PAGE] = page
        for name, start, stop in _FIELDS:
            found, wanted = head[start:stop], bytes(want[start:stop])
            if found == wanted or (self.coded and name == _PAYLOAD_LENGTH):
                continue
            if name == "magic":
                return f"no unikv object: begins with {found!r}, want {MAGIC!r}"
            if name == "version":
                return version_text(int.from_bytes(found, "little"))
            if name in _HEX:
                return f"{name} {found.hex()}, want {wanted.hex()}"
            return f"{name} {_number(found)}, want {_number(wanted)}"
        return self._length_flaw(head) or "reserved bytes are not zero"

    def _length_flaw(self, head: bytes) -> str | None:
        """Return a sentence on the first length that no object of this chunk can have."""
        lengths = self.lengths(head)
        least, most = 1 if self.coded else self.slab_bytes, self.slab_bytes
        for slab, stored in enumerate(lengths):
            if not least <= stored <= most:
                wanted = f"{least} to {most}" if self.coded else f"{most}"
                return f"stored length of slab {slab} {stored}, want {wanted}"
        told = int.from_bytes(head[PAYLOAD_BYTES], "little")
        if (total := sum(lengths)) != told:
            return f"payload length {told}, want {total}: what its slabs have"
        return None


def _mask(header_bytes: int, slabs: int, *, coded: bool) -> int:
    table_stop = TABLE_OFFSET + ENTRY_BYTES * slabs
    entries = range(TABLE_OFFSET, table_stop, ENTRY_BYTES)
    mask = bytearray(b"\xff" * (header_bytes - TAG_BYTES))
    mask[32:100] = bytes(68)  # page: compared apart; parent and page index: never
    for at in (PAYLOAD_TAG_OFFSET, *entries):
        mask[at : at + TAG_BYTES] = bytes(TAG_BYTES)
    if coded:
        mask[PAYLOAD_BYTES] = bytes(8)
        for at in entries:
            mask[at + TAG_BYTES : at + TAG_BYTES + 4] = bytes(4)
    return int.from_bytes(mask, "little")


def _number(field: bytes) -> str:
    value = int.from_bytes(field, "little")
    return "none" if value == NONE and len(field) == 4 else str(value)

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
    PAYLOAD_TAG_OFFSET,
    TABLE_OFFSET,
    TAG_BYTES,
    Header,
    Slab,
    pack_header,
    version_text,
)
from unikv.namespace import Namespace

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
    ("payload length", 120, 128),
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
    cuts: tuple[slice, ...]  # each slab in the payload
    template: bytes  # the header with page, parent and tags zero, page index unknown
    wanted: int  # the template as one little-endian number, under the mask
    mask: int  # zero over what differs between objects: page, parent, page index, tags
    variable: Struct  # of a whole header: page, payload tag, header tag

    @classmethod
    def of(cls, namespace: Namespace, chunk: Chunk, header_bytes: int) -> "Expectation":
        """Return what is expected of the objects of ``chunk``, with headers of that size."""
        slabs, size = chunk.slabs, chunk.slab_bytes
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
        mask = _mask(header_bytes, slabs)
        return cls(
            chunk=chunk,
            ending=f"_{namespace.digest}_{chunk.suffix}",
            slabs=slabs,
            slab_bytes=size,
            payload_bytes=chunk.payload_bytes,
            cuts=tuple(slice(i * size, (i + 1) * size) for i in range(slabs)),
            template=template,
            wanted=int.from_bytes(template, "little") & mask,
            mask=mask,
            variable=Struct(f"<32x32s64xQ{header_bytes - PAYLOAD_TAG_OFFSET - 2 * TAG_BYTES}xQ"),
        )

    def met_by(self, body: bytes) -> bool:
        """Tell whether ``body``, a header less its tag, is one of this chunk, of whatever page.

        One comparison of two long numbers covers every field and every reserved byte. The page
        differs between objects, so that comparing it is left to the caller.
        """
        return int.from_bytes(body, "little") & self.mask == self.wanted

    def difference(self, head: bytes, page: bytes) -> str:
        """Return a sentence on the first field in which ``head`` differs, with both values."""
        want = bytearray(self.template)
        want[PAGE] = page
        for name, start, stop in _FIELDS:
            found, wanted = head[start:stop], bytes(want[start:stop])
            if found == wanted:
                continue
            if name == "magic":
                return f"no unikv object: begins with {found!r}, want {MAGIC!r}"
            if name == "version":
                return version_text(int.from_bytes(found, "little"))
            if name in _HEX:
                return f"{name} {found.hex()}, want {wanted.hex()}"
            return f"{name} {_number(found)}, want {_number(wanted)}"
        for slab in range(self.slabs):
            at = TABLE_OFFSET + ENTRY_BYTES * slab + TAG_BYTES
            if (stored := int.from_bytes(head[at : at + 4], "little")) != self.slab_bytes:
                return f"stored length of slab {slab} {stored}, want {self.slab_bytes}"
        return "reserved bytes are not zero"


def _mask(header_bytes: int, slabs: int) -> int:
    table_stop = TABLE_OFFSET + ENTRY_BYTES * slabs
    tags = [PAYLOAD_TAG_OFFSET, *range(TABLE_OFFSET, table_stop, ENTRY_BYTES)]
    mask = bytearray(b"\xff" * (header_bytes - TAG_BYTES))
    mask[32:100] = bytes(68)  # page: compared apart; parent and page index: never
    for at in tags:
        mask[at : at + TAG_BYTES] = bytes(TAG_BYTES)
    return int.from_bytes(mask, "little")


def _number(field: bytes) -> str:
    value = int.from_bytes(field, "little")
    return "none" if value == NONE and len(field) == 4 else str(value)

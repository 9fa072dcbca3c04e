"""Header: the fixed-size front of a stored object, field by field. It knows no namespace or grid.

Format source: docs/format.md, "Header".
"""

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from unikv.errors import FormatError, KeyFormatError
from unikv.geometry import Interval
from unikv.keys import ObjectKey
from unikv.store import Buffer
from unikv.tags import TAG_NUMBERS

MAGIC = b"\x89UKV\r\n\x1a\n"
VERSION = 1
CODEC_NUMBERS: dict[str, int] = {"none": 0, "zstd": 1}
"""Each codec and its number in bits 0..3 of the flags."""

ALIGN = 512
"""What H is a multiple of, so that payloads start where unbuffered reads may start."""

TABLE_OFFSET = 160
ENTRY_BYTES = 16
TAG_BYTES = 8
NONE = 0xFFFFFFFF
"""Stands for no group, no phase and an unknown page index."""

PAGE = slice(32, 64)
PARENT = slice(64, 96)
PAGE_INDEX_OFFSET = 96
PAYLOAD_BYTES = slice(120, 128)
PAYLOAD_TAG_OFFSET = 128

_FIXED = Struct("<8sHHI16s32s32s6IQQ24s")
_ENTRY = Struct("<QII")
_NO_PARENT = bytes(32)


class Slab(NamedTuple):
    """One row of the slab table: the tag of the slab's stored bytes, and how many they are."""

    tag: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Every field of an object's header. `parse_header` and `pack_header` are exact inverses."""

    codec: str
    tags: str  # name of the tag algorithm
    header_bytes: int  # H
    namespace: str  # digest, 32 hex
    page: str  # hash, 64 hex
    parent: str | None  # hash of the page before; None at the root, or not known to the writer
    page_index: int | None  # place of the page in its sequence, where the writer knew it
    layers: Interval  # ordinals
    group: int | None
    phase: int | None
    payload_bytes: int  # stored bytes of all slabs
    payload_tag: int
    table: tuple[Slab, ...]
    tag: int  # of the header's other bytes
    version: int = VERSION

    @property
    def slabs(self) -> int:
        """How many slabs the payload has: one a layer."""
        return len(self.table)

    @property
    def key(self) -> ObjectKey:
        """The key that an object with this header belongs under."""
        return ObjectKey(self.page, self.namespace, self.layers, self.group, self.phase)


def header_size(max_slabs: int) -> int:
    """Return H, in bytes, of a namespace whose largest chunk has ``max_slabs`` slabs."""
    used = TABLE_OFFSET + ENTRY_BYTES * max_slabs + TAG_BYTES
    return -(-used // ALIGN) * ALIGN


def pack_header(header: Header) -> bytes:
    """Return the ``header_bytes`` bytes of a header whose values fit their fields."""
    fixed = _FIXED.pack(
        MAGIC,
        header.version,
        CODEC_NUMBERS[header.codec] | TAG_NUMBERS[header.tags] << 4,
        header.header_bytes,
        bytes.fromhex(header.namespace),
        bytes.fromhex(header.page),
        _NO_PARENT if header.parent is None else bytes.fromhex(header.parent),
        _or_none(header.page_index),
        header.layers.start,
        header.layers.stop,
        _or_none(header.group),
        _or_none(header.phase),
        header.slabs,
        header.payload_bytes,
        header.payload_tag,
        b"",
    )
    table = b"".join(_ENTRY.pack(slab.tag, slab.stored_bytes, 0) for slab in header.table)
    body = (fixed + table).ljust(header.header_bytes - TAG_BYTES, b"\0")
    return body + header.tag.to_bytes(TAG_BYTES, "little")


def parse_header(data: Buffer) -> Header:
    """Return the header that ``data`` begins with. Its tags are read, not checked.

    Nothing in ``data`` is trusted: sizes in it must fit the bytes that are there, and every bit
    that has no meaning must be zero.

    Raises:
        FormatError: the bytes are no header of this format version, or contradict themselves.
    """
    view = memoryview(data).cast("B")
    if view[:8] != MAGIC:
        raise FormatError(f"no unikv object: begins with {bytes(view[:8])!r}, want {MAGIC!r}")
    if len(view) < TABLE_OFFSET:
        raise FormatError(f"{len(view)} bytes: want a header of {ALIGN} or more")
    fields = _FIXED.unpack_from(view)
    _, version, flags, size, namespace, page, parent, index, *coordinates, spare = fields
    start, stop, group, phase, slabs, payload_bytes, payload_tag = coordinates
    if version != VERSION:
        raise FormatError(version_text(version))
    codec, tags = _flag_names(flags)
    if size % ALIGN or not header_size(slabs) <= size <= len(view):
        raise FormatError(
            f"header of {size} bytes for {slabs} slabs: want a multiple of {ALIGN} from "
            f"{header_size(slabs)} to the {len(view)} bytes that are there"
        )
    if not (start < stop and stop - start == slabs):
        raise FormatError(f"layers {start}..{stop} with {slabs} slabs: want one a layer")
    end = TABLE_OFFSET + ENTRY_BYTES * slabs
    rows = list(_ENTRY.iter_unpack(view[TABLE_OFFSET:end]))
    if any(spare) or any(view[end : size - TAG_BYTES]) or any(zero for _, _, zero in rows):
        raise FormatError("reserved bytes of the header are not zero")
    table = tuple(Slab(tag, stored) for tag, stored, _ in rows)
    if (total := sum(slab.stored_bytes for slab in table)) != payload_bytes:
        raise FormatError(f"payload of {payload_bytes} bytes: its slabs have {total}")
    header = Header(
        codec=codec,
        tags=tags,
        header_bytes=size,
        namespace=namespace.hex(),
        page=page.hex(),
        parent=None if parent == _NO_PARENT else parent.hex(),
        page_index=_unless_none(index),
        layers=Interval(start, stop),
        group=_unless_none(group),
        phase=_unless_none(phase),
        payload_bytes=payload_bytes,
        payload_tag=payload_tag,
        table=table,
        tag=int.from_bytes(view[size - TAG_BYTES : size], "little"),
    )
    try:
        header.key  # noqa: B018 - its parts are checked as it is made
    except KeyFormatError as error:
        raise FormatError(f"header of no possible key: {error}") from error
    return header


def version_text(found: int) -> str:
    """Return the sentence on an object of a format version that is not ours."""
    return f"format version {found}: this reader knows version {VERSION}"


def _or_none(value: int | None) -> int:
    return NONE if value is None else value


def _unless_none(value: int) -> int | None:
    return None if value == NONE else value


def _flag_names(flags: int) -> tuple[str, str]:
    for codec, codec_number in CODEC_NUMBERS.items():
        for tags, tags_number in TAG_NUMBERS.items():
            if flags == codec_number | tags_number << 4:
                return codec, tags
    raise FormatError(
        f"flags {flags:#06x}: want codec 0 or 1 in bits 0..3, tag algorithm 0 or 1 in bits 4..7"
    )

"""Codec: slabs in the stored form of codec zstd, made and taken apart. It knows no header, no tag.

Format source: docs/format.md, "Codec zstd".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from unikv.dtypes import DTYPES
from unikv.errors import FormatError, MissingExtraError
from unikv.grid import Grid
from unikv.spec import KVSpec
from unikv.store import Buffer

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

ZSTD = "zstd"

LEVEL = 1
"""Higher levels take longer and, of real KV, leave more: benchmarks/bench_codec.py."""

WORTH = 16
"""A plane is compressed where that spares a byte in so many; less costs readers more than it saves.

The low bytes of 16-bit numbers are all but noise: they are stored as they are.
"""

_MAGIC = b"\x28\xb5\x2f\xfd"
_LEAST_WINDOW, _MOST_WINDOW = 1 << 10, 1 << 31  # what the library takes as a limit


class Flaw(NamedTuple):
    """Which slab, counted from the first of those to unpack, is no stored form, and why."""

    slab: int
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """How slabs of one size and make are stored, never longer than they are.

    It keeps no state: safe to use from several threads.
    """

    slab_bytes: int
    planes: tuple[slice, ...]  # of a slab, in stored order; each is compressed by itself
    sizes: tuple[int, ...] = field(init=False)  # bytes of each plane
    table: Struct = field(init=False)  # stored bytes of each plane, in front of them

    def __post_init__(self) -> None:
        sizes = tuple(len(range(self.slab_bytes)[plane]) for plane in self.planes)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "table", Struct(f"<{len(sizes)}I"))

    @classmethod
    def of(cls, grid: Grid) -> "Codec":
        """Return the codec of a grid's slabs: a plane for each byte of an element.

        Parts side by side whose elements have one size share their planes.
        """
        planes: list[slice] = []
        start = width = 0
        parts = zip(grid.part_offsets, _element_sizes(grid.spec), strict=True)
        for at, size in [*((part.offset, size) for part, size in parts), (grid.slab_bytes, 0)]:
            if size != width:
                planes += (slice(start + byte, at, width) for byte in range(width))
                start, width = at, size
        return cls(grid.slab_bytes, tuple(planes))

    def pack(self, payload: memoryview) -> list[Buffer]:
        """Return the stored form of each slab of a payload; some may be views of it."""
        import zstandard

        tool, size = zstandard.ZstdCompressor(level=LEVEL), self.slab_bytes
        return [self._pack(tool, payload[at : at + size]) for at in range(0, len(payload), size)]

    def unpack(self, stored: memoryview, lengths: Sequence[int], into: memoryview) -> Flaw | None:
        """Fill ``into`` with slabs whose stored forms, of such ``lengths``, are ``stored``.

        ``stored`` may be the end of ``into``: since no stored form is longer than its slab, a slab
        covers none that comes after it. It has a copy of its own stored form. Memory is taken by
        ``slab_bytes`` alone, whatever the stored numbers are.
        """
        import numpy as np
        import zstandard

        window = min(max(self.slab_bytes, _LEAST_WINDOW), _MOST_WINDOW)
        tool = zstandard.ZstdDecompressor(max_window_size=window)
        slabs = np.frombuffer(into, np.uint8).reshape(len(lengths), self.slab_bytes)
        at = 0
        for n, length in enumerate(lengths):
            form = bytes(stored[at : at + length])
            at += length
            if length == self.slab_bytes:
                slabs[n] = np.frombuffer(form, np.uint8)
                continue
            try:
                parts = self._cut(form)
                for plane, size, part in zip(self.planes, self.sizes, parts, strict=True):
                    whole = part if len(part) == size else _inflate(tool, part, size)
                    slabs[n, plane] = np.frombuffer(whole, np.uint8)
            except FormatError as error:
                return Flaw(n, str(error))
        return None

    def _pack(self, tool: "ZstdCompressor", slab: memoryview) -> Buffer:
        import numpy as np

        whole = np.frombuffer(slab, np.uint8)
        parts: list[Buffer] = []
        for plane, size in zip(self.planes, self.sizes, strict=True):
            part = np.ascontiguousarray(whole[plane]).data
            frame = tool.compress(part)
            parts.append(frame if len(frame) < size - size // WORTH else part)
        form = b"".join([self.table.pack(*map(len, parts)), *parts])
        return form if len(form) < len(slab) else slab

    def _cut(self, form: bytes) -> list[bytes]:
        """Return the stored bytes of each plane of a slab that is not stored as it is."""
        front = self.table.size
        if len(form) < front:
            raise FormatError(f"{len(form)} bytes: want lengths of planes, {front} bytes, and more")
        lengths = self.table.unpack_from(form)
        if sum(lengths) != len(form) - front:
            raise FormatError(f"planes of {sum(lengths)} bytes in {len(form) - front}")
        parts, at = [], front
        for length, size in zip(lengths, self.sizes, strict=True):
            if not 0 < length <= size:
                raise FormatError(f"a plane of {length} bytes: want 1 to {size}")
            parts.append(form[at : at + length])
            at += length
        return parts


def has_library() -> bool:
    """Tell whether there is what unpacking takes, which inspection does without if it must."""
    try:
        import numpy as np  # noqa: F401 - to see whether it is there
        import zstandard  # noqa: F401 - likewise
    except ImportError:
        return False
    return True


def require_library() -> None:
    """Raise `MissingExtraError` unless the codec's library is installed."""
    if not has_library():
        raise MissingExtraError(
            "codec 'zstd' needs zstandard: pip install 'unikv[zstd]'", name="zstandard"
        )


def _element_sizes(spec: KVSpec) -> list[int]:
    """Return the bytes of an element of each of a spec's parts."""
    if spec.kind == "state":
        return [DTYPES[part.dtype] for part in spec.state_parts for _ in part.segments or (0,)]
    return [DTYPES[spec.dtype]] * len(spec.parts)


def _inflate(tool: "ZstdDecompressor", frame: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that one zstd frame, and nothing else, holds.

    Raises:
        FormatError: it is no such frame. The size that it tells is compared before it is used.
    """
    import zstandard

    if not frame.startswith(_MAGIC):
        raise FormatError(f"a plane begins with {frame[:4].hex()}, want a zstd frame")
    try:
        told = zstandard.get_frame_parameters(frame)
        if told.content_size != size or told.dict_id:
            raise FormatError(
                f"a zstd frame of {told.content_size} bytes, dictionary {told.dict_id}: "
                f"want {size} bytes and no dictionary"
            )
        return tool.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame that is damaged: {error!s:.100}") from error

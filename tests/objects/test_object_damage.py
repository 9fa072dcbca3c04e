"""Damaged objects: no flipped, missing, swapped or foreign byte passes a check that covers it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from unikv.grid import Chunk
from unikv.namespace import Namespace
from unikv.objects import Damage, ObjectFormat, parse_header, parse_object_text

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("v1-*.bin"))
TAG_KEY = bytes(range(32))


class Stored(NamedTuple):
    """A golden object with what its reader knows."""

    form: ObjectFormat
    key: str
    chunk: Chunk
    data: bytes

    @property
    def page(self) -> str:
        return self.key[:64]

    @property
    def payload_stop(self) -> int:
        return self.form.header_bytes + self.chunk.payload_bytes

    def check(self, data: bytes, first: int = 0, slabs: int | None = None) -> Damage | None:
        """Check as a load does: the header and some slabs of a stored object, side by side."""
        size, slab = self.form.header_bytes, self.chunk.slab_bytes
        count = self.chunk.slabs - first if slabs is None else slabs
        start = size + first * slab
        read = data[:size] + data[start : start + count * slab]
        return self.form.check(self.page, self.chunk, memoryview(read), first, slabs)

    def place(self, byte: int) -> str:
        """Name the part of the object that a byte lies in."""
        if byte < self.form.header_bytes:
            return "header"
        if byte < self.payload_stop:
            return f"slab {(byte - self.form.header_bytes) // self.chunk.slab_bytes}"
        return "description"


def load(name: str) -> Stored:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    namespace = Namespace.parse(parse_object_text(data))
    form = ObjectFormat.of(namespace, TAG_KEY if "keyed" in name else None)
    key = str(parse_header(data).key)
    suffix = key.split("_", 2)[2]
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == suffix)
    return Stored(form, key, chunk, data)


def flip(data: bytes, byte: int, bits: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ bits]) + data[byte + 1 :]


every_kind = pytest.mark.parametrize("name", NAMES)


@every_kind
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_B56_no_flipped_byte_passes_a_check_that_covers_it(name: str, bits: int) -> None:
    stored = load(name)
    for byte in range(len(stored.data)):
        bad = flip(stored.data, byte, bits)
        place = stored.place(byte)
        found = stored.check(bad)
        assert (found and found.where) == (None if place == "description" else place), byte
        assert [damage.where for damage in stored.form.check_object(stored.key, bad)] == (
            ["header", *_slab_of_entry(stored, byte)] if place == "header" else [place]
        ), byte


def _slab_of_entry(stored: Stored, byte: int) -> list[str]:
    """Name what else an inspection reports when the flipped header byte was itself a tag."""
    if 128 <= byte < 136:
        return ["payload"]
    row, column = divmod(byte - 160, 16)
    return [f"slab {row}"] if 0 <= row < stored.chunk.slabs and column < 8 else []


@every_kind
def test_no_flipped_byte_passes_a_partial_check_that_covers_it(name: str) -> None:
    stored = load(name)
    for byte in range(stored.payload_stop):
        bad = flip(stored.data, byte, 0x10)
        place = stored.place(byte)
        for slab in range(stored.chunk.slabs):
            found = stored.check(bad, slab, 1)
            covered = place in ("header", f"slab {slab}")
            assert (found and found.where) == (place if covered else None), (byte, slab)


@every_kind
def test_no_truncation_passes(name: str) -> None:
    stored = load(name)
    for size in range(len(stored.data)):
        short = stored.data[:size]
        if size < stored.payload_stop:
            damage = stored.form.check(stored.page, stored.chunk, memoryview(short))
            assert damage is not None
            assert damage.where == "size"
        assert stored.form.check_object(stored.key, short)[0].where == "size"


@every_kind
def test_torn_objects_of_the_right_size_are_found(name: str) -> None:
    """A file system may keep the size of a file and lose its tail, which then reads as zeros."""
    stored = load(name)
    for size in range(len(stored.data)):
        torn = stored.data[:size].ljust(len(stored.data), b"\0")
        if torn == stored.data:
            continue
        assert stored.form.check_object(stored.key, torn), size
        if torn[: stored.payload_stop] != stored.data[: stored.payload_stop]:
            assert stored.check(torn), size


@every_kind
def test_objects_with_bytes_behind_them_are_found(name: str) -> None:
    stored = load(name)
    found = stored.form.check_object(stored.key, stored.data + b"\0")
    assert [damage.where for damage in found] == ["size"]


@every_kind
def test_an_empty_file_is_damage_of_its_size(name: str) -> None:
    stored = load(name)
    damage = stored.form.check(stored.page, stored.chunk, memoryview(b""))
    assert damage is not None
    assert damage.where == "size"
    assert [found.where for found in stored.form.check_object(stored.key, b"")] == ["size"]


@every_kind
@pytest.mark.parametrize(
    "filler", [b"\0", b"\xff", b"\x89UKV\r\n\x1a\n"], ids=["00", "ff", "magic"]
)
def test_noise_of_the_right_size_is_found(name: str, filler: bytes) -> None:
    stored = load(name)
    noise = (filler * len(stored.data))[: len(stored.data)]
    damage = stored.check(noise)
    assert damage is not None
    assert damage.where == "header"
    assert [found.where for found in stored.form.check_object(stored.key, noise)] == ["header"]


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).chunk.slabs > 1])
def test_slabs_rotated_in_the_payload_are_named(name: str) -> None:
    stored = load(name)
    size, slab, stop = stored.form.header_bytes, stored.chunk.slab_bytes, stored.payload_stop
    body = stored.data[size:stop]
    rotated = stored.data[:size] + body[slab:] + body[:slab] + stored.data[stop:]
    damage = stored.check(rotated)
    assert damage is not None
    assert damage.where == "slab 0"
    assert stored.key in str(damage)
    places = [found.where for found in stored.form.check_object(stored.key, rotated)]
    assert places == [f"slab {i}" for i in range(stored.chunk.slabs)]


@every_kind
def test_an_object_of_another_namespace_is_named(name: str) -> None:
    stored = load(name)
    for other in map(load, NAMES):
        if other.form.namespace == stored.form.namespace:
            continue
        foreign = other.data.ljust(len(stored.data), b"\0")[: len(stored.data)]
        damage = stored.check(foreign)
        assert damage is not None
        assert damage.where == "header"
        tags_differ = other.form.namespace.tags != stored.form.namespace.tags
        assert damage.detail.startswith("flags" if tags_differ else "namespace")
        assert stored.form.check_object(stored.key, foreign)


@every_kind
def test_a_key_of_no_chunk_of_ours_is_damage_too(name: str) -> None:
    stored = load(name)
    page, digest, suffix = stored.key.split("_", 2)
    for key in (
        "",
        "_",
        page,
        f"{page}_{digest}",
        f"{page}_{digest}_L0-60000",
        f"{page}_{'0' * 32}_{suffix}",
        f"{page.upper()}_{digest}_{suffix}",
        f"{'0' * 63}_{digest}_{suffix}",
        stored.key + "_T9",
        stored.key + "\n",
    ):
        places = [damage.where for damage in stored.form.check_object(key, stored.data)]
        assert places == ["key"], key

"""Coded objects: no damage passes a check that covers it, and nobody's numbers are believed."""

from pathlib import Path
from struct import pack_into
from typing import NamedTuple

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from unikv.errors import FormatError, GridError, MissingExtraError, SpecError
from unikv.grid import Chunk
from unikv.namespace import Namespace
from unikv.objects import Damage, ObjectFormat, parse_header, parse_object_text
from unikv.seal import cuts_of
from unikv.spec import KVSpec

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("zstd-v1-*.bin"))
TAG_KEY = bytes(range(32))

every_kind = pytest.mark.parametrize("name", NAMES)


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
    def lengths(self) -> list[int]:
        return [slab.stored_bytes for slab in parse_header(self.data).table]

    def check(self, data: bytes, first: int = 0, slabs: int | None = None) -> Damage | None:
        """Check as a load does, with places from the object as it was."""
        size, lengths = self.form.header_bytes, self.lengths
        count = self.chunk.slabs - first if slabs is None else slabs
        start = size + sum(lengths[:first])
        read = data[:size] + data[start : start + sum(lengths[first : first + count])]
        return self.form.check(self.page, self.chunk, memoryview(read), first, count)

    def place(self, byte: int) -> str:
        """Name the part of the object that a byte lies in."""
        at = self.form.header_bytes
        if byte < at:
            return "header"
        for slab, length in enumerate(self.lengths):
            at += length
            if byte < at:
                return f"slab {slab}"
        return "description"

    def forge(self, slabs: list[bytes]) -> bytes:
        """Return the object with other stored slabs, and all tags right."""
        facts = self.form._expect(self.chunk)
        stored = b"".join(slabs)
        lengths = tuple(map(len, slabs))
        head, text = self.form._seal(self.page, facts, memoryview(stored), lengths, None, None)
        return head + stored + text


def load(name: str) -> Stored:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    namespace = Namespace.parse(parse_object_text(data))
    key = TAG_KEY if namespace.tags == "blake3_keyed" else None
    form = ObjectFormat.of(namespace, key)
    text = str(parse_header(data).key)
    chunk = next(c for c in form.grid.chunks if c.suffix == text.split("_", 2)[2])
    return Stored(form, text, chunk, data)


def flip(data: bytes, byte: int, bits: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ bits]) + data[byte + 1 :]


@every_kind
@pytest.mark.parametrize("bits", [1, 128, 255])
def test_B56_no_flipped_byte_passes_a_check_that_covers_it(name: str, bits: int) -> None:
    stored = load(name)
    for byte in range(len(stored.data)):
        bad, place = flip(stored.data, byte, bits), stored.place(byte)
        found = stored.check(bad)
        assert (found and found.where) == (None if place == "description" else place), byte
        places = [damage.where for damage in stored.form.check_object(stored.key, bad)]
        assert places == [place], byte


@every_kind
def test_a_part_is_damaged_only_where_it_was_read(name: str) -> None:
    stored = load(name)
    for first in range(stored.chunk.slabs):
        for slabs in range(1, stored.chunk.slabs - first + 1):
            assert stored.check(stored.data, first, slabs) is None
            for byte in range(0, len(stored.data), 7):
                place = stored.place(byte)
                covered = place == "header" or place in {
                    f"slab {slab}" for slab in range(first, first + slabs)
                }
                found = stored.check(flip(stored.data, byte, 16), first, slabs)
                assert (found and found.where) == (place if covered else None)


@every_kind
def test_B67_no_truncation_passes(name: str) -> None:
    stored = load(name)
    for size in range(len(stored.data)):
        found = stored.form.check_object(stored.key, stored.data[:size])
        assert "size" in {damage.where for damage in found}, size
        short = memoryview(
            stored.data[: min(size, stored.form.header_bytes + sum(stored.lengths) - 1)]
        )
        assert stored.form.check(stored.page, stored.chunk, short) is not None
    for more in (b"x", bytes(5000)):
        found = stored.form.check_object(stored.key, stored.data + more)
        assert [damage.where for damage in found] == ["size"]


@every_kind
def test_B48_another_objects_bytes_do_not_pass(name: str) -> None:
    stored = load(name)
    for other in (n for n in NAMES if n != name):
        data = load(other).data
        assert stored.check(data) is not None
        assert stored.form.check_object(stored.key, data)
    page = "ab" * 32
    assert stored.form.check(page, stored.chunk, memoryview(stored.data)) is not None


def test_slabs_that_changed_places_do_not_pass() -> None:
    stored = load("zstd-v1-state")
    first, second, third = cuts_of(stored.lengths)
    size = stored.form.header_bytes
    body = stored.data[size : size + third.stop]
    swapped = bytearray(stored.data)
    swapped[size : size + third.stop] = body[second] + body[first] + body[third]
    found = stored.check(bytes(swapped))
    assert found is not None
    assert found.where == "slab 0"


# A writer who knows the tags may write what it likes: it is bounded and named all the same.


@pytest.mark.parametrize("length", [0, 513, 2**16, 2**31, 2**32 - 1])
def test_lengths_that_no_slab_has_are_damage_before_anything_is_read_by_them(length: int) -> None:
    stored = load("zstd-v1-mha")
    head = bytearray(stored.data[: stored.form.header_bytes])
    pack_into("<I", head, 168, length)
    pack_into("<Q", head, 120, length + stored.lengths[1])
    tag = stored.form._tag(bytes(head[:-8]), _header_seed(stored))
    pack_into("<Q", head, len(head) - 8, tag)
    found = stored.form.read_lengths(stored.page, stored.chunk, memoryview(head))
    assert isinstance(found, Damage)
    assert (found.where, found.detail) == (
        "header",
        f"stored length of slab 0 {length}, want 1 to 512",
    )
    data = bytes(head) + stored.data[len(head) :]
    assert [d.where for d in stored.form.check_object(stored.key, data)] == ["header"]


def _header_seed(stored: Stored) -> int:
    from unikv.tags import HEADER_SEED, SEED_MASK, key_seed

    return key_seed(stored.key) + HEADER_SEED & SEED_MASK


def test_lengths_that_do_not_make_up_the_payload_are_damage() -> None:
    stored = load("zstd-v1-mha")
    head = bytearray(stored.data[: stored.form.header_bytes])
    total = sum(stored.lengths)
    pack_into("<Q", head, 120, total + 1)
    pack_into("<Q", head, len(head) - 8, stored.form._tag(bytes(head[:-8]), _header_seed(stored)))
    found = stored.form.read_lengths(stored.page, stored.chunk, memoryview(head))
    assert isinstance(found, Damage)
    assert found.detail == f"payload length {total + 1}, want {total}: what its slabs have"


def test_a_forged_slab_is_found_by_who_unpacks_it() -> None:
    stored = load("zstd-v1-mha")
    size = stored.form.header_bytes
    cuts = cuts_of(stored.lengths)
    slabs = [stored.data[size:][cut] for cut in cuts]
    for bad in (b"\x00", slabs[0][:-1], slabs[0] + b"\x00", zstandard.compress(bytes(512))):
        for at in range(2):
            forged = stored.forge([bad if n == at else slab for n, slab in enumerate(slabs)])
            view = memoryview(forged)
            lengths = stored.form.read_lengths(stored.page, stored.chunk, view[:size])
            assert not isinstance(lengths, Damage)
            assert lengths[at] == len(bad)
            stop = size + sum(lengths)
            assert stored.form.check(stored.page, stored.chunk, view[:stop]) is None  # its tags fit
            assert stored.form.codec is not None
            into = memoryview(bytearray(1024))
            flaw = stored.form.codec.unpack(view[size:stop], lengths, into)
            assert flaw is not None
            assert flaw.slab == at
            found = stored.form.check_object(stored.key, forged)
            assert [damage.where for damage in found] == [f"slab {at}"]


def test_without_the_library_inspection_holds_slabs_against_their_tags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = load("zstd-v1-mha")
    forged = stored.forge([b"\x00", b"\x00"])
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingExtraError):
        ObjectFormat.of(stored.form.namespace)
    form = ObjectFormat.to_check(stored.form.namespace)
    assert form.check_object(stored.key, stored.data) == []
    assert form.check_object(stored.key, forged) == []
    bad = flip(stored.data, stored.form.header_bytes, 1)
    assert [damage.where for damage in form.check_object(stored.key, bad)] == ["slab 0"]


@settings(max_examples=200)
@given(st.sampled_from(NAMES), st.data())
def test_no_bytes_make_a_check_raise(name: str, data: st.DataObject) -> None:
    stored = load(name)
    changed = bytearray(stored.data)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    del changed[data.draw(st.integers(0, len(changed))) :]
    whole = bytes(changed)
    size = stored.form.header_bytes
    stored.form.read_lengths(stored.page, stored.chunk, memoryview(whole[:size]))
    found = stored.form.check(stored.page, stored.chunk, memoryview(whole))
    assert whole == stored.data or found is not None or whole[:size] == stored.data[:size]
    assert bool(stored.form.check_object(stored.key, whole)) == (whole != stored.data)


# Sizes, and who makes what


@every_kind
def test_sizes_reach_from_a_byte_a_slab_to_whole_slabs(name: str) -> None:
    stored = load(name)
    sizes = stored.form.object_sizes(stored.chunk)
    around = len(stored.data) - sum(stored.lengths)
    assert (sizes[0], sizes[-1]) == (
        around + stored.chunk.slabs,
        around + stored.chunk.payload_bytes,
    )
    assert sizes[-1] == stored.form.object_bytes(stored.chunk)
    assert stored.form.stored_bytes(stored.lengths) == len(stored.data)


def test_with_codec_none_an_object_has_one_size() -> None:
    spec = KVSpec.mla(layers=2, dim=4, dtype="bfloat16", page_tokens=4)
    form = ObjectFormat.of(Namespace(spec=spec, weights="unversioned", model="m", rope="none"))
    [chunk] = form.grid.chunks
    size = form.object_bytes(chunk)
    assert form.object_sizes(chunk) == range(size, size + 1)
    payload = bytes(chunk.payload_bytes)
    header, stored, text = form.compose("ab" * 32, chunk, payload, page_index=3)
    assert stored is payload
    assert (header, text) == form.encode("ab" * 32, chunk, payload, page_index=3)


def test_encode_is_for_codec_none_and_compose_checks_as_it_does() -> None:
    stored = load("zstd-v1-mha")
    form, chunk = stored.form, stored.chunk
    payload = bytes(chunk.payload_bytes)
    with pytest.raises(SpecError, match="codec 'zstd' stores another payload: want compose"):
        form.encode(stored.page, chunk, payload)
    with pytest.raises(FormatError, match="payload of 3 bytes for chunk L2-4_H1: want 2 slabs"):
        form.compose(stored.page, chunk, b"123")
    with pytest.raises(GridError):
        form.compose(stored.page, load("zstd-v1-mla").chunk, payload)
    with pytest.raises(FormatError, match="page index -1"):
        form.compose(stored.page, chunk, payload, page_index=-1)
    header, packed, text = form.compose(stored.page, chunk, payload)
    data = b"".join([header, packed, text])
    assert form.check_object(stored.key, data) == []
    assert len(packed) < len(payload) // 4
    assert parse_header(data).payload_bytes == len(packed)

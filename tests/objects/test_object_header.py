"""Headers: fields survive the round trip, and no bytes make parsing raise anything unexpected."""

import tracemalloc
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unikv.errors import FormatError
from unikv.geometry import Interval
from unikv.header import Header, Slab, header_size, pack_header, parse_header
from unikv.objects import parse_object_text

GOLDEN = Path(__file__).parents[1] / "golden"
WHOLE = (GOLDEN / "v1-mha-even.bin").read_bytes()

u64 = st.integers(0, 2**64 - 1)
hex_of_32 = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    table = draw(st.lists(st.builds(Slab, u64, st.integers(0, 2**32 - 1)), min_size=1, max_size=70))
    start = draw(st.integers(0, 2**16 - len(table)))
    spare = draw(st.integers(0, 40))  # slabs of a larger chunk of the namespace
    return Header(
        codec=draw(st.sampled_from(["none", "zstd"])),
        tags=draw(st.sampled_from(["xxh3_64", "blake3_keyed"])),
        header_bytes=header_size(len(table) + spare),
        namespace=draw(hex_of_32)[:32],
        page=draw(hex_of_32),
        parent=draw(st.none() | hex_of_32.filter(lambda text: set(text) != {"0"})),
        page_index=draw(st.none() | st.integers(0, 2**32 - 2)),
        layers=Interval(start, start + len(table)),
        group=draw(st.none() | st.integers(0, 2**16 - 1)),
        phase=draw(st.none() | st.integers(0, 2**20 - 1)),
        payload_bytes=sum(slab.stored_bytes for slab in table),
        payload_tag=draw(u64),
        table=tuple(table),
        tag=draw(u64),
    )


@given(headers())
def test_headers_survive_the_round_trip(header: Header) -> None:
    data = pack_header(header)
    assert len(data) == header.header_bytes
    assert parse_header(data) == header
    assert parse_header(data + b"payload") == header


@given(headers(), st.data())
def test_what_parses_packs_to_the_same_bytes(header: Header, data: st.DataObject) -> None:
    changed = bytearray(pack_header(header))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse_header(changed)
    except FormatError:
        return
    assert pack_header(parsed) == bytes(changed)


@given(st.binary(max_size=700))
@example(b"")
@example(b"\x89UKV\r\n\x1a\n")
@example(b"\x89UKV\r\n\x1a\n".ljust(600, b"\xff"))
def test_noise_is_no_header(noise: bytes) -> None:
    for data in (noise, WHOLE[:8] + noise, WHOLE[:16] + noise, WHOLE[:160] + noise):
        with pytest.raises(FormatError):
            parse_header(data)
        with pytest.raises(FormatError):
            parse_object_text(data)


def test_every_truncation_is_refused() -> None:
    for size in range(len(WHOLE)):
        if size < 512:
            with pytest.raises(FormatError):
                parse_header(WHOLE[:size])
        with pytest.raises(FormatError):
            parse_object_text(WHOLE[:size])


def test_every_flip_in_the_description_or_its_place_is_refused() -> None:
    payload = range(512, 512 + parse_header(WHOLE).payload_bytes)
    for byte in range(512, len(WHOLE)):
        if byte in payload:
            continue
        data = bytearray(WHOLE)
        data[byte] ^= 0x20
        with pytest.raises(FormatError):
            parse_object_text(data)


@pytest.mark.parametrize(
    ("offset", "code", "value", "message"),
    [
        (8, "<H", 7, "format version 7: this reader knows version 1"),
        (10, "<H", 2, "flags 0x0002"),
        (10, "<H", 0x20, "flags 0x0020"),
        (10, "<H", 0x100, "flags 0x0100"),
        (12, "<I", 2**31, f"header of {2**31} bytes"),
        (12, "<I", 0, "header of 0 bytes"),
        (12, "<I", 511, "header of 511 bytes"),
        (104, "<I", 2, r"layers 2\.\.2"),
        (104, "<I", 2**32 - 1, r"layers 2\.\.4294967295"),
        (108, "<I", 2**16, "no possible key"),
        (116, "<I", 2**32 - 1, "for 4294967295 slabs"),
        (120, "<Q", 2**63, f"payload of {2**63} bytes"),
        (136, "<B", 1, "reserved bytes"),
        (172, "<B", 1, "reserved bytes"),
        (400, "<B", 1, "reserved bytes"),
        (168, "<I", 2**32 - 1, "payload of 128 bytes: its slabs have 4294967359"),
    ],
)
def test_hostile_numbers_are_named_and_reserve_no_memory(
    offset: int, code: str, value: int, message: str
) -> None:
    data = bytearray(WHOLE)
    pack_into(code, data, offset, value)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message):
            parse_header(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("count", [0, 1, 4001, 2**32 - 1])
def test_a_description_of_another_length_is_refused(count: int) -> None:
    data = bytearray(WHOLE)
    pack_into("<I", data, 512 + 128, count)
    with pytest.raises(FormatError, match=f"announce a text of {count}"):
        parse_object_text(data)


def test_a_description_of_another_namespace_is_refused() -> None:
    other = (GOLDEN / "v1-mha-odd.bin").read_bytes()
    header = parse_header(other)
    tail = other[header.header_bytes + header.payload_bytes :]
    own = parse_header(WHOLE)
    with pytest.raises(FormatError, match=f"in an object of {own.namespace}"):
        parse_object_text(WHOLE[: own.header_bytes + own.payload_bytes] + tail)

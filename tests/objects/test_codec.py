"""Stored slabs: whatever is packed comes back, and no bytes make unpacking raise or overreach."""

import random
import struct
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from unikv.codec import LEVEL, ZSTD, Codec, Flaw
from unikv.errors import MissingExtraError
from unikv.grid import Grid
from unikv.namespace import Namespace, Options
from unikv.objects import ObjectFormat
from unikv.spec import DTYPES, KVSpec, StatePart

CODEC = Codec(128, (slice(0, 128, 2), slice(1, 128, 2)))  # 64 elements of 2 bytes


def grid_of(spec: KVSpec, **options: object) -> Grid:
    given: Options = {"model": "codec", "codec": ZSTD, **options}  # type: ignore[typeddict-item]
    return Grid.of(Namespace(spec=spec, weights="unversioned", rope="none", **given))


def frame_of(data: bytes, **options: object) -> bytes:
    tool = zstandard.ZstdCompressor(level=LEVEL, **options)  # type: ignore[arg-type]
    return tool.compress(data)


def form_of(*planes: bytes, lengths: Sequence[int] | None = None) -> bytes:
    told = [len(plane) for plane in planes] if lengths is None else lengths
    return struct.pack(f"<{len(told)}I", *told) + b"".join(planes)


def unpack(codec: Codec, form: bytes) -> bytes | Flaw:
    """Unpack one stored slab between two walls, which must stand afterwards."""
    wall = b"\xa5" * 32
    memory = bytearray(wall + bytes(codec.slab_bytes) + wall)
    into = memoryview(memory)[32:-32]
    flaw = codec.unpack(memoryview(form), [len(form)], into)
    assert bytes(memory[:32]) == bytes(memory[-32:]) == wall
    return bytes(into) if flaw is None else flaw


@st.composite
def specs(draw: st.DrawFn) -> KVSpec:
    layers, dim = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    match draw(st.sampled_from(["mha", "mla", "rows", "state"])):
        case "mha":
            return KVSpec.mha(
                layers=layers,
                kv_heads=draw(st.integers(1, 3)),
                head_dim=dim,
                v_head_dim=draw(st.integers(1, 5)),
                dtype=dtype,
                page_tokens=8,
            )
        case "mla":
            return KVSpec.mla(layers=layers, dim=dim, dtype=dtype, page_tokens=8)
        case "rows":
            return KVSpec.rows(layers=layers, row_bytes=7 * dim, rows_per_page=4, page_tokens=8)
    parts = [
        StatePart(f"part{n}", draw(st.sampled_from(sorted(DTYPES))), (4, dim))
        for n in range(draw(st.integers(1, 4)))
    ]
    return KVSpec.state(layers=layers, parts=parts, page_tokens=8, groups=2)


@st.composite
def contents(draw: st.DrawFn, size: int) -> bytes:
    """Bytes from all alike to all noise."""
    noise = random.Random(draw(st.integers(0, 9))).randbytes(size)
    mask = draw(st.sampled_from([b"\x00", b"\xff", b"\x00\xff", b"\x03\xff", b"\xff\x0f\x00"]))
    return bytes(byte & mask[n % len(mask)] for n, byte in enumerate(noise))


@given(specs(), st.data())
def test_what_is_packed_comes_back(spec: KVSpec, data: st.DataObject) -> None:
    codec = Codec.of(grid_of(spec))
    payload = b"".join(data.draw(contents(codec.slab_bytes)) for _ in range(spec.layers))
    forms = codec.pack(memoryview(payload))
    lengths = [len(form) for form in forms]
    assert all(1 <= length <= codec.slab_bytes for length in lengths)
    into = bytearray(len(payload))
    assert codec.unpack(memoryview(b"".join(forms)), lengths, memoryview(into)) is None
    assert into == payload


@given(specs(), st.data())
def test_stored_slabs_at_the_end_of_their_own_place_unpack_as_elsewhere(
    spec: KVSpec, data: st.DataObject
) -> None:
    codec = Codec.of(grid_of(spec))
    payload = b"".join(data.draw(contents(codec.slab_bytes)) for _ in range(6))
    forms = codec.pack(memoryview(payload))
    stored = b"".join(forms)
    place = bytearray(len(payload) - len(stored)) + stored
    view = memoryview(place)
    lengths = [len(form) for form in forms]
    assert codec.unpack(view[len(payload) - len(stored) :], lengths, view) is None
    assert place == payload


@given(specs())
def test_every_byte_of_a_slab_is_in_one_plane(spec: KVSpec) -> None:
    codec = Codec.of(grid_of(spec))
    places = [place for plane in codec.planes for place in range(codec.slab_bytes)[plane]]
    assert sorted(places) == list(range(codec.slab_bytes))
    assert sum(codec.sizes) == codec.slab_bytes


def test_planes_are_as_the_format_page_says() -> None:
    mha = KVSpec.mha(layers=1, kv_heads=2, head_dim=4, dtype="bfloat16", page_tokens=4)
    assert Codec.of(grid_of(mha)).planes == (slice(0, 128, 2), slice(1, 128, 2))
    rows = KVSpec.rows(layers=1, row_bytes=12, rows_per_page=2, page_tokens=4)
    assert Codec.of(grid_of(rows)).planes == (slice(0, 24, 1),)
    parts = [
        StatePart("conv", "bfloat16", (8, 2), (2, 2, 4)),
        StatePart("gate", "float16", (2,)),
        StatePart("ssm", "float32", (2, 3)),
        StatePart("flags", "uint8", (2, 5)),
    ]
    state = KVSpec.state(layers=1, parts=parts, page_tokens=4, groups=2)
    assert Codec.of(grid_of(state, heads_per_chunk=1)).planes == (
        *(slice(byte, 18, 2) for byte in range(2)),  # three segments of conv, and gate
        *(slice(18 + byte, 30, 4) for byte in range(4)),
        slice(30, 35, 1),
    )


def test_a_slab_that_does_not_shrink_is_stored_as_it_is() -> None:
    noise = random.Random(1).randbytes(128)
    [form] = CODEC.pack(memoryview(noise))
    assert bytes(form) == noise
    assert unpack(CODEC, noise) == noise


def test_a_plane_that_does_not_shrink_is_stored_as_it_is() -> None:
    noise = random.Random(1).randbytes(64)
    slab = bytes(byte for low in noise for byte in (low, 60))
    [form] = CODEC.pack(memoryview(slab))
    assert bytes(form) == form_of(noise, frame_of(HIGH))
    assert unpack(CODEC, bytes(form)) == slab


def test_packing_is_the_same_each_time() -> None:
    slab = bytes(range(128))
    assert CODEC.pack(memoryview(slab)) == CODEC.pack(memoryview(bytearray(slab)))


def test_frames_are_what_any_zstandard_reads() -> None:
    slab = bytes(128)
    [form] = CODEC.pack(memoryview(slab))
    low, high = struct.unpack_from("<2I", form)
    for frame in (bytes(form)[8 : 8 + low], bytes(form)[8 + low : 8 + low + high]):
        told = zstandard.get_frame_parameters(frame)
        assert (told.content_size, told.dict_id) == (64, 0)
        assert zstandard.decompress(frame) == bytes(64)


LOW, HIGH = bytes(range(64)), bytes([60]) * 64
FRAME = frame_of(HIGH)
OTHER = frame_of(bytes([61]) * 64)
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
DICTIONARY = zstandard.ZstdCompressionDict(b"", dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def with_dict_id(frame: bytes) -> bytes:
    """Return the frame with a dictionary id of 7 in its header."""
    return frame[:4] + bytes([frame[4] | 1]) + b"\x07" + frame[5:]


def claiming(size: int) -> bytes:
    """Return a frame that tells ``size`` bytes of content in an 8-byte field."""
    assert FRAME[4] >> 6 == 0  # one byte of content size
    return FRAME[:4] + bytes([FRAME[4] | 0xC0]) + struct.pack("<Q", size) + FRAME[6:]


def windowed(exponent: int, cut: int = 0) -> bytes:
    """Return a frame of 64 bytes that asks for a window of 2**(10 + exponent) bytes."""
    body = FRAME[6 : len(FRAME) - cut]
    return FRAME[:4] + bytes([0x80, exponent << 3]) + struct.pack("<I", 64) + body


HOSTILE = {
    "nothing": b"\x00",
    "less than lengths": bytes(7),
    "lengths alone": bytes(8),
    "a plane of no bytes": form_of(b"", FRAME),
    "a plane too long": form_of(LOW + b"x", FRAME),
    "lengths too small": form_of(LOW, FRAME, lengths=(64, len(FRAME) - 1)),
    "lengths too large": form_of(LOW, FRAME, lengths=(64, len(FRAME) + 1)),
    "lengths that wrap": form_of(LOW, FRAME, lengths=(2**32 - 1, 65 + len(FRAME))),
    "lengths of gigabytes": form_of(LOW, FRAME, lengths=(2**32 - 1, 2**32 - 1)),
    "no frame": form_of(LOW, b"\x28\xb5\x2f\xfe" + FRAME[4:]),
    "an old frame": form_of(LOW, b"\x27\xb5\x2f\xfd" + FRAME[4:]),
    "the magic alone": form_of(LOW, FRAME[:4]),
    "a frame of another size": form_of(LOW, frame_of(bytes(63))),
    "a frame of a byte more": form_of(LOW, frame_of(bytes(65))),
    "a frame of nothing": form_of(LOW, frame_of(b"")),
    "a frame of no told size": form_of(LOW, frame_of(HIGH, write_content_size=False)),
    "a frame that claims exabytes": form_of(LOW, claiming(2**62)),
    "a frame that claims all": form_of(LOW, claiming(2**64 - 1)),
    "a window of 2 GiB, cut": form_of(LOW, windowed(21, cut=1)),
    "a window past all limits": form_of(LOW, windowed(31)),
    "a frame with a dictionary": form_of(LOW, with_dict_id(FRAME)),
    "a frame, cut": form_of(LOW, FRAME[:-1]),
    "a frame and a byte": form_of(LOW, FRAME + b"\x00"),
    "two frames": form_of(LOW, FRAME + OTHER),
    "two halves": form_of(LOW, frame_of(bytes(32)) + frame_of(bytes(32))),
    "a skippable frame": form_of(LOW, SKIPPABLE),
    "a skippable frame in front": form_of(LOW, SKIPPABLE + FRAME),
    "a skippable frame behind": form_of(LOW, FRAME + SKIPPABLE),
    "frames swapped": form_of(FRAME, FRAME[::-1]),
}


@pytest.mark.parametrize("form", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_stored_form_is_a_flaw(form: bytes) -> None:
    assert len(form) < CODEC.slab_bytes
    found = unpack(CODEC, form)
    assert isinstance(found, Flaw)
    assert found.slab == 0
    assert len(found.detail) < 250


def test_the_frames_of_the_hostile_forms_are_right_but_for_what_is_said() -> None:
    for frame in (FRAME, claiming(64), windowed(0), windowed(21)):
        slab = unpack(CODEC, form_of(LOW, frame))
        assert isinstance(slab, bytes)
        assert slab == bytes(byte for low in LOW for byte in (low, 60))


def test_a_flaw_names_the_slab() -> None:
    good = bytes(form_of(LOW, FRAME))
    bad = form_of(LOW, FRAME[:-1])
    lengths = [128, len(good), len(bad), len(good)]
    stored = memoryview(bytes(128) + good + bad + good)
    flaw = CODEC.unpack(stored, lengths, memoryview(bytearray(512)))
    assert flaw is not None
    assert flaw.slab == 2


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=127) | st.binary(max_size=55).map(lambda b: form_of(LOW, b)))
def test_no_bytes_make_unpacking_raise(form: bytes) -> None:
    unpack(CODEC, form)


@given(st.integers(0, 99), st.integers(1, 255), st.integers(0, 40))
def test_no_flip_and_no_cut_makes_unpacking_raise(at: int, bits: int, cut: int) -> None:
    form = bytearray(form_of(LOW, FRAME))
    form[at % len(form)] ^= bits
    unpack(CODEC, bytes(form[: max(1, len(form) - cut)]))


def test_no_memory_is_taken_by_a_stored_number() -> None:
    tracemalloc.start()
    try:
        for form in HOSTILE.values():
            assert isinstance(unpack(CODEC, form), Flaw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    # The library's own memory is not traced: it has to refuse the window.
    found = unpack(CODEC, HOSTILE["a window of 2 GiB, cut"])
    assert isinstance(found, Flaw)
    assert "too much memory" in found.detail


def test_one_codec_serves_many_threads() -> None:
    codec = Codec(1 << 14, (slice(0, 1 << 14, 2), slice(1, 1 << 14, 2)))
    payloads = [
        bytes(byte & 15 for byte in random.Random(seed).randbytes(4 << 14)) for seed in range(16)
    ]

    def there_and_back(payload: bytes) -> bytes:
        forms = codec.pack(memoryview(payload))
        into = bytearray(len(payload))
        flaw = codec.unpack(memoryview(b"".join(forms)), [*map(len, forms)], memoryview(into))
        assert flaw is None
        return bytes(into)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(there_and_back, payloads)) == payloads


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = KVSpec.mla(layers=1, dim=4, dtype="bfloat16", page_tokens=4)
    namespace = Namespace(spec=spec, weights="unversioned", model="m", rope="none", codec=ZSTD)
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"codec 'zstd' needs zstandard: pip install 'uni"):
        ObjectFormat.of(namespace)
    form = ObjectFormat.keyless(namespace)  # who only asks for keys and sizes needs none
    assert form.key("ab" * 32, form.grid.chunks[0]).endswith("_L0-1")

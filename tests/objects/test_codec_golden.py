"""Golden objects of codec zstd: what they hold is pinned, how they were compressed only by version.

Read once with unikv and once by the book; see tests/golden/README.md for the formula.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from struct import unpack_from

import pytest
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest

from unikv.codec import ZSTD
from unikv.namespace import Namespace, Options
from unikv.objects import Damage, ObjectFormat, parse_header, parse_object_text
from unikv.spec import KVSpec, StatePart

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TAG_KEY = bytes(range(32))
PAGE = bytes(range(0x40, 0x60)).hex()
PARENT = bytes(range(0x20, 0x40)).hex()


@dataclass(frozen=True)
class Case:
    """One golden object: its namespace, its chunk, and the element sizes of its slab's bytes."""

    spec: KVSpec
    suffix: str
    widths: tuple[tuple[int, int], ...]  # bytes of a slab, and of an element of them
    options: Options = field(default_factory=Options)


CASES = {
    "mha": Case(
        KVSpec.mha(layers=4, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=16),
        "L2-4_H1",
        ((512, 2),),
        {"layers_per_chunk": 2, "heads_per_chunk": 1},
    ),
    "mla": Case(
        KVSpec.mla(layers=3, dim=40, dtype="float8_e4m3fn", page_tokens=16),
        "L0-3",
        ((640, 1),),
        {"tags": "blake3_keyed"},
    ),
    "rows": Case(
        KVSpec.rows(layers=2, row_bytes=132, rows_per_page=4, page_tokens=16), "L0-2", ((528, 1),)
    ),
    "state": Case(
        KVSpec.state(
            layers=3,
            parts=(
                StatePart("conv", "bfloat16", (32, 16), (8, 8, 16)),
                StatePart("ssm", "float32", (4, 32)),
            ),
            page_tokens=16,
            groups=2,
        ),
        "L0-3_H1",
        ((512, 2), (256, 4)),
        {"heads_per_chunk": 1},
    ),
}

golden = pytest.mark.parametrize("name", CASES)


def make_format(case: Case) -> ObjectFormat:
    options: Options = {"model": "golden", "codec": ZSTD, **case.options}
    namespace = Namespace(spec=case.spec, weights="unversioned", rope="none", **options)
    return ObjectFormat.of(namespace, TAG_KEY if namespace.tags == "blake3_keyed" else None)


def make_payload(form: ObjectFormat, suffix: str) -> bytes:
    """Fill a chunk by the formula of the README: half noise, the last layer noise alone."""
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == suffix)
    payload = bytearray()
    for layer in range(chunk.layers.start, chunk.layers.stop):
        noise = blake3(layer.to_bytes(4, "little")).digest(length=chunk.slab_bytes)
        if layer == chunk.layers.stop - 1:
            payload += noise
        else:
            payload += bytes(60 + (x >> 6) if j % 2 else x for j, x in enumerate(noise))
    return bytes(payload)


def make_object(case: Case) -> tuple[str, bytes]:
    form = make_format(case)
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == case.suffix)
    payload = make_payload(form, case.suffix)
    buffers = form.compose(PAGE, chunk, payload, parent=PARENT, page_index=7)
    return form.key(PAGE, chunk), b"".join(buffers)


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None, f"constraints.txt pins no {package}"
    return found[1]


@golden
def test_encoding_gives_the_golden_bytes_with_the_pinned_library(name: str) -> None:
    """Another release may compress otherwise: objects differ then, and are read all the same."""
    if zstandard.__version__ == pinned("zstandard"):
        assert make_object(CASES[name])[1] == (GOLDEN / f"zstd-v1-{name}.bin").read_bytes()


@golden
def test_golden_files_verify_and_unpack(name: str) -> None:
    case = CASES[name]
    form, (key, _) = make_format(case), make_object(case)
    data = (GOLDEN / f"zstd-v1-{name}.bin").read_bytes()
    assert form.check_object(key, data) == []
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == case.suffix)
    assert len(data) in form.object_sizes(chunk)
    view, size = memoryview(data), form.header_bytes
    lengths = form.read_lengths(PAGE, chunk, view[:size])
    assert not isinstance(lengths, Damage)
    stop = size + sum(lengths)
    assert form.check(PAGE, chunk, view[:stop]) is None
    into = bytearray(chunk.payload_bytes)
    assert form.codec is not None
    assert form.codec.unpack(view[size:stop], lengths, memoryview(into)) is None
    assert into == make_payload(form, case.suffix)


@golden
def test_golden_files_tell_what_they_are_without_a_namespace(name: str) -> None:
    case = CASES[name]
    data = (GOLDEN / f"zstd-v1-{name}.bin").read_bytes()
    header = parse_header(data)
    assert Namespace.parse(parse_object_text(data)) == make_format(case).namespace
    assert str(header.key) == make_object(case)[0]
    assert (header.codec, header.parent, header.page_index) == ("zstd", PARENT, 7)


def tag_by_the_book(data: bytes, seed: int, *, keyed: bool) -> int:
    seed %= 2**64
    if not keyed:
        return xxh3_64_intdigest(data, seed)
    key = blake3(TAG_KEY, derive_key_context="unikv tag key v1").digest()
    return int.from_bytes(blake3(seed.to_bytes(8, "little") + data, key=key).digest()[:8], "little")


def unpack_by_the_book(stored: bytes, widths: tuple[tuple[int, int], ...]) -> bytes:
    """Return a slab from its stored form, by docs/format.md alone."""
    total = sum(size for size, _ in widths)
    if len(stored) == total:
        return stored
    planes = [(size, width, byte) for size, width in widths for byte in range(width)]
    lengths = unpack_from(f"<{len(planes)}I", stored)
    slab, at, done = bytearray(total), 4 * len(planes), 0
    for (size, width, byte), length in zip(planes, lengths, strict=True):
        plane = stored[at : at + length]
        if length < size // width:
            plane = zstandard.ZstdDecompressor().decompress(plane)
        assert len(plane) == size // width
        slab[done + byte : done + size : width] = plane
        at += length
        done += size if byte == width - 1 else 0
    assert at == len(stored)
    return bytes(slab)


@golden
def test_golden_files_read_by_the_book(name: str) -> None:
    """Every offset, seed, tag and plane by literal numbers from docs/format.md."""
    data, case = (GOLDEN / f"zstd-v1-{name}.bin").read_bytes(), CASES[name]
    keyed = name == "mla"
    key, _ = make_object(case)
    h = xxh3_64_intdigest(key.encode())
    magic, version, flags, size = unpack_from("<8sHHI", data, 0)
    assert (magic, version, flags) == (b"\x89UKV\r\n\x1a\n", 1, 0x11 if keyed else 0x01)
    slabs, payload_len, payload_tag = unpack_from("<IQQ", data, 116)
    payload = data[size : size + payload_len]
    assert payload_tag == tag_by_the_book(payload, h + 2**32, keyed=keyed)
    at, whole = 0, b""
    for i in range(slabs):
        tag, stored_len, zero = unpack_from("<QII", data, 160 + 16 * i)
        stored = payload[at : at + stored_len]
        assert (tag, zero) == (tag_by_the_book(stored, h + i, keyed=keyed), 0)
        whole += unpack_by_the_book(stored, case.widths)
        at += stored_len
    assert at == payload_len
    assert whole == make_payload(make_format(case), case.suffix)
    header_tag = tag_by_the_book(data[: size - 8], h + 2**34, keyed=keyed)
    assert unpack_from("<Q", data, size - 8)[0] == header_tag
    tail = data[size + payload_len :]
    assert unpack_from("<I", tail)[0] == len(tail) - 12
    text_tag = tag_by_the_book(tail[:-8], h + 2**33, keyed=keyed)
    assert unpack_from("<Q", tail, len(tail) - 8)[0] == text_tag


def test_each_form_of_a_slab_is_in_a_golden_file() -> None:
    """Slabs stored as they are, planes of each element size, frames beside planes as they are."""
    forms = set[tuple[str, int]]()
    for name, case in CASES.items():
        total = sum(size for size, _ in case.widths)
        data = (GOLDEN / f"zstd-v1-{name}.bin").read_bytes()
        header = parse_header(data)
        at = header.header_bytes
        for slab in header.table:
            if slab.stored_bytes == total:
                forms.add(("slab", 0))
            else:
                planes = [
                    (size // width, width) for size, width in case.widths for _ in range(width)
                ]
                lengths = unpack_from(f"<{len(planes)}I", data, at)
                for length, (size, width) in zip(lengths, planes, strict=True):
                    forms.add(("plane" if length == size else "frame", width))
            at += slab.stored_bytes
    assert forms >= {("slab", 0), ("frame", 1)}
    assert forms >= {(form, width) for form in ("plane", "frame") for width in (2, 4)}


def test_every_golden_file_has_its_case_and_its_line_in_the_readme() -> None:
    files = {path.name for path in GOLDEN.glob("zstd-v1-*.bin")}
    assert files == {f"zstd-v1-{name}.bin" for name in CASES}
    readme = (GOLDEN / "README.md").read_text()
    for name, case in CASES.items():
        key, _ = make_object(case)
        _, digest, suffix = key.split("_", 2)
        assert re.search(rf"`zstd-v1-{name}.bin`.*`{digest}`.*`{suffix}`", readme), name


def test_the_example_of_the_format_page_is_in_the_file() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    example = page[page.index("zstd-v1-mha.bin") :]
    rows = re.findall(r"^    ([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){16})$", example, re.MULTILINE)
    assert len(rows) == 5
    data = (GOLDEN / "zstd-v1-mha.bin").read_bytes()
    for offset, row in rows:
        at = int(offset, 16)
        assert data[at : at + 16] == bytes.fromhex(row)

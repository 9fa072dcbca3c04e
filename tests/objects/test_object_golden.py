"""Golden objects: the committed bytes, made again by formula and read again by the book."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from struct import unpack_from

import pytest
from blake3 import blake3
from xxhash import xxh3_64_intdigest

from unikv.namespace import Namespace, Options
from unikv.objects import ObjectFormat, parse_header, parse_object_text
from unikv.spec import KVSpec, Part, StatePart

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TAG_KEY = bytes(range(32))
PAGE = bytes(range(0x40, 0x60)).hex()
PARENT = bytes(range(0x20, 0x40)).hex()


@dataclass(frozen=True)
class Case:
    """One golden object: its namespace and which of the page's chunks it is."""

    spec: KVSpec
    suffix: str
    options: Options = field(default_factory=Options)
    parent: str | None = PARENT
    page_index: int | None = 7


def _mha(layers: int, v_head_dim: int = 4, head_dim: int = 4) -> KVSpec:
    return KVSpec.mha(
        layers=layers,
        kv_heads=2,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype="bfloat16",
        page_tokens=4,
    )


CASES = {
    "mha-even": Case(_mha(4), "L2-4_H1", {"layers_per_chunk": 2, "heads_per_chunk": 1}),
    "mha-odd": Case(_mha(6), "L3-6_H0", {"layers_per_chunk": 3, "heads_per_chunk": 1}),
    "mha-ragged": Case(_mha(5), "L4-5_H1", {"layers_per_chunk": 2, "heads_per_chunk": 1}),
    "mha-k-wider-than-v": Case(_mha(2, head_dim=6), "L0-2_H0", parent=None, page_index=0),
    "mha-phases": Case(_mha(2), "L0-2_H0_T1", {"phases": 2, "heads_per_chunk": 2}),
    "mha-keyed": Case(_mha(2), "L0-2_H1", {"heads_per_chunk": 1, "tags": "blake3_keyed"}),
    "mla": Case(
        KVSpec.mla(layers=3, dim=8, dtype="float8_e4m3fn", page_tokens=4),
        "L2-3",
        {"layers_per_chunk": 2},
        parent=None,
        page_index=None,
    ),
    "rows": Case(
        KVSpec.rows(layers=2, row_bytes=12, rows_per_page=2, page_tokens=4, layer_ids=(3, 7)),
        "L0-2",
    ),
    "state": Case(
        KVSpec.state(
            layers=2,
            parts=(
                StatePart("conv", "bfloat16", (8, 2), (2, 2, 4)),
                StatePart("ssm", "float32", (2, 3)),
            ),
            page_tokens=4,
            groups=2,
        ),
        "L0-2_H1",
        {"heads_per_chunk": 1},
    ),
}


def make_format(case: Case) -> ObjectFormat:
    options: Options = {"model": "golden", **case.options}
    namespace = Namespace(spec=case.spec, weights="unversioned", rope="none", **options)
    return ObjectFormat.of(namespace, TAG_KEY if namespace.tags == "blake3_keyed" else None)


def golden_parts(spec: KVSpec) -> list[Part]:
    """Return the parts of a slab; a state's by tensor: one group has its segments in a row."""
    groups = spec.kv_heads
    state = [Part(part.name, 1, part.size_bytes // groups) for part in spec.state_parts]
    return state or list(spec.parts)


def make_payload(form: ObjectFormat, suffix: str) -> bytes:
    """Fill a chunk with bytes that tell where they belong; see tests/golden/README.md."""
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == suffix)
    payload = bytearray()
    for layer in range(chunk.layers.start, chunk.layers.stop):
        for number, part in enumerate(golden_parts(form.namespace.spec)):
            for row in range(part.rows):
                if chunk.phase is not None and row % form.namespace.phases != chunk.phase:
                    continue
                for head in range(chunk.heads.start, chunk.heads.stop):
                    for byte in range(part.width):
                        first = layer << 4 | head
                        second = number << 7 | row << 4 | byte >> 1
                        payload.append(second if byte % 2 else first)
    return bytes(payload)


def make_object(case: Case) -> tuple[str, bytes]:
    form = make_format(case)
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == case.suffix)
    payload = make_payload(form, case.suffix)
    header, description = form.encode(
        PAGE, chunk, payload, parent=case.parent, page_index=case.page_index
    )
    return form.key(PAGE, chunk), header + payload + description


def tag_by_the_book(data: bytes, seed: int, *, keyed: bool) -> int:
    seed %= 2**64
    if not keyed:
        return xxh3_64_intdigest(data, seed)
    key = blake3(TAG_KEY, derive_key_context="unikv tag key v1").digest()
    return int.from_bytes(blake3(seed.to_bytes(8, "little") + data, key=key).digest()[:8], "little")


golden = pytest.mark.parametrize("name", CASES)


@golden
def test_encoding_gives_the_golden_bytes(name: str) -> None:
    _, data = make_object(CASES[name])
    assert data == (GOLDEN / f"v1-{name}.bin").read_bytes()


@golden
def test_golden_files_verify(name: str) -> None:
    case = CASES[name]
    form = make_format(case)
    key, _ = make_object(case)
    data = (GOLDEN / f"v1-{name}.bin").read_bytes()
    assert form.check_object(key, data) == []
    chunk = next(chunk for chunk in form.grid.chunks if chunk.suffix == case.suffix)
    stop = form.header_bytes + chunk.payload_bytes
    assert form.check(PAGE, chunk, memoryview(data)[:stop]) is None
    assert len(data) == form.object_bytes(chunk)


@golden
def test_golden_files_tell_what_they_are_without_a_namespace(name: str) -> None:
    case = CASES[name]
    key, _ = make_object(case)
    data = (GOLDEN / f"v1-{name}.bin").read_bytes()
    header = parse_header(data)
    namespace = Namespace.parse(parse_object_text(data))
    assert namespace == make_format(case).namespace
    assert str(header.key) == key
    assert (header.page, header.parent, header.page_index) == (PAGE, case.parent, case.page_index)
    assert (header.codec, header.tags, header.namespace) == (
        "none",
        namespace.tags,
        namespace.digest,
    )


@golden
def test_golden_files_read_by_the_book(name: str) -> None:
    """Every offset, seed and tag by literal numbers from docs/format.md, without unikv's code."""
    data = (GOLDEN / f"v1-{name}.bin").read_bytes()
    case = CASES[name]
    keyed = name == "mha-keyed"
    key, _ = make_object(case)
    h = xxh3_64_intdigest(key.encode())
    magic, version, flags, size = unpack_from("<8sHHI", data, 0)
    assert (magic, version, flags) == (b"\x89UKV\r\n\x1a\n", 1, 0x10 if keyed else 0)
    assert size == 512
    page, digest, suffix = key.split("_", 2)
    assert (data[16:32].hex(), data[32:64].hex()) == (digest, page)
    assert data[64:96] == (bytes.fromhex(case.parent) if case.parent else bytes(32))
    index, start, stop, group, phase, slabs, payload_len = unpack_from("<6IQ", data, 96)
    assert index == (0xFFFFFFFF if case.page_index is None else case.page_index)
    name_of_group = "" if group == 0xFFFFFFFF else f"_H{group}"
    name_of_phase = "" if phase == 0xFFFFFFFF else f"_T{phase}"
    assert f"L{start}-{stop}{name_of_group}{name_of_phase}" == suffix
    payload = data[size : size + payload_len]
    assert payload == make_payload(make_format(case), suffix)
    assert unpack_from("<Q", data, 128)[0] == tag_by_the_book(payload, h + 2**32, keyed=keyed)
    assert not any(data[136:160])
    slab_bytes = payload_len // slabs
    for i in range(slabs):
        slab = payload[i * slab_bytes : (i + 1) * slab_bytes]
        expected = (tag_by_the_book(slab, h + i, keyed=keyed), slab_bytes, 0)
        assert unpack_from("<QII", data, 160 + 16 * i) == expected
    assert not any(data[160 + 16 * slabs : size - 8])
    header_tag = tag_by_the_book(data[: size - 8], h + 2**34, keyed=keyed)
    assert unpack_from("<Q", data, size - 8)[0] == header_tag
    tail = data[size + payload_len :]
    text = tail[4:-8]
    assert unpack_from("<I", tail)[0] == len(text)
    assert blake3(text, derive_key_context="unikv namespace v1").digest()[:16].hex() == digest
    text_tag = tag_by_the_book(tail[:-8], h + 2**33, keyed=keyed)
    assert unpack_from("<Q", tail, len(tail) - 8)[0] == text_tag


def test_every_golden_file_has_its_case_and_its_line_in_the_readme() -> None:
    files = {path.name for path in GOLDEN.glob("v1-*.bin")}
    assert files == {f"v1-{name}.bin" for name in CASES}
    readme = (GOLDEN / "README.md").read_text()
    for name, case in CASES.items():
        key, _ = make_object(case)
        _, digest, suffix = key.split("_", 2)
        assert re.search(rf"`v1-{name}.bin`.*`{digest}`.*`{suffix}`", readme), name


def test_the_worked_example_of_the_format_page_is_the_real_object() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    key, data = make_object(CASES["mha-ragged"])
    dump = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){1,16})$", page, re.MULTILINE)
    shown = bytearray(len(data))  # rows that the page leaves out hold zeros
    for offset, row in dump:
        piece = bytes.fromhex(row)
        shown[int(offset, 16) : int(offset, 16) + len(piece)] = piece
    assert bytes(shown) == data
    h = xxh3_64_intdigest(key.encode())
    header = parse_header(data)
    text_tag = int.from_bytes(data[-8:], "little")
    for number in (h, header.payload_tag, header.table[0].tag, header.tag, text_tag):
        assert f"{number:016x}" in page
    assert key in page

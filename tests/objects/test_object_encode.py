"""Encoding: what goes around a payload, for any chunk of any grid, and what is refused."""

from collections.abc import Sequence

import pytest

from unikv.errors import FormatError, GridError, KeyFormatError
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat, parse_header
from unikv.spec import KVSpec

PAGE = "0123456789abcdef" * 4
PARENT = "f" * 64


def make_form(
    layers: int = 4,
    *,
    head_dim: int = 4,
    v_head_dim: int | None = None,
    layer_cuts: Sequence[int] | None = None,
) -> ObjectFormat:
    spec = KVSpec.mha(
        layers=layers,
        kv_heads=2,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype="bfloat16",
        page_tokens=4,
    )
    namespace = Namespace(
        spec=spec,
        weights="unversioned",
        model="toy",
        rope="none",
        heads_per_chunk=1,
        layer_cuts=layer_cuts,
    )
    return ObjectFormat.of(namespace)


def fill(size: int, seed: int = 0) -> bytes:
    return bytes((seed + 7 * i + i // 251) % 256 for i in range(size))


def test_B69_objects_of_one_layer_and_of_many_read_back_with_their_declared_shape() -> None:
    form = make_form(6, layer_cuts=(0, 1, 6))
    for chunk in form.grid.chunks:
        payload = fill(chunk.payload_bytes, chunk.index)
        header, description = form.encode(PAGE, chunk, payload)
        assert form.check(PAGE, chunk, memoryview(header + payload)) is None
        assert form.check_object(form.key(PAGE, chunk), header + payload + description) == []
        declared = parse_header(header)
        assert (declared.layers, declared.slabs) == (chunk.layers, chunk.layers.size)
        assert {slab.stored_bytes for slab in declared.table} == {chunk.slab_bytes}
        assert str(declared.key) == form.key(PAGE, chunk)


def test_B65_declared_bytes_are_the_packed_bytes_when_k_and_v_differ() -> None:
    form = make_form(2, head_dim=192, v_head_dim=128)
    chunk = form.grid.chunks[0]
    packed = 2 * 4 * (192 + 128) * 2  # layers, tokens, dims, bytes of a bfloat16
    payload = fill(packed)
    header, description = form.encode(PAGE, chunk, payload)
    assert parse_header(header).payload_bytes == chunk.payload_bytes == packed
    assert form.object_bytes(chunk) == len(header) + packed + len(description)
    k_only = fill(2 * 4 * 192 * 2)
    with pytest.raises(FormatError, match=rf"payload of {len(k_only)} bytes.*{packed} in all"):
        form.encode(PAGE, chunk, k_only)
    assert form.encode(PAGE, chunk, payload) == (header, description)


def test_all_objects_of_a_namespace_have_headers_of_one_size() -> None:
    form = make_form(61, layer_cuts=(0, 30, 60, 61))
    assert form.header_bytes == 1024  # 160 + 16 * 30 + 8, rounded up to 512
    for chunk in form.grid.chunks:
        header, _ = form.encode(PAGE, chunk, bytes(chunk.payload_bytes))
        assert len(header) == form.header_bytes


@pytest.mark.parametrize(
    ("slabs", "size"), [(1, 512), (21, 512), (22, 1024), (53, 1024), (54, 1536), (61, 1536)]
)
def test_the_header_grows_by_whole_sectors(slabs: int, size: int) -> None:
    assert make_form(slabs).header_bytes == size


def test_parent_and_page_index_change_their_fields_and_the_header_tag_only() -> None:
    form = make_form()
    chunk = form.grid.chunks[1]
    payload = fill(chunk.payload_bytes)
    alone, text = form.encode(PAGE, chunk, payload)
    placed, same_text = form.encode(PAGE, chunk, payload, parent=PARENT, page_index=2**32 - 2)
    assert same_text == text
    changed = {byte for byte in range(len(alone)) if alone[byte] != placed[byte]}
    assert changed <= {*range(64, 100), *range(504, 512)}
    assert (parse_header(alone).parent, parse_header(alone).page_index) == (None, None)
    assert (parse_header(placed).parent, parse_header(placed).page_index) == (PARENT, 2**32 - 2)
    for header in (alone, placed):
        assert form.check(PAGE, chunk, memoryview(header + payload)) is None


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview], ids=lambda wrap: wrap.__name__)
def test_any_buffer_of_bytes_is_a_payload(wrap: type) -> None:
    form = make_form()
    chunk = form.grid.chunks[0]
    payload = fill(chunk.payload_bytes)
    assert form.encode(PAGE, chunk, wrap(payload)) == form.encode(PAGE, chunk, payload)


@pytest.mark.parametrize("page", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_a_page_or_parent_that_is_no_hash_is_refused(page: str) -> None:
    form = make_form()
    chunk = form.grid.chunks[0]
    payload = bytes(chunk.payload_bytes)
    with pytest.raises(KeyFormatError, match="page hash"):
        form.encode(page, chunk, payload)
    with pytest.raises(KeyFormatError, match="page hash"):
        form.encode(PAGE, chunk, payload, parent=page)


@pytest.mark.parametrize("index", [-1, 2**32 - 1, 2**40])
def test_a_page_index_that_fits_no_field_is_refused(index: int) -> None:
    form = make_form()
    chunk = form.grid.chunks[0]
    with pytest.raises(FormatError, match=f"page index {index}: want 0 to 4294967294"):
        form.encode(PAGE, chunk, bytes(chunk.payload_bytes), page_index=index)


def test_a_chunk_of_another_grid_is_refused() -> None:
    form = make_form(4)
    for warm in (False, True):
        if warm:
            form.key(PAGE, form.grid.chunks[0])
        stranger = make_form(4, layer_cuts=(0, 1, 4)).grid.chunks[0]
        with pytest.raises(GridError, match="chunk L0-1_H0, number 0: want one of the 2"):
            form.key(PAGE, stranger)
        wider = make_form(4, head_dim=8).grid.chunks[0]  # spelled as ours, of other bytes
        with pytest.raises(GridError, match="chunk L0-4_H0"):
            form.check(PAGE, wider, memoryview(b""))


@pytest.mark.parametrize(("first", "slabs"), [(-1, 1), (0, 5), (4, 1), (2, 3), (0, -1), (5, None)])
def test_slabs_that_a_chunk_does_not_have_are_refused(first: int, slabs: int | None) -> None:
    form = make_form(4)
    with pytest.raises(GridError, match="chunk L0-4_H0 has 4"):
        form.check(PAGE, form.grid.chunks[0], memoryview(b""), first, slabs)


def test_a_header_alone_can_be_checked() -> None:
    form = make_form(4)
    chunk = form.grid.chunks[0]
    header, _ = form.encode(PAGE, chunk, bytes(chunk.payload_bytes))
    assert form.check(PAGE, chunk, memoryview(header), 0, 0) is None

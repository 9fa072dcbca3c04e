"""Specs: sizes that follow from the facts, and one clear error for each wrong fact."""

from typing import Any

import pytest

from unikv.errors import SpecError
from unikv.spec import DTYPES, KVSpec, Part, StatePart

MHA: dict[str, Any] = {
    "layers": 3, "kv_heads": 2, "head_dim": 8, "dtype": "bfloat16", "page_tokens": 16,
}  # fmt: skip
MLA: dict[str, Any] = {"layers": 3, "dim": 72, "dtype": "float16", "page_tokens": 16}
ROWS: dict[str, Any] = {"layers": 3, "row_bytes": 132, "rows_per_page": 16, "page_tokens": 16}
CONV = StatePart("conv", "bfloat16", (32, 3), (8, 8, 16))
SSM = StatePart("ssm", "float32", (4, 16, 2))
STATE: dict[str, Any] = {"layers": 3, "parts": [CONV, SSM], "page_tokens": 16, "groups": 4}
ALL = [KVSpec.mha(**MHA), KVSpec.mla(**MLA), KVSpec.rows(**ROWS), KVSpec.state(**STATE)]
IDS = ["mha", "mla", "rows", "state"]


def test_parts_are_what_a_slab_holds_in_order() -> None:
    assert KVSpec.mha(**MHA, v_head_dim=4).parts == (Part("k", 16, 16), Part("v", 16, 8))
    assert KVSpec.mla(**MLA).parts == (Part("latent", 16, 144),)
    assert KVSpec.rows(**ROWS).parts == (Part("row", 16, 132),)


def test_B16_a_group_holds_its_share_of_every_segment() -> None:
    spec = KVSpec.state(**STATE)
    widths = [size * 3 * 2 for size in (2, 2, 4)]  # a part a segment: each is cut by itself
    segments = [Part(f"conv.{n}", 1, width) for n, width in enumerate(widths)]
    assert spec.parts == (*segments, Part("ssm", 1, 16 * 2 * 4))
    assert spec.layer_bytes == CONV.size_bytes + SSM.size_bytes


def test_B18_packed_rows_are_as_wide_as_the_device_row() -> None:
    spec = KVSpec.rows(layers=1, row_bytes=528, rows_per_page=16, page_tokens=16)
    assert (spec.layer_bytes, spec.page_bytes) == (528 * 16, 528 * 16)


@pytest.mark.parametrize(
    ("spec", "axes", "layer_bytes"),
    [
        (ALL[0], (True, True), 2 * 16 * (16 + 16)),
        (ALL[1], (False, True), 16 * 144),
        (ALL[2], (False, True), 16 * 132),
        (KVSpec.rows(**ROWS | {"rows_per_page": 4}), (False, False), 4 * 132),
        (ALL[3], (True, False), 192 + 512),
        (KVSpec.state(**STATE | {"groups": 1}), (False, False), 192 + 512),
    ],
    ids=[*IDS[:3], "rows of four tokens", "state", "state of one group"],
)
def test_sizes_and_axes_follow_from_the_kind(
    spec: KVSpec, axes: tuple[bool, bool], layer_bytes: int
) -> None:
    assert (spec.has_heads, spec.tokenwise) == axes
    assert (spec.layer_bytes, spec.page_bytes) == (layer_bytes, 3 * layer_bytes)


@pytest.mark.parametrize("spec", ALL, ids=IDS)
def test_a_description_gives_the_spec_back(spec: KVSpec) -> None:
    assert KVSpec.from_description(spec.describe()) == spec


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_list_has_its_width(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    assert getattr(torch, dtype).itemsize == DTYPES[dtype]
    assert KVSpec.mla(**MLA | {"dtype": dtype}).parts[0].width == 72 * DTYPES[dtype]


def test_layer_ids_are_a_snapshot() -> None:
    ids = [3, 7, 11]
    spec = KVSpec.mha(**MHA, layer_ids=ids)
    ids[0] = 0
    assert spec.layer_ids == (3, 7, 11)
    assert KVSpec.mha(**MHA).layer_ids == (0, 1, 2)


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "page_tokens", "v_head_dim"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", 2**40], ids=repr)
def test_a_size_that_is_no_whole_number_above_zero_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"{field} .*: want a whole number from 1 to"):
        KVSpec.mha(**MHA | {field: value})


@pytest.mark.parametrize(
    ("build", "fields", "message"),
    [
        (KVSpec.mha, MHA | {"dtype": "fp8"}, "dtype 'fp8': want a name, one of float32"),
        (KVSpec.mha, MHA | {"dtype": None}, "dtype None: want a name"),
        (KVSpec.mha, MHA | {"layer_ids": [0, 1]}, r"layer_ids \(0, 1\): want 3 model layers"),
        (KVSpec.mha, MHA | {"layer_ids": [0, 2, 1]}, "ascending"),
        (KVSpec.mha, MHA | {"layer_ids": [0, 1, 1]}, "ascending"),
        (KVSpec.mha, MHA | {"layer_ids": [-1, 0, 1]}, "from 0 to 65535"),
        (KVSpec.mha, MHA | {"layer_ids": [0, 1, 2**16]}, "from 0 to 65535"),
        (KVSpec.mha, MHA | {"layer_ids": [0, True, 2]}, "want 3 model layers"),
        (KVSpec.mha, MHA | {"head_dim": 2**24, "kv_heads": 128}, "fewer page_tokens would fit"),
        (KVSpec.mla, MLA | {"dim": 0}, "head_dim 0: want"),
        (KVSpec.rows, ROWS | {"rows_per_page": 0}, "rows_per_page 0: want"),
        (KVSpec.state, STATE | {"groups": 3}, r"3 groups do not divide axis 0.*\(8, 8, 16\)"),
        (KVSpec.state, STATE | {"groups": 0}, "kv_heads 0: want"),
        (KVSpec.state, STATE | {"parts": []}, "want one or more, of different names"),
        (KVSpec.state, STATE | {"parts": [SSM, SSM]}, "of different names"),
        (KVSpec.state, STATE | {"parts": ["ssm"]}, "want StatePart"),
        (KVSpec, {"kind": "gqa", "layers": 1, "page_tokens": 1}, "kind 'gqa': want one of mha"),
        (
            KVSpec,
            {"kind": "mla", "layers": 1, "page_tokens": 1, "layer_ids": (0,), "row_bytes": 4},
            "head_dim 0: want|row_bytes 4: a mla spec has none",
        ),
    ],
)
def test_a_wrong_fact_gets_one_clear_error(build: Any, fields: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Conv"}, "state part name 'Conv': want a word"),
        ({"name": ""}, "want a word"),
        ({"dtype": "double"}, "dtype 'double'"),
        ({"shape": ()}, "want one axis or more"),
        ({"shape": (0, 2)}, "want whole numbers from 1"),
        ({"shape": (2.0,)}, "want whole numbers from 1"),
        ({"segments": (8, 8)}, "sum to 16: want 32"),
        ({"segments": (-8, 40)}, "want whole numbers from 1"),
    ],
)
def test_a_wrong_state_part_gets_one_clear_error(changes: Any, message: str) -> None:
    fields: Any = {"name": "conv", "dtype": "bfloat16", "shape": (32, 3), "segments": ()}
    with pytest.raises(SpecError, match=message):
        StatePart(**fields | changes)


def test_segments_that_shape_no_bytes_are_no_facts() -> None:
    assert StatePart("ssm", "float32", (4, 2), (4,)) == StatePart("ssm", "float32", (4, 2))
    uncut = StatePart("conv", "bfloat16", (32, 3))
    cut = [KVSpec.state(layers=1, parts=[part], page_tokens=4) for part in (CONV, uncut)]
    assert cut[0] == cut[1]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"kind": "mha"},
        {"kind": "mha", "layer_ids": "012"},
        KVSpec.mha(**MHA).describe() | {"color": 1},
        KVSpec.mha(**MHA).describe() | {"layers": True},
        KVSpec.mha(**MHA).describe() | {"row_bytes": 7},
        KVSpec.mha(**MHA).describe() | {"kind": ["mha"]},
        KVSpec.state(**STATE).describe() | {"state_parts": [1]},
        KVSpec.state(**STATE).describe() | {"state_parts": [{"name": "ssm"}]},
        KVSpec.state(**STATE).describe() | {"state_parts": [{"name": "s", "shape": 4}]},
    ],
    ids=repr,
)
def test_a_description_that_none_gave_is_refused(facts: Any) -> None:
    with pytest.raises(SpecError):
        KVSpec.from_description(facts)

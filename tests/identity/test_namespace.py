"""Namespaces: construction that refuses what cannot be right, and texts that nobody vouches for."""

import json
import pickle
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.samples import SPEC, make
from unikv.canonical import encode
from unikv.errors import FormatError, SpecError
from unikv.namespace import TEXT_LIMIT, Namespace
from unikv.spec import KVSpec, StatePart

STATE = KVSpec.state(
    layers=2,
    parts=[StatePart("conv", "bfloat16", (32, 3), (8, 8, 16)), StatePart("ssm", "float32", (4, 2))],
    page_tokens=16,
    groups=4,
)
SAMPLES = {
    "mha": make(),
    "cut": make(layers_per_chunk=4, heads_per_chunk=2, phases=2, interleave=2, tags="blake3_keyed"),
    "mla": make(spec=KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=64)),
    "rows": make(spec=KVSpec.rows(layers=3, row_bytes=132, rows_per_page=4, page_tokens=16)),
    "state": make(spec=STATE, heads_per_chunk=2, rope="none"),
    "hybrid": make(spec=KVSpec.mha(**SPEC, layer_ids=range(3, 24, 4)), component="Å/@_.. 日本"),
    "unversioned": make(weights="unversioned", model="x" * 300, scales="", numerics="@@x"),
    "nested rope": make(rope={"full_attention": {"theta": 1e6}, "sliding_attention": None}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "cuts"),
    [
        ({}, (0, 6)),
        ({"layers_per_chunk": 4}, (0, 4, 6)),
        ({"layers_per_chunk": 1}, (0, 1, 2, 3, 4, 5, 6)),
        ({"layer_cuts": [0, 5, 6]}, (0, 5, 6)),
        ({"layers_per_chunk": None, "layer_cuts": None}, (0, 6)),
    ],
)
def test_layer_cuts_are_normalised(given: dict[str, Any], cuts: tuple[int, ...]) -> None:
    assert make(**given).layer_cuts == cuts


def test_a_grid_without_heads_has_one_head_a_chunk() -> None:
    assert [SAMPLES[name].heads_per_chunk for name in ("mha", "mla", "rows", "state")] == [
        4, 1, 1, 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers_per_chunk": 2, "layer_cuts": (0, 6)}, "layers_per_chunk 2 and layer_cuts .*one"),
        ({"layers_per_chunk": 0}, "layers_per_chunk 0: want a whole number from 1"),
        ({"layers_per_chunk": True}, "layers_per_chunk True: want"),
        ({"layer_cuts": ()}, r"layer_cuts \(\): want .* from 0 to 6, such as \(0, 3, 6\)"),
        ({"layer_cuts": (0, 7)}, "from 0 to 6"),
        ({"layer_cuts": (1, 6)}, "from 0 to 6"),
        ({"layer_cuts": (0, 3, 3, 6)}, "ascending"),
        ({"layer_cuts": (0, 3.0, 6)}, "whole numbers"),
        ({"heads_per_chunk": 3}, "heads_per_chunk 3 does not divide 4 heads: want one of 1, 2, 4"),
        ({"heads_per_chunk": 0}, "heads_per_chunk 0: want"),
        ({"heads_per_chunk": 8}, "want one of 1, 2, 4"),
        ({"phases": 3}, "3 phases of 1 tokens do not divide a page of 16"),
        ({"phases": 4, "interleave": 8}, "4 phases of 8 tokens do not divide a page of 16"),
        ({"phases": 0}, "phases 0: want"),
        ({"interleave": -1}, "interleave -1: want"),
        ({"spec": STATE, "phases": 2}, "the rows of a state spec do not follow tokens, want 1"),
        ({"spec": SAMPLES["rows"].spec, "phases": 2}, "phases 2: the rows of a rows spec do"),
        ({"spec": SPEC}, "want a KVSpec"),
        ({"codec": "lz4"}, "codec 'lz4': want one of none, zstd"),
        ({"tags": "crc32"}, "tags 'crc32': want one of xxh3_64, blake3_keyed"),
        ({"rope": None}, 'rope None: want settings such as .*, or "none"'),
        ({"rope": {}}, "rope {}: want settings"),
        ({"component": ""}, "component '': want a text that is not empty"),
        ({"quant": ""}, "quant '': want a text that is not empty"),
        ({"numerics": 1}, "numerics 1: want a text"),
        ({"model": "a\nb"}, "model 'a.*: want a text without control characters"),
        ({"model": "\x1b[31m"}, "without control characters"),
        ({"scales": "\ud800"}, "without control characters"),
        ({"numerics": "x" * 4000}, "canonical text of .* bytes: want at most 4000"),
        (
            {"spec": KVSpec.mla(layers=1200, dim=8, dtype="int8", page_tokens=4)},
            "canonical text of .* bytes",
        ),
        (
            {"spec": KVSpec.mla(layers=2, dim=8, dtype="int8", page_tokens=2**17), "phases": 2**17},
            "a grid of 131072 chunks a page: want at most 65536",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_right_value(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        make(**changes)


@pytest.mark.parametrize("namespace", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_text_gives_its_namespace_back(namespace: Namespace) -> None:
    back = Namespace.parse(namespace.canonical)
    assert back == namespace
    assert (back.spec, back.layer_cuts, back.rope) == (
        namespace.spec, namespace.layer_cuts, namespace.rope,
    )  # fmt: skip
    assert (back.digest, back.family) == (namespace.digest, namespace.family)


@pytest.mark.parametrize("namespace", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_namespace_crosses_processes_and_copies(namespace: Namespace) -> None:
    for copy in (pickle.loads(pickle.dumps(namespace)), deepcopy(namespace)):
        assert copy == namespace
        assert (copy.model, copy.digest, copy.layer_cuts) == (
            namespace.model, namespace.digest, namespace.layer_cuts,
        )  # fmt: skip


LABELS = ["a@b", "@@x", "a/b", "a%40b", "", "..", "_", "é", "日本語", "x" * 300, "\u202e", "👍🏽"]


def test_B106_labels_are_never_delimiters() -> None:
    texts = {(a, b): make(numerics=a, scales=b).canonical for a in LABELS for b in LABELS}
    assert len(set(texts.values())) == len(LABELS) ** 2
    for labels, text in texts.items():
        back = Namespace.parse(text)
        assert (back.numerics, back.scales) == labels


@given(st.text(max_size=40), st.text(max_size=40))
def test_B106_no_label_reads_as_another_field(one: str, other: str) -> None:
    try:
        namespace = make(numerics=one, scales=other)
    except SpecError:
        return  # a control character
    back = Namespace.parse(namespace.canonical)
    assert (back.numerics, back.scales) == (namespace.numerics, namespace.scales)
    assert make(numerics=other, scales=one) == namespace or (one, other) != (other, one)


def edited(**changes: Any) -> bytes:
    """Return the text of `make` with top-level fields changed, or dropped where None."""
    fields = json.loads(make().canonical) | changes
    return encode({name: value for name, value in fields.items() if value is not None})


def test_B07_B99_a_text_of_another_format_is_refused_by_both_versions() -> None:
    with pytest.raises(FormatError, match="of format 2: this reader knows format 1"):
        Namespace.parse(edited(format=2))


GOOD = make().canonical
HOSTILE = {
    "empty": b"",
    "no json": b"\xff\xfe{",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "too long": GOOD + b" " * TEXT_LIMIT,
    "space": GOOD.replace(b",", b", ", 1),
    "a space behind": GOOD + b" ",
    "a line break behind": GOOD + b"\n",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "keys out of order": b'{"weights":' + json.dumps(make().weights).encode() + b"," + GOOD[1:],
    "a key twice": GOOD.replace(b'"codec":"none"', b'"codec":"none","codec":"none"'),
    "an escape": GOOD.replace(b'"none"', b'"\\u006eone"', 1),
    "a float": GOOD.replace(b'"phases":1', b'"phases":1.0'),
    "an exponent": GOOD.replace(b'"phases":1', b'"phases":1e0'),
    "NaN": GOOD.replace(b'"phases":1', b'"phases":NaN'),
    "a null": GOOD.replace(b'"phases":1', b'"phases":null'),
    "a bool": GOOD.replace(b'"phases":1', b'"phases":true'),
    "a long number": GOOD.replace(b'"phases":1', b'"phases":' + b"9" * 3000),
    "deep lists": b"[" * 3999,
    "deep objects": b'{"a":' * 700,
    "deep rope": edited(rope={"x": json.loads("[" * 600 + "]" * 600), "theta": "1"}),
    "a rope number": GOOD.replace(b'"100000"', b"100000"),
    "a rope spelling": GOOD.replace(b'"100000"', b'"1e5"'),
    "a rope default": edited(rope={"theta": "1", "rope_type": "default", "rope_interleave": True}),
    "a fact missing": edited(spec=None),
    "a text missing": edited(quant=None),
    "a fact more": edited(extra=1),
    "a model that is no field": edited(model="llama"),
    "an argument": edited(layers_per_chunk=2),
    "self": edited(self=1),
    "cls": edited(cls=1),
    "a fact in the grid": edited(grid=json.loads(GOOD)["grid"] | {"weights": "x"}),
    "a grid list": edited(grid=[1]),
    "a spec text": edited(spec="mha"),
    "another layout": edited(layout="group,layer,row,part,head,width"),
    "two pages an object": edited(pages_per_object=2),
    "a weights list": edited(weights=["hf:"]),
    "an alias": edited(weights="hf:main"),
    "unversioned without a model": edited(weights="unversioned"),
    "NFD": edited(numerics="e\u0301"),
    "control": edited(numerics="\x00"),
    "half a text": GOOD[: len(GOOD) // 2],
    "lone surrogate": GOOD.replace(b'"numerics":""', b'"numerics":"\\ud800"'),
    "cuts of texts": edited(grid=json.loads(GOOD)["grid"] | {"layer_cuts": "06"}),
    "a million chunks": edited(grid=json.loads(GOOD)["grid"] | {"phases": 2**20}),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_text_that_no_namespace_has_is_a_format_error(text: bytes) -> None:
    with pytest.raises(FormatError):
        Namespace.parse(text)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_another_namespace_or_none(place: int, change: int) -> None:
    text = bytearray(GOOD)
    text[place] ^= change
    try:
        parsed = Namespace.parse(bytes(text))
    except FormatError:
        return
    assert parsed.canonical == bytes(text)
    assert parsed.digest != make().digest


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_bytes_raise_anything_but_a_format_error(text: bytes) -> None:
    with pytest.raises(FormatError):
        Namespace.parse(text)


@given(st.sampled_from(sorted(json.loads(GOOD))), st.recursive(
    st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
))  # fmt: skip
def test_no_value_of_a_field_raises_anything_but_a_format_error(name: str, value: Any) -> None:
    try:
        text = edited(**{name: value})
    except SpecError:
        return  # what the text cannot hold
    with suppress(FormatError):
        assert Namespace.parse(text).canonical == text

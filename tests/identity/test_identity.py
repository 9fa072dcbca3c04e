"""Identity: the table of what flips a namespace's digest, and the table of what must not."""

import inspect
import json
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest

from tests.identity.samples import COMMIT, SPEC, make
from unikv import namespace as module
from unikv.canonical import encode, hash_text
from unikv.errors import SpecError
from unikv.namespace import NAMESPACE_CONTEXT, Namespace
from unikv.spec import FACTS, KVSpec, StatePart

CONV: dict[str, Any] = {"name": "conv", "dtype": "float16", "shape": (8, 3), "segments": (4, 4)}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mha": (KVSpec.mha, SPEC),
    "mla": (KVSpec.mla, {"layers": 6, "dim": 8, "dtype": "bfloat16", "page_tokens": 16}),
    "rows": (KVSpec.rows, {"layers": 6, "row_bytes": 8, "rows_per_page": 16, "page_tokens": 16}),
    "state": (KVSpec.state, {
        "layers": 6, "parts": [StatePart(**CONV)], "groups": 2, "page_tokens": 16,
    }),
}  # fmt: skip

# Every field of the namespace, each with another value than `make` gives it.
FIELDS: dict[str, dict[str, Any]] = {
    "spec": {"spec": KVSpec.mla(layers=6, dim=64, dtype="bfloat16", page_tokens=16)},
    "weights": {"weights": "hf:" + "9876543210" * 4},
    "weights of files": {"weights": "files:" + "01" * 32},
    "rope": {"rope": {"theta": 100001}},
    "rope none": {"rope": "none"},
    "component": {"component": "draft"},
    "quant": {"quant": "fp8-per-head"},
    "scales": {"scales": "ab" * 16},
    "numerics": {"numerics": "kernels of 2026"},
    "layers_per_chunk": {"layers_per_chunk": 3},
    "layer_cuts": {"layer_cuts": (0, 2, 6)},
    "heads_per_chunk": {"heads_per_chunk": 2},
    "phases": {"phases": 2},
    "interleave": {"phases": 2, "interleave": 4},
    "tags": {"tags": "blake3_keyed"},
    "codec": {"codec": "zstd"},
}
# Every fact of every kind of spec, each with another value than KINDS gives it.
FACT_CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("mha", {"layers": 7}),
    ("mha", {"kv_heads": 8}),
    ("mha", {"head_dim": 16}),
    ("mha", {"v_head_dim": 16}),
    ("mha", {"dtype": "float16"}),
    ("mha", {"page_tokens": 32}),
    ("mha", {"layer_ids": (0, 1, 2, 3, 4, 6)}),
    ("mla", {"layers": 7}),
    ("mla", {"dim": 16}),
    ("mla", {"dtype": "float16"}),
    ("mla", {"page_tokens": 32}),
    ("mla", {"layer_ids": (1, 2, 3, 4, 5, 6)}),
    ("rows", {"layers": 7}),
    ("rows", {"row_bytes": 16}),
    ("rows", {"rows_per_page": 8}),
    ("rows", {"page_tokens": 32}),
    ("rows", {"layer_ids": (1, 2, 3, 4, 5, 6)}),
    ("state", {"layers": 7}),
    ("state", {"groups": 4}),
    ("state", {"page_tokens": 32}),
    ("state", {"layer_ids": (1, 2, 3, 4, 5, 6)}),
    ("state", {"parts": [StatePart(**CONV | {"name": "ssm"})]}),
    ("state", {"parts": [StatePart(**CONV | {"dtype": "bfloat16"})]}),
    ("state", {"parts": [StatePart(**CONV | {"shape": (8, 4)})]}),
    ("state", {"parts": [StatePart(**CONV | {"segments": ()})]}),
    ("state", {"parts": [StatePart(**CONV), StatePart("ssm", "float32", (2,))]}),
]


def paths(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the way to every leaf of a JSON value."""
    if isinstance(value, Mapping):
        return [path for key in value for path in paths(value[key], (*at, key))]
    if isinstance(value, list) and value:
        return [path for i, item in enumerate(value) for path in paths(item, (*at, i))]
    return [at]


@pytest.mark.parametrize("changes", FIELDS.values(), ids=FIELDS.keys())
def test_every_field_alone_flips_the_digest(changes: dict[str, Any]) -> None:
    assert make(**changes).digest != make().digest


def test_fields_that_differ_from_each_other_have_digests_of_their_own() -> None:
    digests = [make(**changes).digest for changes in FIELDS.values()]
    assert len({*digests, make().digest}) == len(digests) + 1


def test_the_tables_name_every_argument_and_every_fact() -> None:
    arguments = set(inspect.signature(Namespace).parameters)
    named = {name for changes in FIELDS.values() for name in changes}
    assert named == arguments - {"model"}  # it is a label below
    facts = {name for kind in FACTS for name in KVSpec.__dataclass_fields__ if name in FACTS[kind]}
    assert facts == set(KVSpec.__dataclass_fields__) - {
        "kind", "layers", "page_tokens", "layer_ids",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), FACT_CHANGES, ids=repr)
def test_every_fact_of_a_spec_flips_the_digest(kind: str, change: dict[str, Any]) -> None:
    build, facts = KINDS[kind]
    assert make(spec=build(**facts | change)).digest != make(spec=build(**facts)).digest


def test_the_four_kinds_of_spec_have_four_digests() -> None:
    assert len({make(spec=build(**facts)).digest for build, facts in KINDS.values()}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_leaf_of_the_text_is_hashed(kind: str) -> None:
    build, facts = KINDS[kind]
    namespace = make(spec=build(**facts))
    for path in paths(json.loads(namespace.canonical)):
        text = json.loads(namespace.canonical)
        *way, last = path
        place = text
        for step in way:
            place = place[step]
        place[last] = "changed"
        assert hash_text(encode(text), NAMESPACE_CONTEXT) != namespace.digest, path


@pytest.mark.parametrize(
    ("constant", "value"),
    [("FORMAT", 2), ("LAYOUT", "group,layer,row,part,head,width"), ("PAGES_PER_OBJECT", 2)],
)
def test_B06_B07_another_format_or_layout_of_equal_size_is_another_digest(
    monkeypatch: pytest.MonkeyPatch, constant: str, value: object
) -> None:
    before = make()
    monkeypatch.setattr(module, constant, value)
    after = make()
    assert after.digest != before.digest
    assert (after.family == before.family) == (constant == "LAYOUT")


def test_B01_dtypes_of_equal_size_have_namespaces_of_their_own() -> None:
    dtypes = ["bfloat16", "float16", "int16"]
    narrow = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8", "uint8"]
    digests = {make(spec=KVSpec.mha(**SPEC | {"dtype": d})).digest for d in dtypes + narrow}
    assert len(digests) == 9


def test_B02_weights_of_one_name_and_shape_do_not_share() -> None:
    first, second = (make(model="llama", weights="files:" + digit * 64) for digit in ("a", "b"))
    assert first.digest != second.digest
    assert first.family != second.family


def test_B03_an_update_of_the_weights_and_back_is_three_lookups_of_two_digests() -> None:
    one, two, back = (make(weights="hf:" + digit * 40) for digit in "121")
    assert one.digest == back.digest != two.digest


@pytest.mark.parametrize("weights", ["hf:main", "hf:v1.0", "main", "hf:" + "a" * 39, "", None])
def test_B08_an_alias_is_no_identity_of_weights(weights: Any) -> None:
    with pytest.raises(SpecError, match=r"weights .*: want 'hf:' and a commit of 40 hex digits"):
        make(weights=weights)


def test_B02_weights_without_a_version_are_a_choice_in_words() -> None:
    with pytest.raises(SpecError, match="model '': want a text that is not empty"):
        make(weights="unversioned")
    one, two = (make(weights="unversioned", model=model) for model in ("llama", "llama-2"))
    assert len({one.digest, two.digest, make(model="llama").digest}) == 3
    assert one.family != two.family


# What must not flip it: equal settings in other words, and what is no setting of the bytes.
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "a label"}, {"model": "another label"}),
        ({"layers_per_chunk": 2}, {"layer_cuts": [0, 2, 4, 6]}),
        ({"layers_per_chunk": 6}, {}),
        ({"layers_per_chunk": 100}, {"layer_cuts": (0, 6)}),
        ({"heads_per_chunk": 4}, {}),
        ({"interleave": 4}, {}),
        ({"spec": KVSpec.mha(**SPEC, v_head_dim=8)}, {}),
        ({"spec": KVSpec.mha(**SPEC, layer_ids=range(6))}, {}),
        ({"rope": {"theta": 100000}}, {"rope": {"theta": 1e5}}),
        ({"rope": {"theta": "1e5"}}, {"rope": {"theta": 100000.0}}),
        ({"rope": {"type": "default", "rope_theta": 1e5}}, {}),
        (
            {"rope": {"theta": 1e4, "factor": 2, "rope_type": "linear"}},
            {"rope": {"rope_type": "linear", "factor": 2.0, "theta": 10000}},
        ),
        (
            {"component": unicodedata.normalize("NFD", "données")},
            {"component": unicodedata.normalize("NFC", "données")},
        ),
        (
            {"numerics": "\u212b"},  # the Angstrom sign, which NFC makes a letter
            {"numerics": "\u00c5"},
        ),
    ],
    ids=lambda changes: ",".join(changes) or "default",
)
def test_equal_settings_in_other_words_have_one_digest(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert make(**one) == make(**other)
    assert make(**one).digest == make(**other).digest
    assert hash(make(**one)) == hash(make(**other))


@pytest.mark.parametrize("name", ["spec", "weights", "rope", "component", "quant", "scales",
                                  "numerics", "tags"])  # fmt: skip
def test_siblings_of_a_family_differ_in_nothing_but_grid_layout_and_codec(name: str) -> None:
    assert make(**FIELDS[name]).family != make().family


@pytest.mark.parametrize("name", ["layers_per_chunk", "layer_cuts", "heads_per_chunk", "phases",
                                  "interleave", "codec"])  # fmt: skip
def test_another_grid_or_codec_stays_in_the_family(name: str) -> None:
    assert make(**FIELDS[name]).family == make().family


def test_a_namespace_is_a_snapshot_of_what_it_was_made_from() -> None:
    cuts, sections = [0, 2, 6], [1, 2]
    rope: dict[str, Any] = {"theta": 1e5, "mrope_section": sections}
    namespace = make(rope=rope, layer_cuts=cuts)
    before = (namespace.canonical, namespace.digest, namespace.layer_cuts)
    cuts[1] = 3
    rope["theta"] = 1.0
    sections.append(3)
    namespace.rope["theta"] = "2"  # type: ignore[index]  # a dict of its own, this once
    assert (namespace.canonical, namespace.digest, namespace.layer_cuts) == before
    assert namespace.rope == {"mrope_section": ["1", "2"], "rope_type": "axial", "theta": "100000"}
    with pytest.raises(AttributeError):
        namespace.weights = COMMIT  # type: ignore[misc]

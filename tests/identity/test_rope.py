"""Rope: one spelling for equal settings, another for others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import SpecError
from unikv.rope import canonical_rope, spell_number

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope", "theta": 1e4, "factor": 32, "original_max_position_embeddings": 4096,
    "short_factor": [1.0, 1.02, *[1.1] * 46], "long_factor": [1.08, 1.11, *[9.5] * 46],
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100000, "100000"), (1e5, "100000"), ("1e5", "100000"),
        (0.1, "0.1"), ("0.10", "0.1"), (1e-6, "0.000001"), (0, "0"), (-0.0, "0"), (1.0, "1"),
        (1e22, "1" + "0" * 22), (10**30 + 1, "1" + "0" * 29 + "1"), (-2.5, "-2.5"),
        (0.30000000000000004, "0.30000000000000004"), (2.0**-20, "0.00000095367431640625"),
    ],
)  # fmt: skip
def test_a_number_has_one_shortest_decimal(value: float | str, text: str) -> None:
    assert spell_number("theta", value) == text


@given(st.floats(1e-12, 1e12) | st.integers(-(2**53), 2**53))
def test_a_decimal_reads_back_as_the_number_it_spells(value: float) -> None:
    text = spell_number("theta", value)
    assert float(text) == value
    assert spell_number("theta", text) == text
    assert "e" not in text
    assert not text.endswith(".")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, 10**64, 1e-70])
def test_a_number_without_a_short_decimal_is_refused(value: float) -> None:
    with pytest.raises(SpecError, match=r"theta .*: want a"):
        canonical_rope({"theta": value})


def test_numpy_numbers_are_spelled_as_their_values() -> None:
    np = pytest.importorskip("numpy")
    assert canonical_rope({"theta": np.float64(0.1)}) == {"rope_type": "default", "theta": "0.1"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"theta": 1e4}, {"rope_theta": 10000, "type": "default"}),
        ({"theta": 1e4}, {"theta": 1e4, "partial_rotary_factor": 1.0, "factor": None}),
        (
            {"theta": 1e4, "rotary_pct": 0.25},
            {"rotary_emb_base": 1e4, "partial_rotary_factor": 0.25},
        ),
        ({"theta": 1e4}, {"theta": 1e4, "rope_interleave": True}),
        (YARN, YARN | {"type": "yarn", "beta_fast": 32, "beta_slow": 1.0, "truncate": True}),
        (YARN, dict(reversed(YARN.items()))),
        (LONG, LONG | {"rope_type": "su"}),
        (LONG, LONG | {"short_factor": tuple(LONG["short_factor"])}),
        (
            {"theta": 1e6, "type": "mrope", "mrope_section": [16, 24, 24]},
            {"theta": 1e6, "type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]},
        ),
        (
            {"theta": 1e6, "rope_type": "axial", "mrope_section": [16, 24, 24]},
            {"theta": 1e6, "rope_type": "default", "mrope_section": [16.0, 24, 24]},
        ),
        ({"full_attention": {"theta": 1e4}, "sliding_attention": {"theta": 1e4}}, {"theta": 1e4}),
        (
            {"attention": {"theta": 1e4}, "sliding_attention": None},
            {"sliding_attention": "none", "full_attention": {"rope_theta": 10000}},
        ),
    ],
)  # fmt: skip
def test_equal_settings_have_one_spelling(one: Any, other: Any) -> None:
    assert canonical_rope(one) == canonical_rope(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"theta": 1e6 + 1}, {"factor": 4.5}, {"original_max_position_embeddings": 8192},
        {"beta_fast": 16}, {"beta_slow": 2}, {"truncate": False}, {"attention_factor": 1.0},
        {"mscale": 0.707}, {"partial_rotary_factor": 0.5}, {"rope_type": "linear"},
        {"rope_interleave": False}, {"mrope_section": [1, 2]}, {"a setting of 2027": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_every_setting_alone_makes_another_spelling(changes: dict[str, Any]) -> None:
    assert canonical_rope(YARN | changes) != canonical_rope(YARN)


def test_one_factor_of_a_long_list_makes_another_spelling() -> None:
    found = canonical_rope(LONG)
    assert isinstance(found, dict)
    assert str(found["short_factor"]).startswith("blake3:")
    factors = list(LONG["long_factor"])
    factors[-1] += 0.001
    assert canonical_rope(LONG | {"long_factor": factors}) != found
    swapped = {"short_factor": LONG["long_factor"], "long_factor": LONG["short_factor"]}
    assert canonical_rope(LONG | swapped) != found


def test_layer_types_that_differ_stay_apart() -> None:
    one, other = {"theta": 1e6}, {"theta": 1e4}
    found = canonical_rope({"full_attention": one, "sliding_attention": other})
    assert found == {
        "full_attention": {"rope_type": "default", "theta": "1000000"},
        "sliding_attention": {"rope_type": "default", "theta": "10000"},
    }
    assert found != canonical_rope({"full_attention": other, "sliding_attention": one})


def test_one_layer_type_of_three_that_differs_keeps_all_apart() -> None:
    one, other = {"theta": 1e6}, {"theta": 1e4}
    found = canonical_rope({"a": one, "b": one, "c": other})
    assert list(found) == ["a", "b", "c"]


def test_a_list_of_nine_is_kept_as_its_digest_and_one_of_eight_as_it_is() -> None:
    eight, nine = (canonical_rope({"theta": 1e4, "x": [0.5] * n}) for n in (8, 9))
    assert isinstance(eight, dict)
    assert isinstance(nine, dict)
    assert eight["x"] == ["0.5"] * 8
    assert str(nine["x"]).startswith("blake3:")
    assert len(str(nine["x"])) == 7 + 32


@pytest.mark.parametrize(
    "settings",
    ["none", {"theta": 1e4}, YARN, LONG, {"full_attention": YARN, "sliding_attention": None}],
)
def test_the_canonical_form_of_a_canonical_form_is_itself(settings: Any) -> None:
    once = canonical_rope(settings)
    assert canonical_rope(once) == once


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, 'rope None: want settings such as {"theta": 1e4}, or "none"'),
        ("None", "rope 'None': want settings"),
        ([], r"rope \[\]: want settings"),
        ({}, "rope {}: want settings"),
        ({"rope_type": "default"}, r"rope settings \['rope_type'\] without theta: want"),
        ({"theta": None}, "without theta"),
        ({"theta": 1e4, "x": {1}}, r"rope x \{1\}: want a number, a text, a bool or a list"),
        ({"theta": 1e4, "x": [[{}]]}, "rope x {}: want a number"),
        ({"theta": 1e4, "rope_type": 4}, "rope_type '4': want a word"),
        (
            {"theta": 1e4, "rope_theta": 1e5},
            "rope 'rope_theta' 100000.0 and theta '10000': want one",
        ),
        ({"full_attention": {"theta": 1e4}, "theta": 1e4}, "beside settings nested by layer type"),
        ({"full_attention": {}}, r"rope settings \['rope_type'\] without theta: want"),
        ({"attention": {"theta": 1}, "full_attention": {"theta": 2}}, "two name the same type"),
        ({1: 2}, "rope setting 1: want a text"),
    ],
)
def test_settings_that_are_none_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        canonical_rope(settings)

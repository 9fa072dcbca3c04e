"""RoPE of Hugging Face configs: 4.x and 5.x spellings of one model give one digest."""

from typing import Any

import pytest

from tests.identity.samples import COMMIT
from unikv.errors import SpecError
from unikv.hf_config import rope_from_hf_config
from unikv.namespace import Namespace

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 96,
    "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"}  # fmt: skip
YARN = {"factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn"}  # fmt: skip
FACTORS = {"short_factor": [1.0, 1.1] * 24, "long_factor": [1.5, 60.25] * 24}
SCALED = {"factor": 8.0, "rope_type": "linear"}
SIX = ["sliding_attention"] * 5 + ["full_attention"]
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}

# Each model as 4.x and as 5.x write it, by hand from the fields of both.
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": (
        {"rope_theta": 100000, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}},
    ),
    "llama3": (
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000}},
    ),
    "linear": (
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "yarn": (
        {"rope_theta": 10000, "rope_scaling": YARN},
        {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 1e4},
         "rope_interleave": True},
    ),
    "yarn without its original length": (
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
                             "original_max_position_embeddings": 131072}},
    ),
    "dynamic": (
        {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "longrope": (
        {"rope_theta": 1e4, "rope_scaling": FACTORS | {"type": "longrope"},
         "original_max_position_embeddings": 4096},
        {"rope_parameters": FACTORS | {"rope_type": "longrope", "type": "longrope",
                                       "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
                                       "original_max_position_embeddings": 4096},
         "original_max_position_embeddings": 4096},
    ),
    "longrope under its first name": (
        {"rope_theta": 1e4, "rope_scaling": FACTORS | {"type": "su"},
         "original_max_position_embeddings": 4096},
        {"rope_parameters": FACTORS | {"rope_type": "longrope", "rope_theta": 10000.0,
                                       "factor": 32.0, "original_max_position_embeddings": 4096}},
    ),
    "partial": (
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                             "partial_rotary_factor": 0.5}},
    ),
    "partial of GPT-NeoX": (
        {"rotary_emb_base": 10000, "rotary_pct": 0.25},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                             "partial_rotary_factor": 0.25}},
    ),
    "partial by width": (
        {"rope_theta": 5e6, "rotary_dim": 48},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6,
                             "partial_rotary_factor": 0.5}, "rotary_dim": 48},
    ),
    "local and global": (
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": SCALED,
         "layer_types": SIX * 2},
        {"rope_parameters": {"sliding_attention": LOCAL,
                             "full_attention": SCALED | {"rope_theta": 1e6}},
         "layer_types": SIX * 2},
    ),
    "scaled in full layers alone": (
        {"model_type": "olmo3", "rope_theta": 1e4, "rope_scaling": YARN, "layer_types": SIX * 2},
        {"model_type": "olmo3", "layer_types": SIX * 2,
         "rope_parameters": {"sliding_attention": LOCAL,
                             "full_attention": YARN | {"rope_theta": 1e4, "rope_type": "yarn"}}},
    ),
    "alike in all layer types": (
        {"rope_theta": 1e4, "layer_types": SIX * 2},
        {"rope_parameters": {"sliding_attention": LOCAL, "full_attention": LOCAL},
         "layer_types": SIX * 2},
    ),
    "multimodal": (
        {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        {"rope_parameters": {"rope_type": "axial", "type": "mrope", "rope_theta": 1e6,
                             "mrope_section": [16, 24, 24]}},
    ),
    "layers without": (
        {"rope_theta": 2e6, "no_rope_layer_interval": 4, "no_rope_layers": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e6},
         "no_rope_layers": [1, 1, 1, 0] * 3, "no_rope_layer_interval": 4},
    ),
    "both spellings at once": (
        {"rope_theta": 1e4, "rope_scaling": SCALED},
        {"rope_theta": 1e4, "rope_scaling": SCALED,
         "rope_parameters": SCALED | {"rope_theta": 1e4}},
    ),
}  # fmt: skip


def digest_of(settings: dict[str, Any]) -> str:
    return Namespace.from_hf_config(
        SHAPE | settings, weights=COMMIT, page_tokens=64, layer_ids=range(12)
    ).digest


@pytest.mark.parametrize(("older", "newer"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_both_spellings_give_one_digest(older: dict[str, Any], newer: dict[str, Any]) -> None:
    assert rope_from_hf_config(SHAPE | older) == rope_from_hf_config(SHAPE | newer)
    assert digest_of(older) == digest_of(newer)


def test_models_that_differ_have_digests_that_differ() -> None:
    assert len({digest_of(newer) for _, newer in SPELLINGS.values()}) == len(SPELLINGS) - 1
    # The two names of longrope are one model.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_theta", 500001.0), ("rope_scaling", None), ("partial_rotary_factor", 0.5),
        ("rope_interleave", False), ("no_rope_layers", [1, 0] * 6), ("rotary_dim", 32),
        ("rope_local_base_freq", 1e4), ("layer_rope_theta", [1e4] * 12),
        *(("rope_scaling", LLAMA3 | {part: 2.5}) for part in LLAMA3 if part != "rope_type"),
    ],
)  # fmt: skip
def test_every_setting_alone_flips_the_digest(name: str, value: object) -> None:
    older, _ = SPELLINGS["llama3"]
    assert digest_of(older | {name: value}) != digest_of(older)


@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn without its original length"])
def test_a_context_length_that_shapes_k_flips_the_digest(name: str) -> None:
    older, _ = SPELLINGS[name]
    assert digest_of(older | {"max_position_embeddings": 65536}) != digest_of(older)


def test_numbers_that_the_model_derives_are_written_out() -> None:
    rope = rope_from_hf_config(SHAPE | SPELLINGS["longrope"][0])
    assert isinstance(rope, dict)
    assert (rope["factor"], rope["original_max_position_embeddings"]) == ("32", "4096")


def test_rotary_dim_is_written_as_its_share_of_the_head_that_the_config_implies() -> None:
    sizes = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    implied = sizes | {"hidden_size": 8 * 96, "rope_theta": 1e4}
    told = SHAPE | {"rope_theta": 1e4}
    digests = [digest_of(implied | {"rotary_dim": dim}) for dim in (24, 48, 96)]
    assert len(set(digests)) == 3
    assert digests == [digest_of(told | {"rotary_dim": dim}) for dim in (24, 48, 96)]
    assert digests[1] == digest_of(told | {"partial_rotary_factor": 0.5})
    with pytest.raises(SpecError, match="no hidden_size"):
        rope_from_hf_config(sizes | {"rope_theta": 1e4, "rotary_dim": 24})


@pytest.mark.parametrize("every", [0.5, float("nan"), float("inf"), 0, -1, True, "4"])
def test_an_interval_of_layers_without_rope_is_a_whole_number(every: object) -> None:
    with pytest.raises(SpecError, match=f"{every!r} as no_rope_layer_interval"):
        rope_from_hf_config(SHAPE | {"rope_theta": 1e4, "no_rope_layer_interval": every})


@pytest.mark.parametrize("layers", [2**16 + 1, 300_000_000, 4_000_000_000])
def test_more_layers_than_a_spec_has_are_refused_before_any_is_listed(layers: int) -> None:
    config = SHAPE | {"rope_theta": 1e4, "num_hidden_layers": layers}
    message = f"{layers} as num_hidden_layers: want at most 65536"
    for facts in ({}, {"no_rope_layer_interval": 4}, {"sliding_window_pattern": 2}):
        with pytest.raises(SpecError, match=message):
            digest_of(config | facts)
    with pytest.raises(SpecError, match=message):
        rope_from_hf_config(config | {"no_rope_layer_interval": 4})


def test_numbers_beyond_any_model_are_no_ratio() -> None:
    for dim in (10**400, float("inf"), float("nan")):
        with pytest.raises(SpecError, match=r"rotary_dim .* below 2"):
            rope_from_hf_config(SHAPE | {"rope_theta": 1e4, "rotary_dim": dim})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "without a RoPE base"),
        ({"rope_parameters": {"rope_type": "default"}}, "without a RoPE base"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "without a RoPE base"),
        ({"rope_parameters": [1]}, r"rope_parameters \[1\]: want a mapping"),
        ({"rope_theta": 1e4, "rope_scaling": "yarn"}, "rope_scaling 'yarn': want a mapping"),
        ({"rope_theta": "big"}, "theta 'big': want a number"),
        ({"rope_theta": True}, "theta True: want a number above 0"),
        ({"rope_theta": 1e4, "no_rope_layers": []}, r"no_rope_layers \[\] without no_rope_layer"),
        ({"rope_theta": 1e4, "no_rope_layers": 4}, "no_rope_layers 4: want a list"),
        (
            {"rope_scaling": SCALED, "rope_parameters": LOCAL, "rope_theta": 1e4},
            "rope_parameters .* and rope_scaling .*: want one",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2}, "rope_theta": 1e4,
             "max_position_embeddings": None},
            "max_position_embeddings None: want a number above 0",
        ),
    ],
)  # fmt: skip
def test_settings_that_say_too_little_or_too_much_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        rope_from_hf_config(SHAPE | settings)

"""Hugging Face configs: which cache they describe, and a clear error where they do not say."""

from copy import deepcopy
from typing import Any

import pytest

from tests.identity.samples import COMMIT
from unikv.errors import SpecError
from unikv.hf_config import rope_from_hf_config
from unikv.namespace import Namespace
from unikv.spec import KVSpec

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = LLAMA | {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "head_dim": 64, "num_nextn_predict_layers": 1,
}  # fmt: skip
SIX = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA: dict[str, Any] = LLAMA | {
    "num_hidden_layers": 12, "head_dim": 256, "num_key_value_heads": 4, "sliding_window": 512,
    "layer_types": SIX * 2,
}  # fmt: skip
NEXT: dict[str, Any] = LLAMA | {
    "num_hidden_layers": 16, "head_dim": 256, "num_key_value_heads": 2,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 4,
}  # fmt: skip


def spec_of(config: object, **options: Any) -> KVSpec:
    return Namespace.from_hf_config(config, weights=COMMIT, page_tokens=64, **options).spec


def test_grouped_heads_are_read_from_the_config() -> None:
    assert spec_of(LLAMA) == KVSpec.mha(
        layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64
    )


@pytest.mark.parametrize("kv_heads", [{}, {"num_key_value_heads": None}], ids=["absent", "null"])
def test_without_groups_every_head_has_its_own(kv_heads: dict[str, Any]) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert spec_of(config | kv_heads).kv_heads == 32


def test_a_head_dim_of_its_own_wins_over_the_division() -> None:
    assert spec_of(LLAMA | {"head_dim": 96}).head_dim == 96
    assert spec_of(LLAMA | {"head_dim": None}).head_dim == 128
    assert spec_of(LLAMA | {"head_dim": 192, "v_head_dim": 128}).v_head_dim == 128


def test_the_smallest_counts_are_counts() -> None:
    one = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    assert spec_of(LLAMA | one | {"head_dim": 1}) == KVSpec.mha(
        layers=1, kv_heads=1, head_dim=1, dtype="bfloat16", page_tokens=64
    )
    assert spec_of(DEEPSEEK | {"kv_lora_rank": 1, "qk_rope_head_dim": 0}).head_dim == 1


def test_B100_latents_are_one_row_of_both_parts() -> None:
    assert spec_of(DEEPSEEK) == KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=64)


def test_a_drafting_layer_is_numbered_behind_the_others() -> None:
    draft = spec_of(DEEPSEEK, component="draft", layer_ids=(61,))
    assert (draft.layers, draft.layer_ids) == (1, (61,))
    with pytest.raises(SpecError, match=r"layer_ids \(62,\): want layers from 0 to 61"):
        spec_of(DEEPSEEK, layer_ids=(62,))


def test_a_hybrid_keeps_the_layers_that_have_a_cache() -> None:
    assert spec_of(NEXT).layer_ids == (3, 7, 11, 15)
    assert spec_of(NEXT, layer_types=("full_attention",)) == spec_of(NEXT)
    assert spec_of(NEXT | {"layer_types": (["mamba"] * 3 + ["attention"]) * 4}) == spec_of(NEXT)


def test_windows_and_full_layers_are_taken_by_name() -> None:
    assert spec_of(GEMMA, layer_types=["full_attention"]).layer_ids == (5, 11)
    assert spec_of(GEMMA, layer_types="sliding_attention").layers == 10
    assert spec_of(GEMMA, layer_types=("sliding_attention", "full_attention")).layers == 12
    assert spec_of(GEMMA, layer_ids=[11]).layer_ids == (11,)


def test_an_older_pattern_names_the_same_layers() -> None:
    older = {name: value for name, value in GEMMA.items() if name != "layer_types"}
    older |= {"sliding_window_pattern": 6, "rope_local_base_freq": 10000.0}
    for kind in ("full_attention", "sliding_attention"):
        assert spec_of(older, layer_types=(kind,)) == spec_of(GEMMA, layer_types=(kind,))


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_the_text_model_of_several_is_read(section: str) -> None:
    text = {name: value for name, value in LLAMA.items() if name != "torch_dtype"}
    whole = {section: text, "vision_config": {"num_hidden_layers": 2}, "torch_dtype": "bfloat16"}
    assert spec_of(whole) == spec_of(LLAMA)
    assert spec_of({"thinker_config": whole}) == spec_of(LLAMA)
    assert rope_from_hf_config(whole) == rope_from_hf_config(LLAMA)


class Loaded:
    """A config object, as transformers has them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts


def test_a_config_object_is_read_once() -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    facts = deepcopy(GEMMA) | {"rope_parameters": nested}
    wanted = ["full_attention"]
    namespace = Namespace.from_hf_config(
        Loaded(facts), weights=COMMIT, page_tokens=64, layer_types=wanted
    )
    before = (namespace.canonical, namespace.spec, namespace.rope)
    facts["layer_types"][0] = "full_attention"
    facts["rope_parameters"]["full_attention"]["rope_theta"] = 1.0
    facts["num_hidden_layers"] = 1
    wanted.append("sliding_attention")
    assert (namespace.canonical, namespace.spec, namespace.rope) == before


@pytest.mark.parametrize(
    ("spelled", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float16", "torch_dtype": None}, "float16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),
    ],
)
def test_the_dtype_is_the_configs(spelled: dict[str, Any], dtype: str) -> None:
    assert spec_of(LLAMA | spelled).dtype == dtype


def test_a_dtype_given_wins_also_as_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    assert spec_of(LLAMA, dtype="float8_e4m3fn").dtype == "float8_e4m3fn"
    assert spec_of(LLAMA, dtype=torch.float8_e5m2).dtype == "float8_e5m2"
    assert spec_of(LLAMA | {"dtype": torch.float16}).dtype == "float16"
    two = {"text_config": LLAMA, "torch_dtype": "float32"}
    assert spec_of(two, dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(SpecError, match="dtype 'bfloat16 or float32': want a name"):
        spec_of(two)


NOT_IDENTITY: dict[str, Any] = {
    "_name_or_path": "/somewhere/else", "transformers_version": "4.40.0", "use_cache": False,
    "architectures": ["Other"], "vocab_size": 7, "max_position_embeddings": 4096,
    "attention_dropout": 0.5, "initializer_range": 1.0, "bos_token_id": 3, "max_batch_size": 64,
    "gpu_memory_utilization": 0.5, "device_map": "auto", "attn_implementation": "eager",
    "partial_rotary_factor": 1.0, "rope_scaling": None, "head_dim": 128, "layer_types": None,
    "sliding_window": None, "torch_dtype": "torch.bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_IDENTITY)
def test_B91_what_shapes_no_byte_flips_no_digest(name: str) -> None:
    one = Namespace.from_hf_config(LLAMA, weights=COMMIT, page_tokens=64)
    changed = LLAMA | {name: NOT_IDENTITY[name]}
    assert Namespace.from_hf_config(changed, weights=COMMIT, page_tokens=64) == one


def test_other_fields_pass_through() -> None:
    namespace = Namespace.from_hf_config(
        LLAMA, weights=COMMIT, page_tokens=64, component="draft", model="llama", quant="int8",
        layers_per_chunk=16, heads_per_chunk=2, tags="blake3_keyed", rope={"theta": 7},
    )  # fmt: skip
    assert (namespace.component, namespace.model, namespace.quant) == ("draft", "llama", "int8")
    assert (namespace.layer_cuts, namespace.heads_per_chunk) == ((0, 16, 32), 2)
    assert (namespace.tags, namespace.rope) == (
        "blake3_keyed", {"rope_type": "default", "theta": "7"},
    )  # fmt: skip


MIXED = (["full_attention"] * 16 + ["sliding_attention"] * 16)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (None, {}, r"config of type NoneType: want a mapping, or to_dict\(\)"),
        (LLAMA | {"is_encoder_decoder": True}, {}, "build KVSpec of the decoder by hand"),
        ({"text_config": LLAMA, "llm_config": LLAMA}, {}, "text_config and llm_config: pass the"),
        ({}, {"dtype": "bfloat16"}, "config with no num_hidden_layers: want a whole number; raw"),
        (LLAMA | {"num_hidden_layers": "32"}, {}, "config with '32' as num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": True}, {}, "config with True as num_hidden_layers"),
        (LLAMA | {"num_attention_heads": None}, {}, "config with no num_attention_heads"),
        (LLAMA | {"num_key_value_heads": [8, 4]}, {}, r"config with \[8, 4\] as num_key_value"),
        (LLAMA | {"num_attention_heads": 24}, {}, "hidden size 4096 over 24 heads"),
        (LLAMA | {"torch_dtype": None}, {}, "config without dtype: pass the cache's, as dtype="),
        (LLAMA | {"torch_dtype": "auto"}, {}, "dtype 'auto': want a name, one of float32"),
        (LLAMA, {"dtype": "fp8"}, "dtype 'fp8': want a name"),
        (LLAMA | {"multi_query": True}, {}, "config with multi_query: its heads are not all alike"),
        (LLAMA | {"swa_head_dim": 64}, {}, "config with swa_head_dim: its heads"),
        (LLAMA | {"layer_types": MIXED}, {}, r"several kinds \(16 full_attention, 16 sliding_att"),
        (LLAMA | {"layer_types": MIXED}, {}, r"as layer_types=\('full_attention',\)"),
        (LLAMA | {"layer_types": MIXED[1:]}, {}, "layer_types .*: want a type for each of 32"),
        (LLAMA | {"layer_types": ["new"] * 32}, {}, r"several kinds \(32 new\): pass layer_types="),
        (LLAMA | {"layer_types": ["conv"] * 32}, {}, r"without attention \(32 conv\): build"),
        (NEXT, {"layer_types": ["linear_attention"]}, "want some of full_attention"),
        (NEXT, {"layer_types": []}, r"layer_types \(\): want some of full_attention"),
        (NEXT, {"layer_types": ["x"], "layer_ids": [1]}, "layer_types and layer_ids: want one"),
        (NEXT, {"layer_ids": []}, r"layer_ids \(\): want layers from 0 to 15"),
        (NEXT, {"layer_ids": [-1]}, r"layer_ids \(-1,\): want layers from 0 to 15"),
        (LLAMA | {"num_kv_shared_layers": 4}, {}, "num_kv_shared_layers: pass layer_ids="),
        (LLAMA | {"attn_layer_period": 8}, {}, "attn_layer_period but without layer_types: pass"),
        (LLAMA | {"sliding_window_pattern": "LLLG"}, {}, "sliding_window_pattern but without"),
        (LLAMA | {"use_sliding_window": True}, {}, "use_sliding_window but without layer_types"),
        (LLAMA | {"rope_theta": None}, {}, r"without a RoPE base \(rope_theta\): pass rope='none'"),
        (LLAMA | {"num_key_value_heads": 0}, {}, "config with 0 as num_key_value_heads"),
        (DEEPSEEK | {"qk_rope_head_dim": None}, {}, "config with no qk_rope_head_dim"),
    ],
)  # fmt: skip
def test_what_a_config_does_not_say_clearly_is_asked_for(
    config: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(config, **options)

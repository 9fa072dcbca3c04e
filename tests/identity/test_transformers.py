"""Configs that transformers builds have the identity of their 4.x spelling by hand."""

from typing import Any

import pytest

from tests.identity.samples import COMMIT
from unikv.namespace import Namespace

pytestmark = [pytest.mark.demo, pytest.mark.filterwarnings("ignore")]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}  # fmt: skip
LONG = {"type": "longrope", "short_factor": [1.0, 1.05] * 24, "long_factor": [1.0, 8.5] * 24}

# The class, and what a 4.x config.json of it says; the class takes the same words.
MODELS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "rope_theta": 500000.0, "rope_scaling": LLAMA3,
        "max_position_embeddings": 131072,
    },
    "Qwen3Config": {
        "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000,
        "max_position_embeddings": 40960, "use_sliding_window": False,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "DeepseekV3Config": {
        "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rope_theta": 10000, "rope_scaling": YARN, "max_position_embeddings": 163840,
    },
    "Gemma3TextConfig": {
        "num_hidden_layers": 26, "hidden_size": 1152, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "max_position_embeddings": 32768,
    },
    "Phi3Config": {
        "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32,
        "num_key_value_heads": 32, "rope_theta": 10000.0, "rope_scaling": LONG,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "pad_token_id": 0,
    },
    "SmolLM3Config": {
        "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 4, "rope_theta": 5000000.0, "no_rope_layer_interval": 4,
        "max_position_embeddings": 65536,
    },
    "GPTNeoXConfig": {
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 8,
        "rotary_pct": 0.25, "rotary_emb_base": 10000, "max_position_embeddings": 2048,
    },
}  # fmt: skip


@pytest.fixture
def transformers() -> Any:  # Any: it has no types
    return pytest.importorskip("transformers")


def namespace_of(config: object) -> Namespace:
    # Gemma has windows too; the others are full in all layers.
    return Namespace.from_hf_config(
        config, weights=COMMIT, page_tokens=64, dtype="bfloat16", layer_types="full_attention"
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_config_has_the_identity_of_its_older_spelling(
    transformers: Any, name: str
) -> None:
    loaded = getattr(transformers, name)(**MODELS[name])
    namespace = namespace_of(loaded)
    assert namespace_of(MODELS[name]).canonical == namespace.canonical
    assert namespace_of(loaded.to_dict()) == namespace


def test_the_text_model_of_gemma3_is_read_from_the_whole(transformers: Any) -> None:
    text = transformers.Gemma3TextConfig(**MODELS["Gemma3TextConfig"])
    whole = transformers.Gemma3Config(text_config=text.to_dict())
    assert namespace_of(whole) == namespace_of(text)


def test_the_demo_model_is_what_the_design_shows(transformers: Any) -> None:
    config = transformers.LlamaConfig(
        num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
        rope_theta=100000, dtype="bfloat16",
    )  # fmt: skip
    spec = Namespace.from_hf_config(config, weights=COMMIT, page_tokens=64).spec
    assert (spec.layers, spec.kv_heads, spec.head_dim, spec.dtype) == (30, 3, 64, "bfloat16")

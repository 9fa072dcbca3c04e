"""Hf_config: what a Hugging Face config says about a model's cache. It loads no model."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy

from unikv.dtypes import name_dtype
from unikv.errors import SpecError
from unikv.hf_numbers import read_head_dim, read_heads, read_layer_count, read_whole
from unikv.hf_rope import read_rope
from unikv.rope import Rope
from unikv.spec import KVSpec

_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
_TYPE_ALIASES = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
_WITH_CACHE = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
_WITHOUT_CACHE = ("linear_attention", "conv", "moe", "mlp", "recurrent")
# Models that have any of these hold caches of several shapes, or of a shape that depends on code.
_UNCLEAR_SHAPE = (
    "attn_config",
    "block_configs",
    "global_head_dim",
    "kv_channels",
    "kv_source_layers",
    "multi_query",
    "multi_query_group_num",
    "num_global_key_value_heads",
    "num_key_value_heads_per_layer",
    "num_kv_heads",
    "per_layer_config",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "swa_v_head_dim",
)
# And those that have these mix kinds of layers by rules of their own.
_UNCLEAR_LAYERS = (
    "attention_chunk_size",
    "attention_layers",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "block_types",
    "cross_attention_layers",
    "full_attention_interval",
    "global_attn_every_n_layers",
    "hybrid_override_pattern",
    "layer_group_size",
    "layers_block_type",
    "local_layer_ids",
    "mamba_d_state",
    "num_kv_shared_layers",
    "rope_local_base_freq",
    "use_sliding_window",
)


def snapshot(config: object) -> dict[str, object]:
    """Return a deep copy of a config's facts, of its text model where it has several.

    Args:
        config: a mapping as in ``config.json``, or an object with ``to_dict()``.

    Raises:
        SpecError: it is neither, or has two text models or an encoder.
    """
    if not isinstance(config, Mapping) and hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise SpecError(f"config of type {type(config).__name__}: want a mapping, or to_dict()")
    if config.get("is_encoder_decoder"):
        raise SpecError("config of an encoder and decoder: build KVSpec of the decoder by hand")
    sections = [name for name in _SECTIONS if isinstance(config.get(name), Mapping)]
    if len(sections) > 1:
        raise SpecError(f"config with {' and '.join(sections)}: pass the one that has the cache")
    facts = snapshot(config[sections[0]]) if sections else deepcopy(dict(config))
    found = [facts.get("dtype") or facts.get("torch_dtype")]
    found += [config.get("dtype") or config.get("torch_dtype")] if sections else []
    dtypes = sorted({str(dtype).removeprefix("torch.") for dtype in found if dtype is not None})
    facts["dtype"] = " or ".join(dtypes) or None  # two are no name, and an error where one is used
    return facts


def rope_from_hf_config(config: object) -> Rope:
    """Return the canonical RoPE settings of a config, for a `Namespace` that is built by hand.

    Raises:
        SpecError: the config names no RoPE, or names two.
    """
    return read_rope(snapshot(config))


def read_spec(
    facts: Mapping[str, object],
    *,
    page_tokens: int,
    dtype: object = None,
    layer_types: Iterable[str] | None = None,
    layer_ids: Iterable[int] | None = None,
) -> KVSpec:
    """Return the spec of the cache that the layers hold, all of them where they are alike.

    Raises:
        SpecError: facts are missing, or the layers have caches of different kinds.
    """
    unclear = [name for name in _UNCLEAR_SHAPE if facts.get(name)]
    if unclear:
        raise SpecError(
            f"config with {', '.join(unclear)}: its heads are not all alike; build KVSpec by hand, "
            "and Namespace(spec=..., rope=rope_from_hf_config(config))"
        )
    dtype = facts.get("dtype") if dtype is None else dtype
    if dtype is None:
        raise SpecError("config without dtype: pass the cache's, as dtype='bfloat16'")
    name = name_dtype(dtype)
    layers = _read_layers(facts, layer_types, layer_ids)
    latent = facts.get("kv_lora_rank")
    if latent is not None:
        return KVSpec.mla(
            layers=len(layers),
            dim=read_whole(facts, "kv_lora_rank") + read_whole(facts, "qk_rope_head_dim", least=0),
            dtype=name,
            page_tokens=page_tokens,
            layer_ids=layers,
        )
    heads = read_heads(facts)
    shared = facts.get("num_key_value_heads") is not None
    head_dim = read_head_dim(facts)
    return KVSpec.mha(
        layers=len(layers),
        kv_heads=read_whole(facts, "num_key_value_heads") if shared else heads,
        head_dim=head_dim,
        v_head_dim=head_dim if facts.get("v_head_dim") is None else read_whole(facts, "v_head_dim"),
        dtype=name,
        page_tokens=page_tokens,
        layer_ids=layers,
    )


def _read_layers(
    facts: Mapping[str, object],
    layer_types: Iterable[str] | None,
    layer_ids: Iterable[int] | None,
) -> tuple[int, ...]:
    layers = read_layer_count(facts)
    if layer_ids is not None:
        if layer_types is not None:
            raise SpecError("layer_types and layer_ids: want one")
        return _check_ids(facts, layers, tuple(layer_ids))
    types = _read_types(facts, layers)
    wanted = _choose_types(types) if layer_types is None else _check_types(types, layer_types)
    return tuple(layer for layer, kind in enumerate(types) if kind in wanted)


def _check_ids(
    facts: Mapping[str, object], layers: int, layer_ids: tuple[int, ...]
) -> tuple[int, ...]:
    drafts = facts.get("num_nextn_predict_layers")  # drafting layers are numbered behind the others
    limit = layers + (drafts if isinstance(drafts, int) else 0)
    if not layer_ids or not all(type(i) is int and 0 <= i < limit for i in layer_ids):
        raise SpecError(f"layer_ids {layer_ids!r:.200}: want layers from 0 to {limit - 1}")
    return layer_ids


def _read_types(facts: Mapping[str, object], layers: int) -> list[str]:
    types, pattern = facts.get("layer_types"), facts.get("sliding_window_pattern")
    if facts.get("num_kv_shared_layers"):
        raise SpecError("config with num_kv_shared_layers: pass layer_ids= of layers with a cache")
    if types is not None:
        if not isinstance(types, Sequence) or len(types) != layers:
            raise SpecError(f"layer_types {types!r:.80}: want a type for each of {layers} layers")
        return [_TYPE_ALIASES.get(str(kind), str(kind)) for kind in types]
    if type(pattern) is int and pattern > 0 and facts.get("sliding_window") is not None:
        every = range(1, layers + 1)
        return ["sliding_attention" if layer % pattern else "full_attention" for layer in every]
    unclear = [name for name in (*_UNCLEAR_LAYERS, "sliding_window_pattern") if facts.get(name)]
    if unclear:
        raise SpecError(
            f"config with {', '.join(unclear)} but without layer_types: pass layer_ids= of the "
            "layers whose cache is meant, or a config that transformers has loaded"
        )
    return ["full_attention"] * layers


def _choose_types(types: list[str]) -> tuple[str, ...]:
    found = Counter(types)
    cached = [kind for kind in found if kind in _WITH_CACHE]
    others = [kind for kind in found if kind not in _WITH_CACHE + _WITHOUT_CACHE]
    if len(cached) == 1 and not others:
        return tuple(cached)
    counts = ", ".join(f"{count} {kind}" for kind, count in found.items())
    if not cached and not others:
        raise SpecError(f"layers without attention ({counts}): build KVSpec.state by hand")
    raise SpecError(
        f"layers of several kinds ({counts}): pass layer_types= with those whose cache the "
        f"component holds, as layer_types=({(cached + others)[0]!r},)"
    )


def _check_types(types: list[str], wanted: Iterable[str]) -> tuple[str, ...]:
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    kinds = tuple(_TYPE_ALIASES.get(kind, kind) for kind in names)
    bad = [kind for kind in kinds if kind not in types or kind in _WITHOUT_CACHE]
    if bad or not kinds:
        fits = sorted(set(types) - set(_WITHOUT_CACHE))
        raise SpecError(f"layer_types {names!r:.200}: want some of {', '.join(fits)}")
    return kinds

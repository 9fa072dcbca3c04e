"""Hf_rope: the RoPE settings of a Hugging Face config, 4.x or 5.x. It knows no cache."""

from collections.abc import Mapping

from unikv.errors import SpecError
from unikv.hf_numbers import read_head_dim, read_layer_count, read_whole
from unikv.rope import Rope, canonical_rope

# Settings outside of `rope_parameters` that shape K as well; absent or null means the default.
_BESIDE = (
    "rope_interleave",
    "layer_rope_theta",
    "rope_scaling_layers",
    "swa_rope_theta",
    "compress_rope_theta",
)
# Models whose 4.x configs scale the full attention layers alone.
_FULL_ONLY = ("olmo3",)
_WITH_ORIGINAL = ("llama3", "yarn", "longrope", "su")
_WITH_RATIO = ("yarn", "longrope", "su")


def read_rope(facts: Mapping[str, object]) -> Rope:
    """Return the canonical settings of the whole model, whatever layers a component takes.

    A layer's K and V depend on the RoPE of every layer before it, so no component has a RoPE of its
    own. Numbers that the model derives from its context length are written out.

    Args:
        facts: a config's mapping, or its text section.

    Raises:
        SpecError: the config names no RoPE, or names two.
    """
    newer, older = (_mapping(facts, name) for name in ("rope_parameters", "rope_scaling"))
    if not newer:
        return canonical_rope(_from_older(facts, older))
    found = canonical_rope(_from_newer(facts, newer))
    if older and found != canonical_rope(_from_newer(facts, older)):
        raise SpecError(
            f"config with rope_parameters {newer!r:.200} and rope_scaling {older!r:.200}: want one"
        )
    return found


def _from_newer(facts: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    if not any(isinstance(value, Mapping) for value in settings.values()):
        return _complete(facts, settings)
    return {
        name: _complete(facts, value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }


def _from_older(facts: Mapping[str, object], scaling: Mapping[str, object]) -> dict[str, object]:
    local = facts.get("rope_local_base_freq")
    if local is None and not (scaling and facts.get("model_type") in _FULL_ONLY):
        return _complete(facts, scaling)
    return {
        "full_attention": _complete(facts, scaling),
        "sliding_attention": _complete(facts, {} if local is None else {"rope_theta": local}),
    }


def _complete(facts: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return flat settings with what the config says outside of them."""
    found = {name: value for name, value in settings.items() if value is not None}
    if not found.keys() & {"theta", "rope_theta"}:
        found["rope_theta"] = _first(facts, "rope_theta", "rotary_emb_base")
    if found["rope_theta" if "rope_theta" in found else "theta"] is None:
        raise SpecError(
            "config without a RoPE base (rope_theta): pass rope='none' if the model has no RoPE, "
            "else rope={'theta': ...} as the model's code has it"
        )
    if "partial_rotary_factor" not in found:
        found["partial_rotary_factor"] = _partial(facts)
    for name in _BESIDE:
        found.setdefault(name, facts.get(name))
    found.setdefault("no_rope_layers", _layers_without(facts))
    return _derive(facts, found)


def _derive(facts: Mapping[str, object], found: dict[str, object]) -> dict[str, object]:
    """Write out what the scaling takes from the model's context length."""
    kind = found.get("rope_type", found.get("type"))
    longest = facts.get("max_position_embeddings")
    if kind in _WITH_ORIGINAL:
        declared = _first(facts, "original_max_position_embeddings")
        inner = found.get("original_max_position_embeddings", longest)
        found["original_max_position_embeddings"] = original = declared or inner
        if kind in _WITH_RATIO and "factor" not in found:
            found["factor"] = _number("max_position_embeddings", longest) / _number(
                "original_max_position_embeddings", original
            )
    if kind == "dynamic":
        found["max_position_embeddings"] = _number("max_position_embeddings", longest)
    return found


def _partial(facts: Mapping[str, object]) -> object:
    factor = _first(facts, "partial_rotary_factor", "rotary_pct")
    rotary = facts.get("rotary_dim")
    if factor is None and rotary is not None:
        return _number("rotary_dim", rotary) / _number("head_dim", read_head_dim(facts))
    return factor


def _layers_without(facts: Mapping[str, object]) -> object:
    """Return 1 for each layer with RoPE and 0 for each without, or None where all have it."""
    flags, every = facts.get("no_rope_layers"), facts.get("no_rope_layer_interval")
    if flags == [] and every is None:
        raise SpecError("no_rope_layers [] without no_rope_layer_interval: want either of them")
    if not flags and every is not None:
        layers = read_layer_count(facts)
        step = read_whole(facts, "no_rope_layer_interval")
        flags = [int((layer + 1) % step != 0) for layer in range(layers)]
    if flags is not None and not isinstance(flags, list):
        raise SpecError(f"no_rope_layers {flags!r:.80}: want a list with a 0 or 1 for each layer")
    return flags if flags and not all(flags) else None


def _mapping(facts: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = facts.get(name) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} {value!r:.80}: want a mapping of RoPE settings")
    return value


def _first(facts: Mapping[str, object], *names: str) -> object:
    return next((facts[name] for name in names if facts.get(name) is not None), None)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**63:
        raise SpecError(
            f"{name} {value!r:.80}: want a number above 0 and below 2^63, since RoPE depends on it"
        )
    return value

"""Hf_numbers: whole numbers that a Hugging Face config tells or implies. It knows no cache."""

from collections.abc import Mapping

from unikv.errors import SpecError
from unikv.spec import LAYERS_LIMIT


def read_whole(facts: Mapping[str, object], *names: str, least: int = 1) -> int:
    """Return the first of the named facts that is told.

    Raises:
        SpecError: there is none, or it is no whole number from ``least``.
    """
    value = next((facts[name] for name in names if facts.get(name) is not None), None)
    if type(value) is not int or value < least:
        found = "no" if value is None else f"{value!r:.80} as"
        raise SpecError(
            f"config with {found} {names[0]}: want a whole number; raw config.json files leave out "
            "defaults, a config that transformers has loaded does not"
        )
    return value


def read_layer_count(facts: Mapping[str, object]) -> int:
    """Return how many layers the model has, before anything is made for each of them.

    Raises:
        SpecError: the config does not say, or says more than a spec can have.
    """
    layers = read_whole(facts, "num_hidden_layers", "n_layer", "n_layers")
    if layers > LAYERS_LIMIT:
        raise SpecError(
            f"config with {layers!r:.80} as num_hidden_layers: want at most {LAYERS_LIMIT}"
        )
    return layers


def read_heads(facts: Mapping[str, object]) -> int:
    """Return how many attention heads a layer has."""
    return read_whole(facts, "num_attention_heads", "n_head", "n_heads")


def read_head_dim(facts: Mapping[str, object]) -> int:
    """Return the elements of a head: as told, or the hidden size over the heads.

    Raises:
        SpecError: facts are missing, or the heads do not divide the hidden size.
    """
    if facts.get("head_dim") is not None:
        return read_whole(facts, "head_dim")
    heads = read_heads(facts)
    hidden = read_whole(facts, "hidden_size", "n_embd", "d_model")
    if hidden % heads:
        raise SpecError(f"config without head_dim, and hidden size {hidden} over {heads} heads")
    return hidden // heads

"""Rope: the settings of rotary positions that shape K, in one spelling. It knows no namespace."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Literal, TypeAlias

from unikv.canonical import Json, encode, hash_text, read_label
from unikv.errors import SpecError

Rope: TypeAlias = dict[str, Json] | Literal["none"]

LIST_LIMIT = 8
"""A longer list of numbers (longrope's factors) is kept as its digest: 32 hex after "blake3:"."""

_LIST_CONTEXT = "unikv list v1"
_ALIASES = {
    "type": "rope_type",
    "rope_theta": "theta",
    "rotary_emb_base": "theta",
    "rotary_pct": "partial_rotary_factor",
}
_TYPE_ALIASES = {"su": "longrope", "mrope": "axial"}
_LAYER_TYPE_ALIASES = {"attention": "full_attention", "mamba": "linear_attention"}
# What a missing setting means, so that spelling it out changes nothing.
_DEFAULTS: dict[str, Json] = {"partial_rotary_factor": "1", "rope_interleave": True}
_TYPE_DEFAULTS: dict[str, dict[str, Json]] = {
    "yarn": {"beta_fast": "32", "beta_slow": "1", "truncate": True},
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,64}\Z")
_NUMBER = re.compile(r"[+-]?[0-9]{1,64}(\.[0-9]{1,64})?([eE][+-]?[0-9]{1,3})?\Z")
_NUMBER_LENGTH = 64


def canonical_rope(settings: Mapping[str, object] | Literal["none"]) -> Rope:
    """Return RoPE settings in the one spelling that a namespace hashes; a fresh copy.

    Numbers, int or float, become shortest decimal strings: 1e5 and 100000.0 are "100000". None and
    values that a missing setting means are dropped; 4.x names fold into 5.x ones (``type``,
    ``rope_theta``). Settings may be nested by layer type; where all types agree they are not.
    The canonical form of a canonical form is itself.

    Args:
        settings: names and values as in ``rope_parameters``, or the word "none".

    Raises:
        SpecError: there is no theta, or a value is no number, text, bool or list of these.
    """
    if settings == "none":
        return "none"
    if not isinstance(settings, Mapping) or not settings:
        raise SpecError(f'rope {settings!r:.80}: want settings such as {{"theta": 1e4}}, or "none"')
    if not any(isinstance(value, Mapping) for value in settings.values()):
        return _canonical_flat(settings)
    nested = {_layer_type(name): _nested_value(name, value) for name, value in settings.items()}
    if len(nested) != len(settings):
        raise SpecError(f"rope for layer types {list(settings)!r:.200}: two name the same type")
    first, *others = nested.values()
    if isinstance(first, dict) and all(value == first for value in others):
        return first
    return dict(sorted(nested.items()))


def _nested_value(name: str, value: object) -> Json:
    if value is None or value == "none":
        return "none"
    if not isinstance(value, Mapping):
        raise SpecError(f"rope {name!r:.80} beside settings nested by layer type: want one form")
    return _canonical_flat(value)


def _layer_type(name: object) -> str:
    text = read_label("rope layer type", name)
    return _LAYER_TYPE_ALIASES.get(text, text)


def _canonical_flat(settings: Mapping[str, object]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for given, value in settings.items():
        key = read_label("rope setting", given)
        name = _ALIASES.get(key, key)
        if value is None or (key == "type" and settings.get("rope_type") is not None):
            continue  # configs carry an old type beside the new one, and the new one counts
        spelled = _canonical_value(name, value)
        if found.setdefault(name, spelled) != spelled:
            raise SpecError(
                f"rope {key!r:.80} {value!r:.80} and {name} {found[name]!r:.80}: want one"
            )
    kind = found.setdefault("rope_type", "default")
    if not isinstance(kind, str) or _NUMBER.match(kind):
        raise SpecError(f"rope_type {kind!r:.80}: want a word such as 'default' or 'yarn'")
    if kind == "default" and "mrope_section" in found:
        kind = "axial"  # three generations of configs call multimodal RoPE default, mrope and axial
    kind = found["rope_type"] = _TYPE_ALIASES.get(kind, kind)
    if "theta" not in found:
        raise SpecError(
            f"rope settings {sorted(found)!r:.200} without theta: want its base, as 1e4"
        )
    theta = found["theta"]
    if not (isinstance(theta, str) and _NUMBER.match(theta) and Decimal(theta) > 0):
        raise SpecError(f"rope theta {theta!r:.80}: want a number above 0, as 1e4")
    for name, default in (_DEFAULTS | _TYPE_DEFAULTS.get(kind, {})).items():
        if found.get(name) == default:
            del found[name]
    return dict(sorted(found.items()))


def _canonical_value(name: str, value: object) -> Json:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return spell_number(name, value)
    if isinstance(value, str):
        return (
            spell_number(name, value) if _NUMBER.match(value) else read_label(f"rope {name}", value)
        )
    if isinstance(value, list | tuple):
        items = [_canonical_value(name, item) for item in value]
        if len(items) <= LIST_LIMIT:
            return items
        return f"blake3:{hash_text(encode(items), _LIST_CONTEXT)}"
    raise SpecError(f"rope {name} {value!r:.80}: want a number, a text, a bool or a list of these")


def spell_number(name: str, value: float | str) -> str:
    """Return ``value`` as its shortest decimal string without an exponent: 0.1, 100000.

    Whole numbers are exact; others are shortest among those that read back as the same double.

    Raises:
        SpecError: it is not finite, or needs more than 64 characters.
    """
    if isinstance(value, str):
        value = int(value) if _WHOLE.match(value) else float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SpecError(f"{name} {value!r}: want a finite number")
        text = format(Decimal(float.__repr__(value)), "f")  # a subclass, as numpy's, has its own
    else:
        text = str(value)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if len(text) > _NUMBER_LENGTH:
        raise SpecError(f"{name} {value!r:.80}: want a number of at most {_NUMBER_LENGTH} digits")
    return "0" if text == "-0" else text

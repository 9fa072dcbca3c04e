"""Plan model: a component's facts from a config file or from numbers. It knows no fleet.

What an identity needs and nobody told gets a placeholder, which is named wherever it shows.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from unikv.cut import Cut
from unikv.errors import SpecError
from unikv.namespace import Namespace
from unikv.rope import Rope
from unikv.spec import KVSpec
from unikv.weights import UNVERSIONED

CONFIG_LIMIT = 16 << 20
"""Bytes of the largest config that is read."""

KINDS: dict[str, tuple[str, ...]] = {
    "mha": ("kv_heads", "head_dim"),
    "mla": ("mla_dim",),
    "rows": ("row_bytes", "rows_per_page"),
}
"""The options that tell a kind of cache by numbers, beside ``layers``."""

_DTYPE = "bfloat16"
_NUMBERS = ("layers", "v_head_dim", *(name for names in KINDS.values() for name in names))


@dataclass(frozen=True, slots=True)
class Model:
    """What a namespace needs beside a cut, and which of it nobody told."""

    spec: KVSpec
    rope: Rope
    weights: str
    label: str
    component: str
    placeholders: tuple[str, ...]  # of "weights" and "rope"
    codec: str = "none"

    def namespace(self, spec: KVSpec, cut: Cut | None = None) -> Namespace:
        """Return the namespace of ``spec`` under a cut, by default uncut.

        Raises:
            SpecError: the cut does not fit, or the canonical text is too long.
        """
        return Namespace(
            spec=spec,
            weights=self.weights,
            rope=self.rope,
            model=self.label,
            component=self.component,
            codec=self.codec,
            **({} if cut is None else cut._asdict()),
        )


def read_model(args: argparse.Namespace) -> Model:
    """Return the model that the command line names, by its config or by numbers.

    Raises:
        SpecError: there is no config and no numbers, or both, or they say no cache.
    """
    given = [_option(name) for name in _NUMBERS if getattr(args, name) is not None]
    if args.model is None and not given:
        raise SpecError(
            "no model: want the path of a config.json, or --layers with --kv-heads and --head-dim, "
            "with --mla-dim, or with --row-bytes and --rows-per-page"
        )
    if args.model is not None and given:
        raise SpecError(f"config {args.model:.200} and {', '.join(given)}: want one of both")
    rope = None if args.rope is None else read_rope_option(args.rope)
    if args.model is None:
        return _from_numbers(args, rope)
    path = Path(args.model)
    if path.is_dir():
        path /= "config.json"
    label = args.label if args.label is not None else _name(path)
    found = Namespace.from_hf_config(
        read_config(path),
        weights=args.weights or UNVERSIONED,
        page_tokens=args.page_tokens,
        dtype=args.dtype,
        component=args.component,
        layer_types=args.layer_types,
        layer_ids=args.layer_ids,
        rope=rope,
        model=label,
    )
    return Model(
        found.spec,
        found.rope,
        found.weights,
        found.model,
        found.component,
        () if args.weights else ("weights",),
        args.codec,
    )


def read_config(path: Path) -> Mapping[str, object]:
    """Return the config in a file.

    Raises:
        SpecError: it cannot be read, is too large, or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_LIMIT + 1)
    except OSError as error:
        raise SpecError(f"config {str(path)!r:.300}: {error.strerror}") from error
    if len(data) > CONFIG_LIMIT:
        raise SpecError(f"config {str(path)!r:.300}: want at most {CONFIG_LIMIT} bytes")
    return _parse(f"config {str(path)!r:.300}", data)


def read_rope_option(text: str) -> Mapping[str, object] | Literal["none"]:
    """Return RoPE settings from JSON, or the word "none".

    Raises:
        SpecError: it is neither.
    """
    return "none" if text == "none" else _parse(f"--rope {text!r:.80}", text)


def _parse(what: str, text: str | bytes) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{what}: no JSON: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{what}: want a JSON object, such as {{...}}")
    return cast("Mapping[str, object]", value)


def _from_numbers(
    args: argparse.Namespace, rope: Mapping[str, object] | Literal["none"] | None
) -> Model:
    if args.layer_types is not None:
        raise SpecError("--layer-types without a config: want --layer-ids")
    label = "unnamed" if args.label is None else args.label
    placeholders = [
        name for name, value in (("weights", args.weights), ("rope", rope)) if value is None
    ]
    namespace = Namespace(  # which brings each text into its one spelling
        spec=_spec_of_numbers(args),
        weights=args.weights or UNVERSIONED,
        rope="none" if rope is None else rope,
        model=label,
        component=args.component,
    )
    return Model(
        namespace.spec,
        namespace.rope,
        namespace.weights,
        namespace.model,
        namespace.component,
        tuple(placeholders),
        args.codec,
    )


def _spec_of_numbers(args: argparse.Namespace) -> KVSpec:
    values = {name: getattr(args, name) for name in _NUMBERS}
    kinds = [kind for kind, names in KINDS.items() if any(values[name] for name in names)]
    kind = kinds[0] if len(kinds) == 1 else ""
    needed = ("layers", *KINDS.get(kind, ()))
    foreign = values["v_head_dim"] and kind != "mha"
    if not kind or foreign or not all(values[name] for name in needed):
        told = [_option(name) for name, value in values.items() if value]
        ways = "; or ".join(", ".join(map(_option, names)) for names in KINDS.values())
        raise SpecError(f"model of {', '.join(told)}: want --layers, and {ways}")
    layers, ids, tokens = values["layers"], args.layer_ids, args.page_tokens
    dtype = args.dtype or _DTYPE
    if kind == "mla":
        return KVSpec.mla(
            layers=layers, dim=values["mla_dim"], dtype=dtype, page_tokens=tokens, layer_ids=ids
        )
    if kind == "rows":
        return KVSpec.rows(
            layers=layers,
            row_bytes=values["row_bytes"],
            rows_per_page=values["rows_per_page"],
            page_tokens=tokens,
            layer_ids=ids,
        )
    return KVSpec.mha(
        layers=layers,
        kv_heads=values["kv_heads"],
        head_dim=values["head_dim"],
        v_head_dim=values["v_head_dim"],
        dtype=dtype,
        page_tokens=tokens,
        layer_ids=ids,
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _name(path: Path) -> str:
    """Return what a config's place calls the model."""
    return (path.resolve().parent.name if path.name == "config.json" else path.stem) or "unnamed"

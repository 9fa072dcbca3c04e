"""Spec: the frozen facts of one component's bytes. It knows no model, no grid and no rank."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from unikv.canonical import Json
from unikv.dtypes import DTYPES, check_dtype
from unikv.errors import SpecError
from unikv.state import StatePart, check_parts

__all__ = ["DTYPES", "KVSpec", "Kind", "Part", "StatePart"]

Kind: TypeAlias = Literal["mha", "mla", "rows", "state"]

FACTS: dict[str, tuple[str, ...]] = {
    "mha": ("kv_heads", "head_dim", "v_head_dim", "dtype"),
    "mla": ("head_dim", "dtype"),
    "rows": ("row_bytes", "rows_per_page"),
    "state": ("kv_heads", "state_parts"),
}
"""The fields that each kind has beside ``layers``, ``layer_ids`` and ``page_tokens``."""

_BLANK = {"kv_heads": 1, "dtype": "uint8", "state_parts": ()}  # others are 0 where a kind has none
LAYERS_LIMIT = 2**16
"""Layers of a spec at most."""

_LIMITS = {
    "layers": LAYERS_LIMIT,
    "kv_heads": 2**16,
    "page_tokens": 2**20,
}  # others: _MAX_LAYER_BYTES
_MAX_LAYER_BYTES = 2**32 - 1  # the slab table of an object keeps lengths as u32
_MAX_PAGE_BYTES = 2**40 - 1


class Part(NamedTuple):
    """One tensor of a slab: ``[rows, heads, width]`` bytes; ``rows`` are of a whole page."""

    name: str
    rows: int
    width: int  # bytes per row and head (or state group)


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Layers, heads, dims and dtype of one component's cache: of the whole model, not of a rank.

    Build one with `mha`, `mla`, `rows` or `state`. A fact that the kind does not have is 0, with
    three exceptions: ``kv_heads`` is 1 for mla and rows and counts the groups of a state;
    ``head_dim`` holds mla's ``dim``; ``dtype`` is "uint8" for rows and state, moved as bytes.
    ``layer_ids`` name the layers of the model that the ordinals 0, 1, 2... stand for.

    Raises:
        SpecError: a fact is missing, foreign to the kind or not positive, or one layer of a page
            reaches 4 GiB.
    """

    kind: Kind
    layers: int
    page_tokens: int
    dtype: str = "uint8"
    kv_heads: int = 1
    head_dim: int = 0
    v_head_dim: int = 0
    layer_ids: tuple[int, ...] = ()
    row_bytes: int = 0
    rows_per_page: int = 0
    state_parts: tuple[StatePart, ...] = ()

    @classmethod
    def mha(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        page_tokens: int,
        v_head_dim: int | None = None,
        layer_ids: Iterable[int] | None = None,
    ) -> "KVSpec":
        """Return the spec of K and V heads (MHA, GQA, MQA); dims in elements, heads in all."""
        return cls(
            kind="mha",
            layers=layers,
            page_tokens=page_tokens,
            dtype=dtype,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if v_head_dim is None else v_head_dim,
            layer_ids=_ordinals(layers, layer_ids),
        )

    @classmethod
    def mla(
        cls,
        *,
        layers: int,
        dim: int,
        dtype: str,
        page_tokens: int,
        layer_ids: Iterable[int] | None = None,
    ) -> "KVSpec":
        """Return the spec of one latent a token (MLA): ``dim`` elements, the RoPE part included."""
        return cls(
            kind="mla",
            layers=layers,
            page_tokens=page_tokens,
            dtype=dtype,
            head_dim=dim,
            layer_ids=_ordinals(layers, layer_ids),
        )

    @classmethod
    def rows(
        cls,
        *,
        layers: int,
        row_bytes: int,
        rows_per_page: int,
        page_tokens: int,
        layer_ids: Iterable[int] | None = None,
    ) -> "KVSpec":
        """Return the spec of opaque rows, as indexer keys or packed fp8 rows with their scales."""
        return cls(
            kind="rows",
            layers=layers,
            page_tokens=page_tokens,
            row_bytes=row_bytes,
            rows_per_page=rows_per_page,
            layer_ids=_ordinals(layers, layer_ids),
        )

    @classmethod
    def state(
        cls,
        *,
        layers: int,
        parts: Iterable[StatePart],
        page_tokens: int,
        groups: int = 1,
        layer_ids: Iterable[int] | None = None,
    ) -> "KVSpec":
        """Return the spec of recurrent state at page ends; each part is cut into ``groups``."""
        return cls(
            kind="state",
            layers=layers,
            page_tokens=page_tokens,
            kv_heads=groups,
            layer_ids=_ordinals(layers, layer_ids),
            state_parts=tuple(parts),
        )

    def __post_init__(self) -> None:
        if self.kind not in FACTS:
            raise SpecError(f"kind {self.kind!r:.80}: want one of {', '.join(FACTS)}")
        for name in ("layers", "page_tokens", *_FACT_NAMES):
            self._check_fact(name)
        object.__setattr__(self, "layer_ids", _check_layer_ids(self.layer_ids, self.layers))
        if self.kind == "state":
            parts = check_parts(self.state_parts, self.kv_heads)
            object.__setattr__(self, "state_parts", parts)
        if self.layer_bytes > _MAX_LAYER_BYTES or self.page_bytes > _MAX_PAGE_BYTES:
            raise SpecError(
                f"one page holds {self.layer_bytes} bytes a layer, {self.page_bytes} in all: want "
                f"at most {_MAX_LAYER_BYTES} and {_MAX_PAGE_BYTES}; fewer page_tokens would fit"
            )

    def _check_fact(self, name: str) -> None:
        value = getattr(self, name)
        if name in _FACT_NAMES and name not in FACTS[self.kind]:
            if value != (blank := _BLANK.get(name, 0)):
                raise SpecError(f"{name} {value!r:.80}: a {self.kind} spec has none, want {blank}")
        elif name == "dtype":
            check_dtype(value)
        elif name != "state_parts":
            _check_positive(name, value, _LIMITS.get(name, _MAX_LAYER_BYTES))

    @property
    def has_heads(self) -> bool:
        """Whether keys carry a head group: mha, and state of more than one group."""
        return self.kind == "mha" or (self.kind == "state" and self.kv_heads > 1)

    @property
    def tokenwise(self) -> bool:
        """Whether row t of every part belongs to token t, so that token phases may cut a page."""
        return self.kind in ("mha", "mla") or self.rows_per_page == self.page_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of one slab in stored order: K and V, one latent, rows, or state parts."""
        if self.kind == "rows":
            return (Part("row", self.rows_per_page, self.row_bytes),)
        if self.kind == "state":
            return tuple(part for p in self.state_parts for part in _state_rows(p, self.kv_heads))
        width = self.head_dim * DTYPES[self.dtype]
        if self.kind == "mla":
            return (Part("latent", self.page_tokens, width),)
        v_width = self.v_head_dim * DTYPES[self.dtype]
        return (Part("k", self.page_tokens, width), Part("v", self.page_tokens, v_width))

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of one page, all heads or groups together."""
        return self.kv_heads * sum(part.rows * part.width for part in self.parts)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers and heads together."""
        return self.layers * self.layer_bytes

    def describe(self) -> dict[str, Json]:
        """Return every fact of the kind, and no other, as JSON values for the canonical text."""
        facts: dict[str, Json] = {
            "kind": self.kind,
            "layer_ids": list(self.layer_ids),
            "layers": self.layers,
            "page_tokens": self.page_tokens,
        }
        for name in FACTS[self.kind]:
            facts[name] = getattr(self, name)
        if self.kind == "state":
            facts["state_parts"] = [part.describe() for part in self.state_parts]
        return facts

    @classmethod
    def from_description(cls, facts: Mapping[str, object]) -> "KVSpec":
        """Return the spec that `describe` gave as ``facts``, from a text that nobody vouches for.

        Raises:
            SpecError: a fact is missing, unknown or wrong.
        """
        given = dict(facts)
        parts = given.pop("state_parts", [])
        ids = given.pop("layer_ids", None)
        if not (isinstance(parts, list) and isinstance(ids, list)):
            raise SpecError("spec text: want layer_ids, and state_parts if any, as lists")
        try:
            state_parts = tuple(StatePart(**part) for part in parts)
            return cls(**given, layer_ids=tuple(ids), state_parts=state_parts)  # type: ignore[arg-type]  # checked by cls
        except TypeError as error:
            raise SpecError(f"spec text with other facts than a spec has: {error}") from error


_FACT_NAMES = tuple(sorted({name for facts in FACTS.values() for name in facts}))


def _state_rows(part: StatePart, groups: int) -> list[Part]:
    """Return a part of each segment of a state's tensor: a group holds its share of every one."""
    step = part.size_bytes // part.shape[0]
    if not part.segments:
        return [Part(part.name, 1, part.size_bytes // groups)]
    return [
        Part(f"{part.name}.{n}", 1, size // groups * step) for n, size in enumerate(part.segments)
    ]


def _check_positive(name: str, value: object, limit: int = _MAX_LAYER_BYTES) -> None:
    if type(value) is not int or not 0 < value <= limit:
        raise SpecError(f"{name} {value!r:.80}: want a whole number from 1 to {limit}")


def _ordinals(layers: int, layer_ids: Iterable[int] | None) -> tuple[int, ...]:
    _check_positive("layers", layers, _LIMITS["layers"])
    return tuple(range(layers) if layer_ids is None else layer_ids)


def _check_layer_ids(layer_ids: Iterable[int], layers: int) -> tuple[int, ...]:
    ids = tuple(layer_ids)
    whole = all(type(i) is int and 0 <= i < _LIMITS["layers"] for i in ids)
    if len(ids) != layers or not whole or any(a >= b for a, b in pairwise(ids)):
        raise SpecError(
            f"layer_ids {ids!r:.200}: want {layers} model layers, ascending, each from 0 to "
            f"{_LIMITS['layers'] - 1}"
        )
    return ids

"""Cut: where a grid parts layers, heads and tokens, in one spelling. It knows no chunk."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unikv.canonical import Json
from unikv.errors import SpecError
from unikv.spec import KVSpec

CHUNK_LIMIT = 2**16
"""Chunks of one page at most, so that nobody's grid makes a reader build millions."""


class Cut(NamedTuple):
    """How every page of a namespace is cut into chunks; equal cuts are equal tuples."""

    layer_cuts: tuple[int, ...]  # ordinals, from 0 to all layers
    heads_per_chunk: int  # heads or state groups
    phases: int
    interleave: int  # adjacent tokens of one phase; 1 where there is one phase

    def describe(self) -> dict[str, Json]:
        """Return the cut as JSON values for the canonical text."""
        return {**self._asdict(), "layer_cuts": list(self.layer_cuts)}


def cut_page(
    spec: KVSpec,
    *,
    layers_per_chunk: int | None = None,
    layer_cuts: Sequence[int] | None = None,
    heads_per_chunk: int | None = None,
    phases: int = 1,
    interleave: int = 1,
) -> Cut:
    """Return the cut that the settings of a `Namespace` mean; None means uncut.

    Raises:
        SpecError: a setting does not fit the spec, or a page would have over 65,536 chunks.
    """
    cut = Cut(
        layer_cuts=_cut_layers(spec.layers, layers_per_chunk, layer_cuts),
        heads_per_chunk=_cut_heads(spec, heads_per_chunk),
        phases=phases,
        interleave=_cut_tokens(spec, phases, interleave),
    )
    chunks = (len(cut.layer_cuts) - 1) * (spec.kv_heads // cut.heads_per_chunk) * phases
    if chunks > CHUNK_LIMIT:
        raise SpecError(f"a grid of {chunks} chunks a page: want at most {CHUNK_LIMIT}")
    return cut


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value <= 0:
        raise SpecError(f"{name} {value!r:.80}: want a whole number from 1")


def _cut_layers(layers: int, each: int | None, cuts: Sequence[int] | None) -> tuple[int, ...]:
    if each is not None and cuts is not None:
        raise SpecError(f"layers_per_chunk {each!r:.80} and layer_cuts {cuts!r:.80}: want one")
    if cuts is None:
        each = layers if each is None else each
        _check_count("layers_per_chunk", each)
        return (*range(0, layers, each), layers)
    ends = tuple(cuts)
    whole = all(type(end) is int for end in ends)
    if not whole or ends[:1] + ends[-1:] != (0, layers) or any(a >= b for a, b in pairwise(ends)):
        raise SpecError(
            f"layer_cuts {ends!r:.200}: want ascending whole numbers from 0 to {layers}, "
            f"such as {tuple(sorted({0, (layers + 1) // 2, layers}))}"
        )
    return ends


def _cut_heads(spec: KVSpec, heads: int | None) -> int:
    if heads is None:
        return spec.kv_heads
    _check_count("heads_per_chunk", heads)
    if spec.kv_heads % heads:
        fits = [n for n in range(1, spec.kv_heads + 1) if spec.kv_heads % n == 0]
        raise SpecError(
            f"heads_per_chunk {heads} does not divide {spec.kv_heads} heads: want one of "
            f"{', '.join(map(str, fits)):.200}"
        )
    return heads


def _cut_tokens(spec: KVSpec, phases: int, interleave: int) -> int:
    """Return the interleave that tells grids apart: without phases none does."""
    _check_count("phases", phases)
    _check_count("interleave", interleave)
    if spec.page_tokens % (phases * interleave):
        raise SpecError(
            f"{phases} phases of {interleave} tokens do not divide a page of {spec.page_tokens}: "
            "want phases * interleave to be a divisor"
        )
    if phases > 1 and not spec.tokenwise:
        raise SpecError(
            f"phases {phases}: the rows of a {spec.kind} spec do not follow tokens, want 1"
        )
    return interleave if phases > 1 else 1

"""Draft: state of speculative drafters, and how it rides with the target's. It knows no pool.

Packed: draft depth d rides with target layer d. A pool lists the target's buffers, then the
draft's, so that layer d stands for buffers (d, target_layers + d) and one layer window carries
both. Only the transfer is packed: the draft is stored as its own component, whose `layer_ids` are
`draft_layer_ids`.

Sidecar: a pool of its own, whose slots follow from those of a declared source.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from unikv.arguments import whole_number
from unikv.errors import SpecError

_T = TypeVar("_T", bound=Any)  # int or an integer array: whatever has //, * and +


@dataclass(frozen=True, slots=True)
class Drafter:
    """One drafter of a deployment, and what it asks of the pages that are stored.

    ``components`` are those that hold its state, all of them; () says that it keeps none.
    ``lookahead`` is how many of the last tokens in the pools may stand on drafts that nobody
    accepted yet. ``retained`` is how many tokens its allocator keeps before a sliding window.

    Raises:
        SpecError: a name that is no text, components that are no tuple of names, or what is no
            whole number of tokens.
    """

    name: str
    components: tuple[str, ...]
    lookahead: int = 0
    retained: int = 0

    def __post_init__(self) -> None:
        names = self.components
        if not isinstance(self.name, str):
            raise SpecError(f"name {self.name!r:.80} of a drafter: want a text, such as 'mtp'")
        if not (isinstance(names, tuple) and all(isinstance(name, str) for name in names)):
            raise SpecError(
                f"components {names!r:.80} of drafter {self.name!r}: want a tuple of names, such "
                "as ('draft',)"
            )
        for field in ("lookahead", "retained"):
            tokens = whole_number(value := getattr(self, field))
            if tokens is None or tokens < 0:
                raise SpecError(
                    f"{field} {value!r:.80} of drafter {self.name!r}: want a whole number of "
                    "tokens, 0 or more"
                )
            object.__setattr__(self, field, tokens)


def check_drafters(drafters: object) -> None:
    """Raise `SpecError` unless these are drafters, and can be gone through more than once."""
    if isinstance(drafters, str | bytes) or not isinstance(drafters, Sequence):
        raise SpecError(
            f"drafters of type {type(drafters).__name__}: want a tuple or list of Drafter(name, "
            "components), or () for none"
        )
    for drafter in drafters:
        if not isinstance(drafter, Drafter):
            raise SpecError(
                f"drafter {drafter!r:.80}: want Drafter(name, components), such as "
                "Drafter('mtp', ('draft',))"
            )


def lookahead(drafters: Iterable[Drafter]) -> int:
    """Return how many of the last tokens no save may count on: the most of any drafter.

    `storable_pages` takes it off. Whoever needs the number asks here, and nobody derives it again.
    """
    return max((drafter.lookahead for drafter in drafters), default=0)


def retained(drafters: Iterable[Drafter]) -> int:
    """Return how many tokens before a sliding window must be stored: the most of any drafter."""
    return max((drafter.retained for drafter in drafters), default=0)


def draft_layer_ids(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Return the model layers of a packed draft: those next behind the target's."""
    return tuple(range(target_layers, target_layers + draft_layers))


def pack_layers(buffers: Mapping[int, int], draft_layers: int) -> dict[int, tuple[int, ...]]:
    """Return the buffers that each transfer layer carries, those of riding drafts included.

    Args:
        buffers: the target's buffer of each transfer layer, by layer; on a rank of a pipeline, of
            the layers that it holds, counted from 0.
        draft_layers: draft buffers, which a pool lists behind the target's in order of depth.

    Raises:
        SpecError: more draft layers than target layers, a depth whose target layer has no buffer,
            or buffers out of order, so that a draft buffer would be taken for another.
    """
    if draft_layers > len(buffers):
        raise SpecError(
            f"{draft_layers} draft layers ride with {len(buffers)} target layers: want "
            f"{len(buffers)} or fewer, or a sidecar"
        )
    order = [buffers[layer] for layer in sorted(buffers)]
    if order != list(range(len(buffers))):
        raise SpecError(
            f"target buffers {order!r:.120} by ascending layer: want 0 to {len(buffers) - 1} in "
            "order, with the draft's behind them"
        )
    for depth in range(draft_layers):
        if depth not in buffers:
            raise SpecError(
                f"draft depth {depth} rides with target layer {depth}, which has no buffer: want "
                f"layers 0 to {draft_layers - 1} among those mapped, or a sidecar"
            )
    packed = {layer: (buffers[layer],) for layer in sorted(buffers)}
    rides = {depth: (*packed[depth], len(buffers) + depth) for depth in range(draft_layers)}
    return {**packed, **rides}


def derive_slot(slot: _T, row: _T | int, source_rows: int, rows: int) -> _T:
    """Return the slot of row ``row`` of a page in a pool that follows its source.

    Args:
        slot: any slot of the page in the source's pool; its pages lie whole, one after another.
        row: from 0, of the page in the pool that follows.
        source_rows: rows of a page in the source's pool.
        rows: rows of a page in the pool that follows: 1 where a row is a page.
    """
    derived: _T = slot // source_rows * rows + row
    return derived

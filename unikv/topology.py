"""Topology: parallel sizes of a deployment and what each rank holds. It knows no grid, no store."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeGuard

from unikv.errors import TopologyError
from unikv.geometry import Box, Interval
from unikv.spec import KVSpec

_MAX_SIZE = 2**16
_AXIS = re.compile(r"(tp|pp|cp|dcp)([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}(?:-[1-9][0-9]{0,4})*))?\Z")


@dataclass(frozen=True, slots=True)
class Topology:
    """Sizes of the parallel axes: tensor, pipeline, context, and decode context.

    ``pp_layers`` gives the model layers of each pipeline stage; without it stages are equal.
    Context axes other than 1 come with unikv 0.2.

    Raises:
        TopologyError: a size is no whole number above zero, or ``pp_layers`` is not one size a
            stage.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dcp: int = 1
    pp_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dcp"):
            _check_size(name, getattr(self, name))
        for name in ("cp", "dcp"):
            if getattr(self, name) != 1:
                raise TopologyError(
                    f"{name}={getattr(self, name)}: context parallel ranks come with unikv 0.2; "
                    f"this release wants {name}=1"
                )
        if self.pp_layers is not None:
            table = _check_table(self.pp_layers, self.pp)
            object.__setattr__(self, "pp_layers", table)

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Return the topology that ``text`` spells: ``"tp3,pp2"`` or ``"tp1,pp3:11-10-9"``.

        The inverse of ``str``. Axes left out are 1; they may come in any order.

        Raises:
            TopologyError: the text spells no topology.
        """
        sizes: dict[str, int] = {}
        table: tuple[int, ...] | None = None
        for word in text.split(","):
            match = _AXIS.match(word)
            if not match or match[1] in sizes or (match[3] and match[1] != "pp"):
                raise TopologyError(
                    f"topology {text!r:.200}, at {word!r:.60}: want each axis once with its size, "
                    "such as 'tp4,pp2' or 'tp1,pp3:11-10-9' with the layers of each stage"
                )
            sizes[match[1]] = int(match[2])
            if match[3]:
                table = tuple(int(layers) for layers in match[3].split("-"))
        return cls(**sizes, pp_layers=table)

    def __str__(self) -> str:
        table = ":" + "-".join(map(str, self.pp_layers)) if self.pp_layers else ""
        context = "".join(f",{n}{s}" for n, s in (("cp", self.cp), ("dcp", self.dcp)) if s > 1)
        return f"tp{self.tp},pp{self.pp}{table}{context}"

    def rank(self, tp: int = 0, pp: int = 0, cp: int = 0, dcp: int = 0) -> "Rank":
        """Return one rank by its coordinates; `TopologyError` when one is outside its axis."""
        return Rank(self, tp, pp, cp, dcp)

    def ranks(self) -> "list[Rank]":
        """Return all ranks, those of one pipeline stage together."""
        return [
            Rank(self, tp, pp, cp, dcp)
            for pp in range(self.pp)
            for cp in range(self.cp)
            for dcp in range(self.dcp)
            for tp in range(self.tp)
        ]

    def stage_bounds(self, spec: KVSpec) -> list[int]:
        """Return the model layers at which stages begin, and the end: pp + 1 ascending numbers.

        Raises:
            TopologyError: the stages are not told by the sizes, or do not fit the spec's layers.
        """
        whole = spec.layer_ids == tuple(range(spec.layers))
        if self.pp_layers is None:
            if self.pp == 1:
                return [0, spec.layer_ids[-1] + 1]
            if not whole:
                raise TopologyError(
                    f"pp={self.pp} on a component that holds only layers {_some(spec.layer_ids)} "
                    "of its model: want pp_layers=(...) with the model layers of each stage"
                )
            if spec.layers % self.pp:
                stages = min(self.pp, spec.layers)
                base, more = divmod(spec.layers, stages)
                table = tuple(base + (stage < more) for stage in range(stages))
                raise TopologyError(
                    f"pp={self.pp} does not divide {spec.layers} layers: want the layers of each "
                    f"stage, such as pp={stages}, pp_layers={table}"
                )
            return list(range(0, spec.layers + 1, spec.layers // self.pp))
        bounds = [0, *accumulate(self.pp_layers)]
        if whole and bounds[-1] != spec.layers:
            raise TopologyError(
                f"pp_layers={self.pp_layers} sum to {bounds[-1]}: want a sum of {spec.layers}, "
                "the layers of the model"
            )
        if bounds[-1] <= spec.layer_ids[-1]:
            raise TopologyError(
                f"pp_layers={self.pp_layers} sum to {bounds[-1]}, and the component holds model "
                f"layer {spec.layer_ids[-1]}: want a sum of {spec.layer_ids[-1] + 1} or more"
            )
        return bounds


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a topology, by its coordinate on each axis."""

    topology: Topology
    tp: int = 0
    pp: int = 0
    cp: int = 0
    dcp: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dcp"):
            value, size = getattr(self, name), getattr(self.topology, name)
            if not _is_int(value) or not 0 <= value < size:
                raise TopologyError(
                    f"rank {name}={value!r} of topology {self.topology}: want "
                    f"{name}={f'0..{size - 1}' if size > 1 else 0}"
                )

    def __str__(self) -> str:
        return f"rank tp={self.tp} pp={self.pp} of {self.topology}"

    def box(self, spec: KVSpec) -> Box:
        """Return the layers and heads of ``spec`` that this rank holds; empty when none.

        Heads are global: contiguous shares, or one head on ``tp // kv_heads`` neighbours. Kinds
        without heads are held whole by every tensor rank.

        Raises:
            TopologyError: the sizes do not fit the spec's heads or layers.
        """
        heads, tp = spec.kv_heads, self.topology.tp
        if heads % tp == 0:
            share = heads // tp
            held = Interval(self.tp * share, (self.tp + 1) * share)
        else:
            head = self.tp // self._replicas(spec)
            held = Interval(head, head + 1)
        bounds = self.topology.stage_bounds(spec)
        start, stop = bounds[self.pp], bounds[self.pp + 1]
        first, end = bisect_left(spec.layer_ids, start), bisect_left(spec.layer_ids, stop)
        return Box(Interval(first, end), held)

    def replica(self, spec: KVSpec) -> tuple[int, int]:
        """Return (index, count): which one this is among the ranks that hold the same box.

        Raises:
            TopologyError: the tensor size does not fit the spec's heads.
        """
        count = self._replicas(spec)
        return self.tp % count, count

    def _replicas(self, spec: KVSpec) -> int:
        heads, tp = spec.kv_heads, self.topology.tp
        if heads % tp and tp % heads:
            right = [n for n in range(1, heads + 1) if heads % n == 0]
            word = "state groups" if spec.kind == "state" else "KV heads"
            raise TopologyError(
                f"tp={tp} neither divides nor is a multiple of {heads} {word}: "
                f"want tp={_some(right)} or a multiple of {heads}"
            )
        return max(1, tp // heads)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_size(name: str, value: object) -> None:
    if not _is_int(value) or not 1 <= value <= _MAX_SIZE:
        raise TopologyError(f"{name}={value!r:.60}: want a whole number 1..{_MAX_SIZE}, such as 1")


def _check_table(table: Iterable[int], pp: int) -> tuple[int, ...]:
    try:
        layers = tuple(table)
    except TypeError:
        raise TopologyError(
            f"pp_layers={table!r:.60}: want the layers of each stage, such as (11, 10, 9)"
        ) from None
    if len(layers) != pp:
        raise TopologyError(
            f"pp_layers={layers} has {len(layers)} stages and pp={pp}: want pp={len(layers)} "
            f"or {pp} stages"
        )
    for stage, size in enumerate(layers):
        _check_size(f"pp_layers[{stage}]", size)
    return layers


def _some(numbers: Iterable[int]) -> str:
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:7], "...", shown[-1]])

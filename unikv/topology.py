"""Topology: parallel sizes of a deployment and what each rank holds. It knows no grid, no store."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeGuard

from unikv.errors import TopologyError
from unikv.geometry import Box, Interval, Phase
from unikv.sharding import Shard
from unikv.spec import KVSpec

_MAX_SIZE = 2**16
_AXIS = re.compile(r"(tp|pp|cp|dcp)([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}(?:-[1-9][0-9]{0,4})*))?\Z")


@dataclass(frozen=True, slots=True)
class Topology:
    """Sizes of the parallel axes: tensor, pipeline, context, and decode context.

    ``pp_layers`` gives the model layers of each pipeline stage; without it stages are equal.
    Context ranks (``cp``) own pages in turn and hold all tokens of theirs; decode context ranks
    (``dcp``) hold of every page the tokens t with ``t // dcp_interleave % dcp`` equal to theirs.

    Raises:
        TopologyError: a size is no whole number above zero, or ``pp_layers`` is not one size a
            stage.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dcp: int = 1
    pp_layers: tuple[int, ...] | None = None
    dcp_interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dcp", "dcp_interleave"):
            _check_size(name, getattr(self, name))
        if self.dcp == 1 and self.dcp_interleave != 1:
            raise TopologyError(
                f"dcp_interleave={self.dcp_interleave} with dcp=1: want 1, no tokens are dealt out"
            )
        if self.pp_layers is not None:
            table = _check_table(self.pp_layers, self.pp)
            object.__setattr__(self, "pp_layers", table)

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Return the topology that ``text`` spells, such as ``"tp3,pp2"`` or ``"tp1,pp3:11-10-9"``.

        The inverse of ``str``. Axes left out are 1; they may come in any order. Behind a colon
        stand the layers of the pipeline's stages, or the interleave of ``dcp``: ``"dcp4:16"``.

        Raises:
            TopologyError: the text spells no topology.
        """
        sizes: dict[str, int] = {}
        tables: dict[str, tuple[int, ...]] = {}
        for word in text.split(","):
            match = _AXIS.match(word)
            table = tuple(map(int, match[3].split("-"))) if match and match[3] else ()
            most = {"pp": len(table), "dcp": 1}  # numbers that may stand behind a colon
            if not match or match[1] in sizes or len(table) > most.get(match[1], 0):
                raise TopologyError(
                    f"topology {text!r:.200}, at {word!r:.60}: want each axis once with its size, "
                    "such as 'tp4,pp2', 'tp1,pp3:11-10-9' with the layers of each stage or "
                    "'tp8,dcp2:16' with the interleave"
                )
            sizes[match[1]] = int(match[2])
            if table:
                tables[match[1]] = table
        [interleave] = tables.get("dcp", (1,))
        return cls(**sizes, pp_layers=tables.get("pp"), dcp_interleave=interleave)

    def __str__(self) -> str:
        table = ":" + "-".join(map(str, self.pp_layers)) if self.pp_layers else ""
        cp = f",cp{self.cp}" if self.cp > 1 else ""
        dcp = f",dcp{self.dcp}" if self.dcp > 1 else ""
        interleave = f":{self.dcp_interleave}" if self.dcp_interleave > 1 else ""
        return f"tp{self.tp},pp{self.pp}{table}{cp}{dcp}{interleave}"

    def rank(
        self,
        tp: int | None = None,
        pp: int | None = None,
        cp: int | None = None,
        dcp: int | None = None,
    ) -> "Rank":
        """Return one rank by its coordinates; on an axis of size 1 there is but one.

        Raises:
            TopologyError: a coordinate is outside its axis, or missing where there are several: a
                rank that took itself for rank 0 would store its heads as another's.
        """
        given = {"tp": tp, "pp": pp, "cp": cp, "dcp": dcp}
        for name, value in given.items():
            if value is None and getattr(self, name) > 1:
                raise TopologyError(
                    f"a rank of {self} without {name}: want {name}=0..{getattr(self, name) - 1}"
                )
        return Rank(self, *(0 if value is None else value for value in given.values()))

    def ranks(self) -> "list[Rank]":
        """Return all ranks, those of one pipeline stage together."""
        return [
            Rank(self, tp, pp, cp, dcp)
            for pp in range(self.pp)
            for cp in range(self.cp)
            for dcp in range(self.dcp)
            for tp in range(self.tp)
        ]

    def stage_bounds(self, spec: KVSpec, model_layers: int | None = None) -> list[int]:
        """Return the model layers at which stages begin, and the end: pp + 1 ascending numbers.

        Args:
            spec: of one component.
            model_layers: layers of its model, where other components know of more; None: the
                spec's own, so that layers 0, 1, 2... are taken for all of them.

        Raises:
            TopologyError: the stages are not told by the sizes, or do not fit the spec's layers.
        """
        whole = spec.layer_ids == tuple(range(model_layers or spec.layers))
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
        if spec.layer_ids[0] >= bounds[-1]:  # a draft's layers, behind the target's: last stage
            bounds[-1] = spec.layer_ids[-1] + 1
            return bounds
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
        cp = f" cp={self.cp}" if self.topology.cp > 1 else ""
        dcp = f" dcp={self.dcp}" if self.topology.dcp > 1 else ""
        return f"rank tp={self.tp} pp={self.pp}{cp}{dcp} of {self.topology}"

    def box(self, spec: KVSpec, model_layers: int | None = None) -> Box:
        """Return the layers, heads and tokens of ``spec`` that this rank holds; empty when none.

        Heads are global: contiguous shares, or one head on ``tp // kv_heads`` neighbours. Kinds
        without heads are held whole by every tensor rank, and kinds whose rows do not follow
        tokens by every decode context rank. ``model_layers`` is as in `Topology.stage_bounds`.

        Raises:
            TopologyError: the sizes do not fit the spec's heads, layers or page.
        """
        heads, tp = spec.kv_heads, self.topology.tp
        if heads % tp == 0:
            share = heads // tp
            held = Interval(self.tp * share, (self.tp + 1) * share)
        else:
            head = self.tp // self._head_replicas(spec)
            held = Interval(head, head + 1)
        bounds = self.topology.stage_bounds(spec, model_layers)
        start, stop = bounds[self.pp], bounds[self.pp + 1]
        first, end = bisect_left(spec.layer_ids, start), bisect_left(spec.layer_ids, stop)
        return Box(Interval(first, end), held, self._phase(spec))

    def shard(self, spec: KVSpec, sharded: bool | None = None) -> Shard:  # noqa: FBT001
        """Return which of a path's pages this rank owns: in turn with others, or all of them.

        Args:
            spec: of the component.
            sharded: None deals pages out over ``cp``. False keeps all pages on every context rank.
                True deals them out also where cp is 1: latents, over the tensor ranks that would
                hold copies.

        Raises:
            TopologyError: pages are to be dealt out and nothing would hold copies of them.
        """
        if self.topology.cp > 1:
            return Shard(0, 1) if sharded is False else Shard(self.cp, self.topology.cp)
        if not sharded:
            return Shard(0, 1)
        if spec.has_heads or self.topology.tp == 1:
            raise TopologyError(
                f"sharded=True on {self.topology} for kind {spec.kind!r}: want cp > 1, or a kind "
                "without heads and tp > 1"
            )
        return Shard(self.tp, self.topology.tp)

    def replica(self, spec: KVSpec, sharded: bool | None = None) -> tuple[int, int]:  # noqa: FBT001
        """Return (index, count): which one this is among the ranks that hold the same bytes.

        Raises:
            TopologyError: the sizes do not fit the spec.
        """
        index, count = 0, 1
        copies = self._head_replicas(spec)
        if copies > 1 and self.shard(spec, sharded).ranks in (1, self.topology.cp):
            index, count = self.tp % copies, copies
        if sharded is False:
            index, count = index * self.topology.cp + self.cp, count * self.topology.cp
        if not spec.tokenwise:
            index, count = index * self.topology.dcp + self.dcp, count * self.topology.dcp
        return index, count

    def _phase(self, spec: KVSpec) -> Phase:
        size, interleave = self.topology.dcp, self.topology.dcp_interleave
        if size == 1 or not spec.tokenwise:
            return Phase()
        if spec.page_tokens % (size * interleave):
            raise TopologyError(
                f"dcp={size} with interleave {interleave} does not divide pages of "
                f"{spec.page_tokens} tokens: want page_tokens a multiple of {size * interleave}"
            )
        return Phase(self.dcp, size, interleave)

    def _head_replicas(self, spec: KVSpec) -> int:
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

"""Fleet: deployments that share KV, and the coarsest cut that suits them. It knows no store.

Pure: sizes in, a cut or reasons out. `Namespace` takes the settings of a cut as they are:
``Namespace(**cut._asdict(), spec=spec, ...)``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import NamedTuple

from unikv.cut import Cut, cut_page
from unikv.errors import GridError, SpecError, TopologyError
from unikv.geometry import Box
from unikv.spec import KVSpec
from unikv.topology import Rank, Topology


class Deployment(NamedTuple):
    """One deployment of a fleet. Who only reads takes any heads and layers of the writers' cut."""

    topology: Topology
    writes: bool = True


class Misfit(NamedTuple):
    """A deployment that keeps its fleet from a common cut, and why."""

    deployment: Deployment
    reason: str


class Suggestion(NamedTuple):
    """A fleet near one without a common cut, that has one."""

    fleet: tuple[Deployment, ...]
    spec: KVSpec  # differs from what was asked for in its page at most
    cut: Cut
    changes: tuple[str, ...]  # from what was asked for, in words


def common_cut(spec: KVSpec, fleet: Sequence[Deployment]) -> Cut:
    """Return the coarsest cut by which every rank that writes owns whole chunks.

    Layers are cut at all stage boundaries of writers; heads go together by the greatest common
    divisor of all writers' shares; token phases are the least common multiple of the ``dcp`` sizes.
    These count of readers too: a rank that holds some tokens of a page can take whole phases only.

    Raises:
        TopologyError: a deployment does not fit the model or its pages.
        GridError: nobody writes, or decode context ranks deal tokens out by several interleaves.
        SpecError: a page would have more chunks than a grid may.
    """
    if not any(deployment.writes for deployment in fleet):
        raise GridError("a fleet in which nobody writes: want one deployment at least that does")
    for misfit in find_misfits(spec, fleet):
        fault = TopologyError if _fault(spec, misfit.deployment.topology) else GridError
        raise fault(f"{misfit.deployment.topology}: {misfit.reason}")
    return cut_page(spec, **_coarsest(spec, fleet)._asdict())


def find_misfits(spec: KVSpec, fleet: Sequence[Deployment]) -> list[Misfit]:
    """Return every deployment that keeps the fleet from a common cut, none where there is one.

    These do not fit the model or its pages, or deal tokens out by another interleave than most.
    """
    common = _commonest_interleave(spec, fleet)
    found = list[Misfit]()
    for deployment in fleet:
        interleave = _interleave(spec, deployment)
        if fault := _fault(spec, deployment.topology):
            found.append(Misfit(deployment, str(fault)))
        elif interleave not in (None, common):
            reason = (
                f"its decode context ranks deal tokens out with interleave {interleave}, others of "
                f"the fleet with {common}: no token phases suit both, want one interleave"
            )
            found.append(Misfit(deployment, reason))
    return found


def suggest(
    spec: KVSpec, fleet: Sequence[Deployment], fits: Callable[[KVSpec, Cut], bool]
) -> Suggestion | None:
    """Return the fleet nearest to one without a common cut, or None where none is near.

    Each deployment that does not fit the model gets the closest ``tp`` that does and stages as
    even as can be, pages get the tokens that all ``dcp`` sizes divide. Then those are left out
    that deal tokens out in another way than most, and those without which the cut ``fits``.

    Args:
        spec: of the component.
        fleet: in any order; the order is kept.
        fits: whether a cut may be used, beyond what `cut_page` asks of it.
    """
    near, changes = list[Deployment](), list[str]()
    for deployment in fleet:
        topology = _adapt(spec, deployment.topology)
        if topology != deployment.topology:
            changes.append(f"{topology} instead of {deployment.topology}")
        near.append(deployment._replace(topology=topology))
    common = _commonest_interleave(spec, near)
    kept = [one for one in near if _interleave(spec, one) in (None, common)]
    changes += [f"without {one.topology}" for one in near if one not in kept]
    try:
        paged = _fit_page(spec, kept)
    except SpecError:  # a page so large that one layer of it passes the format's limit
        return None
    if paged != spec:
        changes.append(f"pages of {paged.page_tokens} tokens instead of {spec.page_tokens}")
    while any(deployment.writes for deployment in kept):
        cut = _coarsest(paged, kept)
        if _is_legal(paged, cut) and fits(paged, cut):
            return Suggestion(tuple(kept), paged, cut, tuple(changes))
        worst = _finest(paged, kept)
        changes.append(f"without {kept.pop(worst).topology}")
    return None


def repage(spec: KVSpec, page_tokens: int) -> KVSpec:
    """Return the spec of the same cache in pages of ``page_tokens`` tokens.

    Raises:
        SpecError: such a page is too large, or would have a part of a row.
    """
    if spec.kind != "rows":
        return replace(spec, page_tokens=page_tokens)
    rows, rest = divmod(spec.rows_per_page * page_tokens, spec.page_tokens)
    if rest:
        raise SpecError(
            f"pages of {page_tokens} tokens, and {spec.rows_per_page} rows for every "
            f"{spec.page_tokens}: want a multiple of {spec.page_tokens}"
        )
    return replace(spec, page_tokens=page_tokens, rows_per_page=rows)


def _coarsest(spec: KVSpec, fleet: Iterable[Deployment]) -> Cut:
    """Return the cut of a fleet without misfits; how many chunks it makes is not checked."""
    ends, heads, phases, interleave = {0, spec.layers}, spec.kv_heads, 1, 1
    for topology, writes in fleet:
        phase = Rank(topology).box(spec).phase
        phases = lcm(phases, phase.count)
        interleave = max(interleave, phase.interleave)  # without phases it is 1
        for box in _boxes(spec, topology) if writes else ():
            ends |= {box.layers.start, box.layers.stop}
            heads = gcd(heads, box.heads.start, box.heads.stop)
    return Cut(tuple(sorted(ends)), heads, phases, interleave)


def _boxes(spec: KVSpec, topology: Topology) -> Iterable[Box]:
    """Yield boxes that have the layers of every stage and the heads of every tensor rank."""
    for pp in range(topology.pp):
        yield Rank(topology, pp=pp).box(spec)
    for tp in range(1, topology.tp):
        yield Rank(topology, tp=tp).box(spec)


def _fault(spec: KVSpec, topology: Topology) -> TopologyError | None:
    """Return what of a topology does not fit; one rank tells, since sizes are what can be wrong."""
    try:
        Rank(topology).box(spec)
    except TopologyError as error:
        return error
    return None


def _interleave(spec: KVSpec, deployment: Deployment) -> int | None:
    """Return how many adjacent tokens a rank holds, None where it holds all of a page."""
    topology = deployment.topology
    return topology.dcp_interleave if topology.dcp > 1 and spec.tokenwise else None


def _commonest_interleave(spec: KVSpec, fleet: Sequence[Deployment]) -> int | None:
    """Return the interleave by which most may stay, somebody who writes among them.

    Of equals it is one that needs no other pages, or else the first; None where nobody has one.
    """

    def stay(common: int) -> tuple[bool, int, bool]:
        stayed = [one for one in fleet if _interleave(spec, one) in (None, common)]
        paged = spec.page_tokens % _page_unit(spec, stayed) == 0
        return any(one.writes for one in stayed), len(stayed), paged

    found = [value for one in fleet if (value := _interleave(spec, one)) is not None]
    return max(dict.fromkeys(found), key=stay, default=None)


def _adapt(spec: KVSpec, topology: Topology) -> Topology:
    """Return the nearest topology whose heads and stages fit; the page is left to `_fit_page`."""
    if _fault(spec, Topology(tp=topology.tp)):
        sizes = (topology.tp + sign * step for step in range(1, topology.tp) for sign in (-1, 1))
        size = next(size for size in sizes if not _fault(spec, Topology(tp=size)))
        topology = replace(topology, tp=size)
    if _fault(spec, Topology(pp=topology.pp, pp_layers=topology.pp_layers)):
        layers = spec.layer_ids[-1] + 1  # of the model, as far as the component knows
        stages = min(topology.pp, layers)
        each, more = divmod(layers, stages)
        table = tuple(each + (stage < more) for stage in range(stages))
        topology = replace(topology, pp=stages, pp_layers=table)
    return topology


def _fit_page(spec: KVSpec, fleet: Iterable[Deployment]) -> KVSpec:
    """Return the spec with the next larger page that all decode context ranks divide."""
    unit = _page_unit(spec, fleet)
    return repage(spec, -(-spec.page_tokens // unit) * unit)


def _page_unit(spec: KVSpec, fleet: Iterable[Deployment]) -> int:
    return lcm(*(one.topology.dcp * (_interleave(spec, one) or 0) or 1 for one in fleet))


def _is_legal(spec: KVSpec, cut: Cut) -> bool:
    try:
        cut_page(spec, **cut._asdict())
    except SpecError:
        return False
    return True


def _finest(spec: KVSpec, fleet: Sequence[Deployment]) -> int:
    """Return which deployment, left out, makes the rest's cut the coarsest."""

    def fineness(index: int) -> int:
        cut = _coarsest(spec, [*fleet[:index], *fleet[index + 1 :]])
        return (len(cut.layer_cuts) - 1) * (spec.kv_heads // cut.heads_per_chunk) * cut.phases

    return min(range(len(fleet)), key=fineness)

"""Models and deployments: which are tried, and the grids that pages of each are cut by."""

from functools import cache
from itertools import accumulate, combinations, product

from tests.topology.fleets import World
from tests.topology.oracle import Cut, Deployment, Model

TENSOR = (1, 2, 3, 4, 6, 8, 16)
CONTEXT = (1, 2, 3, 4)
DECODE = (1, 2, 4)

MODELS = {
    "mha 8 heads 61 layers": Model(61, 8, (2, 2)),
    "gqa 3 heads 30 layers": Model(30, 3, (1, 1), page=64),
    "one head": Model(6, 1, (2, 2), page=64),
    "mla 61 layers": Model(61, 0, (3,)),
    "K and V of different dims": Model(12, 6, (3, 2)),
    "hybrid": Model(8, 4, (1, 2), ids=tuple(range(3, 32, 4))),
}
STAGES: dict[int, list[tuple[int, ...]]] = {  # by layers of the model; three stages are uneven
    61: [(), (31, 30), (20, 22, 19), (16, 15, 15, 15)],
    30: [(), (15, 15), (11, 10, 9), (8, 8, 7, 7)],
    6: [(), (3, 3), (1, 3, 2), (2, 1, 2, 1)],
    12: [(), (6, 6), (5, 4, 3), (3, 3, 3, 3)],
    32: [(), (16, 16), (13, 2, 17), (3, 14, 8, 7)],  # of the hybrid's model: two hold none of it
}
INTERLEAVE = {"gqa 3 heads 30 layers": 16, "hybrid": 2}  # of others 1


def stages_of(name: str) -> list[tuple[int, ...]]:
    return STAGES[MODELS[name].layer_ids[-1] + 1]


def tensor_sizes(name: str) -> list[int]:
    heads = max(1, MODELS[name].heads)
    return [tp for tp in TENSOR if heads % tp == 0 or tp % heads == 0]


def deploy(name: str, tp: int, stages: tuple[int, ...], cp: int, dcp: int) -> Deployment:
    interleave = INTERLEAVE.get(name, 1) if dcp > 1 else 1
    return Deployment(tp, stages, cp, dcp, interleave)


def every_deployment(name: str) -> list[Deployment]:
    """Return all sizes of all axes that the model allows."""
    axes = (tensor_sizes(name), stages_of(name), CONTEXT, DECODE)
    return [deploy(name, *sizes) for sizes in product(*axes)]


@cache
def chosen_deployments(name: str) -> list[Deployment]:
    """Return tensor x pipeline sizes in full, and few more in which all sizes of axes meet.

    Every size of an axis meets every size of every other axis, in as few ranks as a greedy choice
    finds; large tensor sizes of the models of many layers are left to the others.
    """
    most = 16 if MODELS[name].layers > 12 else 64  # ranks of a stage; layers cost the time
    every = [d for d in every_deployment(name) if d.tp * d.cp * d.dcp <= most]
    chosen = [d for d in every if (d.cp, d.dcp) == (1, 1)]
    lacking = set[object]().union(*map(meetings, every)) - set().union(*map(meetings, chosen))
    while lacking:
        best = max(every, key=lambda d: len(meetings(d) & lacking) / (d.tp * d.cp * d.dcp + 4))
        chosen.append(best)
        lacking -= meetings(best)
    return chosen


def meetings(deployment: Deployment) -> set[object]:
    """Return all pairs of sizes of two axes."""
    return set(combinations(enumerate(deployment[:4]), 2))


def ends_of(name: str, stages: tuple[int, ...]) -> set[int]:
    """Return the ordinals at which stages part the component's layers."""
    model = MODELS[name]
    ends = list(accumulate(stages))
    inside = {sum(layer < end for layer in model.layer_ids) for end in ends}
    return {0, model.layers} | inside


def common_cut(name: str) -> Cut:
    """Return the coarsest grid by which every deployment can write."""
    ends = set[int]().union(*(ends_of(name, stages) for stages in stages_of(name)))
    return Cut(tuple(sorted(ends)), 1, max(DECODE), INTERLEAVE.get(name, 1))


def own_cut(name: str, deployment: Deployment) -> Cut:
    """Return the coarsest grid by which one deployment can write."""
    ends = ends_of(name, deployment.stages)
    heads = max(1, MODELS[name].heads // deployment.tp)
    return Cut(tuple(sorted(ends)), heads, deployment.dcp, deployment.interleave)


def finest_cut(name: str) -> Cut:
    layers = tuple(range(MODELS[name].layers + 1))
    return Cut(layers, 1, max(DECODE), INTERLEAVE.get(name, 1))


def coarsest_cut(name: str, deployment: Deployment) -> Cut:
    """Return one chunk of everything, but for the token phases that a reader needs."""
    model = MODELS[name]
    return Cut((0, model.layers), max(1, model.heads), deployment.dcp, deployment.interleave)


def ragged_cut(name: str) -> Cut:
    """Return even cuts that fit no stage and leave a shorter last one."""
    model = MODELS[name]
    each = model.layers // 3 + (1 if model.layers % 3 == 0 else 0)
    layers = (*range(0, model.layers, each), model.layers)
    return Cut(layers, max(1, model.heads // 2), max(DECODE), INTERLEAVE.get(name, 1))


def world_of(name: str, cut: Cut, pages: int = 4) -> World:
    return World(MODELS[name], cut, pages)

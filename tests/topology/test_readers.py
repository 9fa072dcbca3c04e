"""Readers: whatever the deployment and the grid, each rank gets the oracle's pool and no more."""

from functools import cache

import pytest

from tests.topology.fleets import World, contents, filled_store
from tests.topology.models import (
    MODELS,
    chosen_deployments,
    coarsest_cut,
    common_cut,
    every_deployment,
    finest_cut,
    ragged_cut,
    world_of,
)
from tests.topology.oracle import Cut, Deployment
from unikv.backends.memory import MemoryStore

GRIDS = ("aligned", "finer", "coarser", "ragged")
SMALL = [name for name in MODELS if MODELS[name].layers <= 12]


def cut_of(name: str, grid: str, deployment: Deployment) -> Cut:
    match grid:
        case "aligned":
            return common_cut(name)
        case "finer":
            return finest_cut(name)
        case "coarser":
            return coarsest_cut(name, deployment)
        case _:
            return ragged_cut(name)


@cache
def stored(world: World) -> MemoryStore:
    return filled_store(world)


def check_reader(name: str, grid: str, deployment: Deployment) -> None:
    world = world_of(name, cut_of(name, grid, deployment))
    store = stored(world)
    for member, report in world.load(store, deployment):
        world.check_cost(member, report)
    assert len(store._objects) == len(world.objects)  # a load stores nothing


CASES = [
    (name, grid, deployment)
    for name in MODELS
    for turn, deployment in enumerate(chosen_deployments(name))
    for grid in (GRIDS * 2)[turn % 4 :][: 2 if name in SMALL else 1]  # in turn: `slow` has all
]


@pytest.mark.parametrize(("name", "grid", "deployment"), CASES, ids=str)
def test_every_reader_gets_its_own_and_pays_what_the_plan_says(
    name: str, grid: str, deployment: Deployment
) -> None:
    check_reader(name, grid, deployment)


def test_what_readers_share_stays_as_the_oracle_made_it() -> None:
    for name in SMALL:
        world = world_of(name, common_cut(name))
        assert contents(stored(world)) == world.objects


@pytest.mark.exhaustive
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SMALL)
def test_every_size_of_every_axis_reads_its_own(name: str, grid: str) -> None:
    for deployment in every_deployment(name):
        check_reader(name, grid, deployment)

"""Writers: whatever the deployment, the store holds the oracle's objects, each written once."""

from pathlib import Path

import pytest

from tests.topology.fleets import contents
from tests.topology.models import (
    MODELS,
    chosen_deployments,
    common_cut,
    deploy,
    every_deployment,
    own_cut,
    stages_of,
    world_of,
)
from tests.topology.oracle import Cut, Deployment
from unikv import open_store
from unikv.backends.memory import MemoryStore
from unikv.errors import GridError
from unikv.store import Item

CASES = [(name, d) for name in MODELS for d in chosen_deployments(name)]
SMALL = [name for name in MODELS if MODELS[name].layers <= 12]


def check_writer(name: str, deployment: Deployment, cut: Cut, **options: str) -> None:
    world = world_of(name, cut)
    assert world.save_at_once(deployment, **options) == world.objects


@pytest.mark.parametrize(("name", "deployment"), CASES, ids=str)
def test_every_writer_stores_the_same_bytes_once(name: str, deployment: Deployment) -> None:
    check_writer(name, deployment, common_cut(name))


@pytest.mark.parametrize(("name", "deployment"), [c for c in CASES if c[0] in SMALL], ids=str)
def test_every_writer_stores_its_own_coarsest_grid(name: str, deployment: Deployment) -> None:
    check_writer(name, deployment, own_cut(name, deployment), writers="first")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stages", range(4), ids=["pp1", "pp2", "pp3 uneven", "pp4"])
def test_a_writer_of_coarser_chunks_than_it_owns_is_refused(name: str, stages: int) -> None:
    model, store = MODELS[name], MemoryStore()
    deployment = deploy(name, max(1, model.heads), stages_of(name)[stages], 1, 2)
    fits = own_cut(name, deployment)
    misfits = [fits._replace(phases=1, interleave=1)]
    if model.heads > 1:
        misfits.append(fits._replace(heads=model.heads))
    for cut in misfits:
        with pytest.raises(GridError, match=r"phases=2|heads_per_chunk=1"):
            world_of(name, cut).save(store, deployment)
    assert contents(store) == {}
    whole = world_of(name, fits._replace(layers=(0, model.layers)))
    refused = 0
    for member in whole.fleet(store, deployment, filled=True):
        if len(member.held.layers) not in (0, model.layers):
            refused += 1
            with pytest.raises(GridError, match="layers_per_chunk"):
                member.save(whole.path)
            assert contents(store) == {}
    assert (refused > 0) == (len(fits.layers) > 2)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


FILES = [
    ("mha 8 heads 61 layers", deploy("mha 8 heads 61 layers", 2, (31, 30), 1, 1)),
    ("gqa 3 heads 30 layers", deploy("gqa 3 heads 30 layers", 6, (11, 10, 9), 2, 2)),
    ("one head", deploy("one head", 2, (1, 3, 2), 3, 1)),
    ("mla 61 layers", deploy("mla 61 layers", 4, (), 1, 2)),
    ("mla 61 layers", Deployment(4, (31, 30), sharded=True)),
    ("mla 61 layers", Deployment(2, (), 2, sharded=False)),
    ("hybrid", deploy("hybrid", 4, (13, 2, 17), 2, 4)),
]


@pytest.mark.parametrize(("name", "deployment"), FILES, ids=str)
def test_a_folder_of_files_is_the_same_bytes_too(
    name: str, deployment: Deployment, tmp_path: Path
) -> None:
    world = world_of(name, common_cut(name))
    trees = []
    for maker in ("client", "oracle"):
        store = open_store((tmp_path / maker).as_uri())
        if maker == "client":
            world.save(store, deployment)
        else:
            store.put([Item(key, [data]) for key, data in world.objects.items()])
        store.close()
        trees.append(tree(tmp_path / maker))
    assert len(trees[0]) >= len(world.objects)
    assert trees[0] == trees[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMALL)
def test_every_size_of_every_axis_stores_the_same_bytes_once(name: str) -> None:
    for deployment in every_deployment(name):
        check_writer(name, deployment, common_cut(name))

"""Pairs: what one deployment saved another loads, both real, on pools of several layouts."""

from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from tests.topology.fleets import World, contents
from tests.topology.models import INTERLEAVE, MODELS, every_deployment, own_cut, world_of
from tests.topology.oracle import Deployment
from tests.topology.pools import Layout
from unikv import open_store
from unikv.backends.memory import MemoryStore
from unikv.store import Store

PAIRS = 54
LAYOUTS: tuple[Layout, ...] = ("slots", "NHD", "HND")
BOUND = {61: 4, 30: 12}  # ranks of a deployment by layers of the model; others 24


def pairs() -> list[tuple[str, Deployment, Deployment, int]]:
    random = Random(3)  # a fixed choice
    found = []
    for number, name in zip(range(PAIRS), cycle(MODELS), strict=False):
        most = BOUND.get(MODELS[name].layers, 24)
        some = [d for d in every_deployment(name) if 1 < d.tp * d.cp * d.dcp <= most]
        writer, reader = random.choice(some), random.choice(some)
        if not MODELS[name].heads:  # latents may be dealt out over tensor ranks, or not at all
            writer = writer._replace(
                sharded=random.choice([None, False, writer.cp * writer.tp > 1])
            )
            reader = reader._replace(
                sharded=random.choice([None, False, reader.cp * reader.tp > 1])
            )
        found.append((name, writer, reader, number))
    return found


def world_for(name: str, writer: Deployment, reader: Deployment) -> World:
    """Return a world whose grid the writer owns in whole chunks and the reader can assemble."""
    phases = max(writer.dcp, reader.dcp)
    cut = own_cut(name, writer)
    return world_of(
        name, cut._replace(phases=phases, interleave=INTERLEAVE.get(name, 1) if phases > 1 else 1)
    )


def move(world: World, store: Store, writer: Deployment, reader: Deployment, number: int) -> None:
    saved = world.save(
        store, writer, layout=LAYOUTS[number % 3], rotation=number % 5, staging_bytes=1 << 20
    )
    assert sum(report.stored for report in saved) == len(world.objects) - 1  # the hint
    loaded = world.load(
        store,
        reader,
        layout=LAYOUTS[number // 3 % 3],
        rotation=number % 7,
        staging_bytes=1 << 20,
    )
    for member, report in loaded:
        world.check_cost(member, report)
        assert member.client.match(world.path).pages == world.pages


@pytest.mark.parametrize(("name", "writer", "reader", "number"), pairs(), ids=str)
def test_any_deployment_reads_what_any_other_wrote(
    name: str, writer: Deployment, reader: Deployment, number: int
) -> None:
    world, store = world_for(name, writer, reader), MemoryStore()
    move(world, store, writer, reader, number)
    assert contents(store) == world.objects


FILES = [pytest.param(*pair, marks=[pytest.mark.slow] if pair[3] % 7 else []) for pair in pairs()]


@pytest.mark.parametrize(("name", "writer", "reader", "number"), FILES, ids=str)
def test_any_deployment_reads_what_any_other_wrote_to_files(
    name: str, writer: Deployment, reader: Deployment, number: int, tmp_path: Path
) -> None:
    store = open_store(tmp_path.as_uri())
    move(world_for(name, writer, reader), store, writer, reader, number)
    store.close()

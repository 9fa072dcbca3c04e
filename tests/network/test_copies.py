"""Copies: objects that any tool moves from one store to another are the same pages there."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.client.world import World
from tests.network.lab import GRID, RANK, SPEC
from tests.network.place import Place
from tests.network.places import running_place
from unikv import Topology, open_store
from unikv.store import Item, Span, Store

ROUTES = [
    pytest.param(stops, marks=[getattr(pytest.mark, stop) for stop in stops], id=", ".join(stops))
    for stops in (["redis", "s3"], ["mooncake"])
]


def everything(store: Store) -> dict[str, bytes]:
    """Return all objects of a store, by key."""
    found = {entry.key: bytearray(entry.size) for entry in store.list()}
    spans = [Span(key, 0, len(data), [memoryview(data)]) for key, data in found.items()]
    assert store.get(spans).ok
    return {key: bytes(data) for key, data in found.items()}


@pytest.fixture
def stops(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Place]]:
    """Start the servers of a route."""
    with pytest.MonkeyPatch.context() as environment:
        places = [running_place(name, tmp_path / name, environment) for name in request.param]
        for name in request.param:
            (tmp_path / name).mkdir()
        yield [place.__enter__() for place in places]
        for place in reversed(places):
            place.__exit__(None, None, None)


@pytest.mark.parametrize("stops", ROUTES, indirect=True)
def test_objects_copied_from_store_to_store_are_the_same_pages(
    stops: list[Place], tmp_path: Path
) -> None:
    world = World(SPEC, 8, dict(GRID))
    urls = [f"file://{tmp_path}/kv", *(stop.url("copies") for stop in stops)]
    with closing(open_store(urls[0])) as first:
        assert all(report.ok for report in world.save(first, Topology(tp=2, pp=2)))
        right = everything(first)
    for source, target in pairwise(urls):
        with closing(open_store(source)) as one, closing(open_store(target)) as other:
            items = [Item(key, [data]) for key, data in everything(one).items()]
            assert other.put(items).ok
            assert everything(other) == right
    for url in urls:
        with closing(open_store(url)) as store:
            for topology in (Topology(), Topology(tp=4), Topology(pp=2)):
                for side, report in world.load(store, topology):
                    assert report.pages == 8
                    assert world.holds(side, 8)
                    side.client.close()
            again = world.side(store, RANK, filled=True)
            with again.client as client:
                report = client.save(world.pages, again.slots)
            assert (report.ok, report.stored) == (True, 0)  # all is there, under the same names

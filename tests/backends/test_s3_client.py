"""A client over S3: what one topology wrote another reads, and wrong bytes never reach a pool."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tests.backends.s3_open import open_s3  # noqa: E402 - torch comes first
from tests.client.world import World  # noqa: E402
from tests.io_path.lab import meter  # noqa: E402
from tests.servers.s3_hostile import Handler, Server, hostile, refusing  # noqa: E402
from unikv import KVSpec, Topology  # noqa: E402
from unikv.backends.s3 import S3Store  # noqa: E402

PAGES = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with hostile() as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "kv")
    yield store
    store.close()


@pytest.fixture
def world() -> World:
    """Give six layers in one chunk a page, so that two stages read ranges of one object."""
    spec = KVSpec.mha(layers=6, kv_heads=2, head_dim=4, dtype="int32", page_tokens=2)
    return World(spec, pages_count=PAGES, options={"layers_per_chunk": 6, "heads_per_chunk": 2})


def object_of(world: World, server: Server, page: int) -> str:
    [key] = [key for key in server.objects if world.pages[page] in key]
    return key


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


@pytest.mark.parametrize("tp", [1, 2])
def test_what_one_topology_wrote_another_reads(store: S3Store, world: World, tp: int) -> None:
    assert sum(report.stored for report in world.save(store, Topology())) == PAGES
    for side, report in world.load(store, Topology(tp=tp, pp=2)):
        assert report.stopped is None
        assert world.holds(side, PAGES)
    again = world.save(store, Topology())
    assert [report.existed for report in again] == [PAGES]


def test_B56_right_length_and_wrong_bytes_end_the_prefix(
    server: Server, store: S3Store, world: World
) -> None:
    """Of every answer about the third page one bit is wrong, whatever range is asked for."""
    world.save(store, Topology())
    third = object_of(world, server, 2)

    def flips(asked: Handler) -> None:
        data = server.objects[str(asked.key)]
        start, stop = asked.range(len(data))
        body = data[start:stop]
        if asked.key == third:
            body = flip(body, len(body) // 2)
        asked.partial(body, start, stop, len(data))

    server.faults["GET"] = flips
    for side, report in world.load(store, Topology(pp=2)):
        assert report.pages == 2
        assert world.holds(side, 2)
    server.faults.clear()
    for side, report in world.load(store, Topology(pp=2)):
        assert report.pages == PAGES
        assert world.holds(side, PAGES)


def test_B57_a_flipped_byte_harms_only_who_reads_it(
    server: Server, store: S3Store, world: World
) -> None:
    """The fifth layer of a page is damaged: the first stage, which reads the others, does not care.

    The next save of whoever met the damage replaces the object.
    """
    world.save(store, Topology())
    key = object_of(world, server, 1)
    values = world.kv[0][4, 2:4]  # K of layer 4 in page 1
    place = server.objects[key].index(values.contiguous().numpy().tobytes()[:16])
    server.objects[key] = flip(server.objects[key], place)
    (first, whole), (second, cut) = world.load(store, Topology(pp=2))
    assert whole.pages == PAGES
    assert world.holds(first, PAGES)
    assert cut.pages == 1
    assert world.holds(second, 1)


def test_B55_a_page_that_went_is_a_miss_and_written_anew(
    server: Server, store: S3Store, world: World
) -> None:
    world.save(store, Topology())
    del server.objects[object_of(world, server, 2)]
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 2
    assert world.holds(side, 2)
    [report] = world.save(store, Topology())
    assert (report.stored, report.existed) == (1, PAGES - 1)
    [(side, report)] = world.load(store, Topology())
    assert world.holds(side, PAGES)


@pytest.mark.parametrize("broken", ["secret", "bucket"])
def test_a_broken_store_is_not_an_empty_one(
    server: Server, store: S3Store, world: World, broken: str
) -> None:
    """With a wrong secret, or bucket, what the store is asked fails: nothing is a miss."""
    side = world.side(store, Topology().rank(), filled=True)
    assert side.client.match(world.pages).pages == 0
    assert meter(side, "unikv_io_orders_total", verb="stat", outcome="failed") == 0
    if broken == "secret":
        wrong = refusing(403, "SignatureDoesNotMatch")
        server.faults = dict.fromkeys(["GET", "HEAD", "PUT", "DELETE", "LIST"], wrong)
    else:
        server.address = server.address._replace(bucket="another")
        store._bucket._seen = False  # as a store that was just opened
    match = side.client.match(world.pages)
    assert (match.pages, match.exact) == (0, False)
    assert meter(side, "unikv_io_orders_total", verb="stat", outcome="failed") == 1
    saved = side.client.save(world.pages, side.slots)
    assert (saved.stored, len(saved.failed)) == (0, PAGES)
    side.client.close()

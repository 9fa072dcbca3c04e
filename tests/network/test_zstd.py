"""Codec zstd on real servers: two rounds a read, whatever the store, and siblings of codec none."""

from contextlib import closing

import pytest

from tests.client.world import World
from tests.network.lab import GRID, RANK, SPEC, Lab
from unikv import Topology, open_store

CODED = World(SPEC, 8, {**GRID, "codec": "zstd"})
PLAIN = World(SPEC, 8, dict(GRID))


@pytest.mark.parametrize(
    ("io", "writer", "readers"),
    [
        ("threads", Topology(tp=2, pp=2), [Topology(), Topology(tp=4), Topology(pp=2)]),
        ("process", Topology(tp=2), [Topology(pp=2)]),  # each rank starts a process
    ],
    ids=["threads", "process"],
)
def test_what_is_stored_compressed_is_read_by_every_deployment(
    lab: Lab, io: str, writer: Topology, readers: list[Topology]
) -> None:
    with closing(open_store(lab.place.url(f"{lab.prefix}-{io}"))) as store:
        reports = CODED.save(store, writer, io=io)
        assert all(report.ok for report in reports)
        whole = SPEC.layers * SPEC.kv_heads * SPEC.head_dim * 2 * 4 * SPEC.page_tokens * 8
        assert sum(report.bytes_written for report in reports) < whole
        for topology in readers:
            for side, report in CODED.load(store, topology, io=io):
                assert (report.pages, report.stopped) == (8, None)
                assert CODED.holds(side, 8)
                side.client.close()


def test_a_reader_without_the_codec_reads_them_and_streams_them_too(lab: Lab) -> None:
    with closing(open_store(lab.place.url(f"{lab.prefix}-siblings"))) as store:
        assert all(report.ok for report in CODED.save(store, RANK.topology))
        for world in (PLAIN, CODED):
            side = world.side(store, RANK)
            ticket = side.client.load_async(world.pages, side.slots, stream=True)
            assert ticket.result(20).pages == 8
            assert world.holds(side, 8)
            side.client.close()


def test_what_is_gone_of_them_is_a_miss_and_is_stored_again(lab: Lab) -> None:
    with closing(open_store(lab.place.url(f"{lab.prefix}-hole"))) as store:
        side = CODED.side(store, RANK, filled=True)
        assert side.client.save(CODED.pages, side.slots).ok
        form = side.client._lanes[0].format
        store.delete([form.key(CODED.pages[3], form.grid.chunks[1])])
        [(hurt, report)] = CODED.load(store, RANK.topology)
        assert report.pages == 3
        assert CODED.holds(hurt, 3)
        again = side.client.save(CODED.pages, side.slots)
        assert (again.stored, again.ok) == (1, True)
        [(healed, report)] = CODED.load(store, RANK.topology)
        assert report.pages == 8
        assert CODED.holds(healed, 8)
        for one in (side, hurt, healed):
            one.client.close()

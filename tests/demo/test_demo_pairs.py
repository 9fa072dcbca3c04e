"""Demo pairs: KV written by one topology is read by another, bit for bit, on a real model."""

from itertools import pairwise
from pathlib import Path

import pytest
from blake3 import blake3

from tests.demo.lab import Lab
from unikv.topology import Topology

pytestmark = pytest.mark.demo

SAME_TREES = ("tp1,pp1", "tp3,pp1", "tp1,pp2", "tp3,pp2")


@pytest.mark.parametrize(
    ("write", "read", "cuts"),
    [
        ("tp3,pp2", "tp1,pp1", (0, 15, 30)),
        ("tp1,pp1", "tp3,pp2", (0, 15, 30)),
        ("tp3,pp1", "tp3,pp3:11-10-9", (0, 11, 21, 30)),
    ],
    ids=["tp3-pp2-to-tp1", "tp1-to-tp3-pp2", "tp3-to-tp3-pp3-uneven"],
)
def test_what_one_topology_wrote_another_reads_and_goes_on_with_the_same_tokens(
    lab: Lab, folder: Path, write: str, read: str, cuts: tuple[int, ...]
) -> None:
    report = lab.run(write, read, folder.as_uri(), tokens=64)
    assert report.grid.layer_cuts == cuts
    assert report.grid.heads_per_chunk == 1
    assert report.checks == {
        "kv_bitwise_equal": True,
        "tokens_equal": True,
        "other_slots_untouched": True,
        "exact_bytes_read": True,
    }
    assert report.exit_status == 0
    assert len(report.written) == len(Topology.parse(write).ranks())
    assert len(report.generated.loaded) == 64
    pages, page_bytes = report.prompt.pages, report.prompt.page_bytes
    assert pages * report.prompt.page_tokens >= 4096
    # Each rank read its share of the payload, and all shares together are the cache once.
    assert all(done.payload == done.share for done in report.loaded)
    assert sum(done.payload for done in report.loaded) == pages * page_bytes
    assert sum(done.answer.stored for done in report.written) == report.stored.objects
    assert sum(done.answer.bytes_written for done in report.written) == report.stored.bytes


def test_stores_written_by_any_topology_are_the_same_trees_byte_for_byte(
    lab: Lab, folder: Path
) -> None:
    namespace, _ = lab.choose("tp3,pp2", "tp3,pp2")
    trees = []
    for topology in SAME_TREES:
        root = folder / topology
        root.mkdir()
        lab.write(namespace, topology, root.as_uri())
        files = sorted(path for path in root.rglob("*") if path.is_file())
        trees.append(
            {str(path.relative_to(root)): blake3(path.read_bytes()).digest() for path in files}
        )
    objects = len(lab.sample.pages) * 6
    assert len(trees[0]) == objects + 1  # and the record by which the namespace is found
    assert all(one == other for one, other in pairwise(trees))


def test_a_second_deployment_finds_everything_stored_and_writes_nothing(
    lab: Lab, folder: Path
) -> None:
    namespace, _ = lab.choose("tp3,pp2", "tp1,pp1")
    first = lab.write(namespace, "tp3,pp2", folder.as_uri())
    second = lab.write(namespace, "tp1,pp1", folder.as_uri())
    assert second[0].answer.stored == second[0].answer.bytes_written == 0
    assert second[0].answer.existed == sum(done.answer.stored for done in first)


def test_replicas_of_a_head_share_the_writing_and_each_reads_its_own_box(
    lab: Lab, folder: Path
) -> None:
    report = lab.run("tp6,pp1", "tp3,pp1", folder.as_uri(), tokens=1)
    assert report.ok
    stored = [done.answer.stored for done in report.written]
    assert sum(stored) == report.stored.objects  # none of them twice
    assert all(count > 0 for count in stored)

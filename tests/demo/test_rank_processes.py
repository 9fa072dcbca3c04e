"""Rank processes: each with its own pool, each ended with its parent, each named when it fails."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unikv import KVSpec, Namespace, Topology, page_hashes
from unikv.errors import UnikvError
from unikv.geometry import Box, Interval
from unikv.tools import demo_deployment
from unikv.tools.demo_deployment import run_ranks
from unikv.tools.demo_job import Answer, Done, Job
from unikv.tools.demo_kv import Shape, cut_box, first_difference, map_kv, write_kv
from unikv.tools.demo_rank import RankPool

SPEC = KVSpec.mha(layers=4, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=4)
PAGES = tuple(page_hashes(range(12), 4))
NAMESPACE = Namespace(
    spec=SPEC,
    weights="unversioned",
    model="small",
    rope="none",
    layers_per_chunk=2,
    heads_per_chunk=1,
)


def make_kv(tmp_path: Path) -> torch.Tensor:
    """Lay down a cache whose values say where they belong: int16 of 0, 1, 2..."""
    kv = torch.arange(4 * 2 * 2 * 12 * 8, dtype=torch.int16).view(4, 2, 2, 12, 8)
    write_kv(tmp_path / "memory.kv", kv)
    return kv


def jobs_of(tmp_path: Path, topology: str, role: str) -> list[Job]:
    return [
        Job(
            role="write" if role == "write" else "read",
            text=NAMESPACE.canonical.decode(),
            topology=topology,
            tp=rank.tp,
            pp=rank.pp,
            url=(tmp_path / "store").as_uri(),
            pages=PAGES,
            kv=str(tmp_path / ("memory.kv" if role == "write" else f"box-{rank.tp}-{rank.pp}.kv")),
            seed=rank.tp * 10 + rank.pp,
        )
        for rank in Topology.parse(topology).ranks()
    ]


def ignore() -> None:
    """Advance nothing."""


def test_jobs_and_answers_come_back_from_their_text() -> None:
    job = Job("write", NAMESPACE.canonical.decode(), "tp2,pp2", 1, 0, "file:///x", PAGES, "kv", 3)
    assert Job.parse(str(job)) == job
    assert job.namespace == NAMESPACE
    assert job.box == Box(Interval(0, 2), Interval(1, 2))
    assert Done(job, Answer()).share == 3 * 2 * 1 * (4 * 16 * 2)
    answer = Answer(pages=3, seconds=0.5, stopped="page 3: \u00e9", untouched=False)
    assert Answer.parse(str(answer)) == answer


def test_a_pool_puts_back_what_it_was_given_and_guards_the_rest(tmp_path: Path) -> None:
    kv = make_kv(tmp_path)
    box = Box(Interval(1, 3), Interval(1, 2))
    mine = cut_box(map_kv(tmp_path / "memory.kv", Shape(4, 2, 2, 12, 16)), box)
    pool = RankPool(SPEC, box, len(PAGES), seed=5)
    assert pool.untouched(0)
    pool.fill(mine)
    assert torch.equal(pool.take(3), mine)
    assert torch.equal(pool.take(3).view(torch.int16), kv[1:3, :, 1:2])
    assert pool.untouched(3)
    assert not pool.untouched(2)  # the third page is there, and nobody said so
    assert len(set(pool.slots.flatten().tolist())) == 12
    assert pool.slots.flatten().tolist() != sorted(pool.slots.flatten().tolist())


def test_a_difference_is_told_by_page_layer_and_head() -> None:
    one = torch.zeros(2, 2, 1, 12, 16, dtype=torch.uint8)
    other = one.clone()
    box = Box(Interval(1, 3), Interval(1, 2))
    assert first_difference(one, other, box, 4) is None
    other[0, 0, 0, 11, 15] = 1
    other[1, 1, 0, 6, 3] = 1
    assert first_difference(one, other, box, 4) == "page 1, token 2, layer 2, V head 1"


def test_ranks_of_one_topology_write_what_those_of_another_read(tmp_path: Path) -> None:
    kv = make_kv(tmp_path).view(torch.uint8)
    steps: list[None] = []
    written = run_ranks(jobs_of(tmp_path, "tp2,pp2", "write"), tmp_path, lambda: steps.append(None))
    assert [done.answer.stored for done in written] == [3] * 4
    read = run_ranks(jobs_of(tmp_path, "tp1,pp2:1-3", "read"), tmp_path, lambda: steps.append(None))
    assert len(steps) == 6
    for done in read:
        assert done.answer.pages == 3
        assert done.payload == done.answer.bytes_needed == done.share
        assert done.answer.untouched
        loaded = map_kv(Path(done.job.kv), Shape.of(SPEC, done.job.box, 12))
        assert torch.equal(loaded, cut_box(kv, done.job.box))


def test_a_rank_that_fails_is_named_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kv(tmp_path)
    started: list[subprocess.Popen[bytes]] = []
    start = demo_deployment._start

    def watch(job: Job, path: Path) -> subprocess.Popen[bytes]:
        started.append(start(job, path))
        return started[-1]

    monkeypatch.setattr(demo_deployment, "_start", watch)
    jobs = jobs_of(tmp_path, "tp2,pp2", "write")
    coarse = Namespace(spec=SPEC, weights="unversioned", model="small", rope="none")
    jobs[2] = replace(jobs[2], text=coarse.canonical.decode())
    with pytest.raises(UnikvError) as failed:
        run_ranks(jobs, tmp_path, ignore)
    said = str(failed.value)
    assert said.startswith("rank tp0 pp1 of tp2,pp2, writing: ")
    assert "layers_per_chunk=2" in said
    assert "\n" not in said
    assert all(process.returncode is not None for process in started)


def test_a_rank_that_crashes_is_named_with_its_last_words(tmp_path: Path) -> None:
    (job,) = jobs_of(tmp_path, "tp1", "write")  # there is no KV file
    with pytest.raises(UnikvError) as failed:
        run_ranks([job], tmp_path, ignore)
    said = str(failed.value)
    assert said.startswith("rank tp0 pp0 of tp1, writing: its process ended with status 1: ")
    assert "memory.kv" in said


def test_a_rank_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    # The rank blocks on opening its job, a pipe that nobody writes to.
    os.mkfifo(tmp_path / "job")
    code = (
        "import subprocess, sys, time\n"
        "rank = [sys.executable, '-m', 'unikv.tools.demo_rank', sys.argv[1]]\n"
        "child = subprocess.Popen(rank, stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "job")], stdout=subprocess.PIPE
    )
    assert parent.stdout
    with parent.stdout, parent:
        rank = int(parent.stdout.readline())
        watch = os.pidfd_open(rank)
        parent.send_signal(signal.SIGKILL)

    ended, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    assert ended, "the rank has outlived its parent"

"""Rank process: one rank of the demo with its own pool. It knows its own box and no other rank.

Run as ``python -m unikv.tools.demo_rank JOB``, where JOB is a file with a `Job`. The answer goes to
a file beside it. The process ends as soon as its standard input does, so it outlives no parent.
"""

import os
import sys
from pathlib import Path
from threading import Thread
from time import perf_counter

import torch
from torch import Tensor

from unikv.client import Client
from unikv.errors import UnikvError
from unikv.geometry import Box
from unikv.paged import PagedCache
from unikv.registry import open_store
from unikv.spec import KVSpec
from unikv.tools.demo_job import Answer, Job, answer_path
from unikv.tools.demo_kv import Shape, cut_box, map_kv

POISON = 0xFF
"""Fills every byte of a pool: as bfloat16 a NaN, which nothing computed from it could hide."""


class RankPool:
    """A rank's pool of slots: its layers and heads alone, poisoned, with guard slots between pages.

    The tokens of the pages lie at shuffled slots. Slots that belong to no page are guards.
    """

    def __init__(self, spec: KVSpec, box: Box, pages: int, seed: int) -> None:
        tokens = pages * spec.page_tokens
        total = tokens + tokens // 8 + spec.page_tokens
        dtype: torch.dtype = getattr(torch, spec.dtype)
        shape = (box.layers.size, 2, total, box.heads.size, spec.head_dim)
        kv = torch.empty(shape, dtype=dtype)
        self._bytes = kv.view(torch.uint8)  # (layers, 2, slots, heads, width)
        self._bytes.fill_(POISON)
        order = torch.Generator().manual_seed(seed)
        self.slots = torch.randperm(total, generator=order)[:tokens].view(pages, spec.page_tokens)
        self.cache = PagedCache.slots(list(kv[:, 0]), list(kv[:, 1]))

    def fill(self, kv: Tensor) -> None:
        """Put bytes ``[layers, 2, heads, tokens, width]`` at the pages' slots."""
        self._bytes[:, :, self.slots.flatten()] = kv.transpose(2, 3)

    def take(self, pages: int) -> Tensor:
        """Return the bytes of the leading pages, ``[layers, 2, heads, tokens, width]``."""
        return self._bytes[:, :, self.slots[:pages].flatten()].transpose(2, 3).contiguous()

    def untouched(self, pages: int) -> bool:
        """Return whether all but the slots of the leading pages still hold poison."""
        others = torch.ones(self._bytes.shape[2], dtype=torch.bool)
        others[self.slots[:pages].flatten()] = False
        return bool((self._bytes[:, :, others] == POISON).all())


def work(job: Job) -> Answer:
    """Do one rank's save or load."""
    spec, box = job.namespace.spec, job.box
    pool = RankPool(spec, box, len(job.pages), job.seed)
    tokens = pool.slots.numel()
    if job.role == "write":
        whole = Shape(spec.layers, 2, spec.kv_heads, tokens, Shape.of(spec, box, tokens).width)
        pool.fill(cut_box(map_kv(Path(job.kv), whole), box))
    store = open_store(job.url)
    try:
        client = Client(store, job.namespace, job.rank, pool.cache)
        return _save(job, client, pool) if job.role == "write" else _load(job, client, pool)
    finally:
        store.close()


def _save(job: Job, client: Client, pool: RankPool) -> Answer:
    begun = perf_counter()
    report = client.save(job.pages, pool.slots)
    seconds = perf_counter() - begun
    error = None
    if report.failed:
        failure = report.failed[0]
        error = f"{len(report.failed)} objects not stored; {failure.key}: {failure.reason}"
    return Answer(
        pages=report.pages,
        seconds=seconds,
        stored=report.stored,
        existed=report.existed,
        bytes_written=report.bytes_written,
        error=error,
    )


def _load(job: Job, client: Client, pool: RankPool) -> Answer:
    begun = perf_counter()
    report = client.load(job.pages, pool.slots)
    seconds = perf_counter() - begun
    pool.take(report.pages).numpy().tofile(job.kv)
    return Answer(
        pages=report.pages,
        seconds=seconds,
        bytes_read=report.bytes_read,
        bytes_headers=report.bytes_headers,
        bytes_needed=report.bytes_needed,
        requests=report.requests,
        stopped=report.stopped,
        untouched=pool.untouched(report.pages),
    )


def end_with_parent() -> None:
    """Leave at once when the parent has gone: its end of our standard input closes with it."""
    os.read(0, 1)
    os._exit(1)


def main(path: Path) -> int:
    """Work off one job file."""
    Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # the ranks of a host share its cores
    try:
        answer = work(Job.parse(path.read_text()))
    except UnikvError as error:
        answer = Answer(error=str(error))
    answer_path(path).write_text(str(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

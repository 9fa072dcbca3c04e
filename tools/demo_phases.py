"""Phases: prefill, write as one topology, read as another, compare. It knows no option and no page.

Each phase is a function, so that tests can tamper with the store between two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unikv.backends.url import mask
from unikv.grid import Grid
from unikv.hints import announce
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.pages import page_hashes
from unikv.registry import open_store
from unikv.tools.demo_deployment import Advance, run_ranks
from unikv.tools.demo_grid import GridChoice, fill_cells, is_aligned
from unikv.tools.demo_job import Done, Job
from unikv.tools.demo_kv import Shape, cut_box, first_difference, map_kv, write_kv
from unikv.tools.demo_model import NAME, Continuation, Model, Prefill
from unikv.tools.demo_report import DemoReport, Generated, Prompt, Stored, Times
from unikv.topology import Topology


@dataclass(frozen=True, eq=False)
class Sample:
    """A prompt with its cache in memory and its whole pages in a KV file."""

    model: Model
    tokens: Sequence[int]
    prefill: Prefill
    pages: tuple[str, ...]
    page_tokens: int
    scratch: Path  # holds the KV file, jobs and answers
    _known: dict[tuple[int, int], Continuation] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Model, tokens: Sequence[int], prefill: Prefill, page_tokens: int, scratch: Path
    ) -> "Sample":
        """Hash the prompt's pages and lay their KV down where ranks can map it."""
        pages = tuple(page_hashes(tokens, page_tokens))
        sample = cls(model, tokens, prefill, pages, page_tokens, scratch)
        write_kv(sample.kv_path, prefill.kv[..., : sample.paged_tokens, :])
        return sample

    @property
    def paged_tokens(self) -> int:
        """Tokens in whole pages."""
        return len(self.pages) * self.page_tokens

    @property
    def kv_path(self) -> Path:
        """The KV file of the whole pages."""
        return self.scratch / "memory.kv"

    def usable(self, pages: int) -> int:
        """Return how many tokens ``pages`` cached pages save: the prompt's last is computed."""
        return min(pages * self.page_tokens, len(self.tokens) - 1)

    def continuation(self, cached: int, count: int, advance: Advance) -> Continuation:
        """Return what the cache in memory, cut to ``cached`` tokens, continues to."""
        key = (cached, count)
        if key not in self._known:
            kv = self.prefill.kv[..., :cached, :]
            self._known[key] = self.model.generate(kv, self.tokens, count, advance)
        return self._known[key]


class Loaded(NamedTuple):
    """What the readers' boxes make together."""

    ranks: tuple[Done, ...]
    kv: Tensor  # the model's dtype [layers, 2, heads, tokens of the pages that all have, dim]
    differences: tuple[str, ...]


def write_phase(
    sample: Sample, namespace: Namespace, topology: Topology, url: str, advance: Advance
) -> tuple[Done, ...]:
    """Save the sample's pages as the ranks of a topology, a process each."""
    store = open_store(url)
    try:
        # Here, not in a rank: the model's label is in no canonical text, and ranks get only that.
        announce(store, namespace)
    finally:
        store.close()
    jobs = [
        Job(
            role="write",
            text=namespace.canonical.decode(),
            topology=str(topology),
            tp=rank.tp,
            pp=rank.pp,
            url=url,
            pages=sample.pages,
            kv=str(sample.kv_path),
            seed=index,
        )
        for index, rank in enumerate(topology.ranks())
    ]
    return tuple(run_ranks(jobs, sample.scratch, advance))


def read_phase(
    sample: Sample, namespace: Namespace, topology: Topology, url: str, advance: Advance
) -> Loaded:
    """Load the sample's pages as the ranks of a topology, a process each, and join their boxes."""
    jobs = [
        Job(
            role="read",
            text=namespace.canonical.decode(),
            topology=str(topology),
            tp=rank.tp,
            pp=rank.pp,
            url=url,
            pages=sample.pages,
            kv=str(sample.scratch / f"box-{rank.tp}-{rank.pp}.kv"),
            seed=1_000_000 + index,  # other slots than any writer's
        )
        for index, rank in enumerate(topology.ranks())
    ]
    ranks = tuple(run_ranks(jobs, sample.scratch, advance))
    return _join(sample, namespace, ranks)


def _join(sample: Sample, namespace: Namespace, ranks: tuple[Done, ...]) -> Loaded:
    spec, memory = namespace.spec, sample.prefill.kv
    tokens = min(done.answer.pages for done in ranks) * spec.page_tokens
    whole = torch.zeros_like(memory[..., :tokens, :].contiguous())
    differences = []
    for done in ranks:
        box, held = done.job.box, done.answer.pages * spec.page_tokens
        loaded = map_kv(Path(done.job.kv), Shape.of(spec, box, held))
        mine = cut_box(memory, box)[..., :held, :].contiguous().view(torch.uint8)
        difference = first_difference(loaded, mine, box, spec.page_tokens)
        if difference:
            differences.append(f"rank {done.job.name}: {difference}")
        cut_box(whole.view(torch.uint8), box)[:] = loaded[..., :tokens, :]
    return Loaded(ranks, whole, tuple(differences))


def compare_phase(
    sample: Sample,
    namespace: Namespace,
    grid: GridChoice,
    *,
    written: tuple[Done, ...],
    loaded: Loaded,
    count: int,
    url: str,
    kept: bool,
    advance: Advance,
) -> DemoReport:
    """Generate behind the loaded cache and behind the one in memory, and report everything."""
    cached = sample.usable(loaded.kv.shape[3] // sample.page_tokens)
    memory = sample.continuation(cached, count, advance)
    ours = sample.model.generate(loaded.kv[..., :cached, :], sample.tokens, count, advance)
    spec = namespace.spec
    cut = Grid.of(namespace)
    return DemoReport(
        model=NAME,
        namespace=namespace,
        grid=grid,
        prompt=Prompt(
            tokens=len(sample.tokens),
            pages=len(sample.pages),
            page_tokens=sample.page_tokens,
            page_bytes=spec.layers
            * spec.kv_heads
            * sum(part.rows * part.width for part in spec.parts),
        ),
        write=written[0].job.topology,
        read=loaded.ranks[0].job.topology,
        written=written,
        loaded=loaded.ranks,
        stored=_measure(sample, namespace, url, kept=kept),
        cells=tuple(fill_cells(cut, written, loaded.ranks)),
        differences=loaded.differences,
        exact=all(_is_exact(done) for done in loaded.ranks if is_aligned(cut, done.job.box)),
        generated=Generated(ours.ids, memory.ids, sample.model.decode(ours.ids)),
        times=Times(
            cold=sample.prefill.seconds,
            load=max(done.answer.seconds for done in loaded.ranks),
            tail=ours.first_s,
        ),
    )


def _is_exact(done: Done) -> bool:
    """Return whether a rank read its share of the payload; of fewer pages where it stopped."""
    needed = done.answer.bytes_needed
    return done.payload == needed and (done.answer.stopped is not None or needed == done.share)


def _measure(sample: Sample, namespace: Namespace, url: str, *, kept: bool) -> Stored:
    """Ask the store itself what it holds of the prompt."""
    form = ObjectFormat.of(namespace)
    keys = [form.key(page, chunk) for page in sample.pages for chunk in form.grid.chunks]
    store = open_store(url)
    try:
        sizes = [size for size in store.stat(keys) if size is not None]
    finally:
        store.close()
    return Stored(mask(url), len(sizes), sum(sizes), kept)

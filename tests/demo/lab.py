"""Lab: a model with one prefilled prompt, and the demo's phases on it. It judges nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unikv.geometry import Interval
from unikv.namespace import Namespace, weights_from_files
from unikv.objects import ObjectFormat
from unikv.registry import open_store
from unikv.store import Item, Span
from unikv.tools.demo import PROMPT, QUESTION
from unikv.tools.demo_grid import GridChoice, choose_grid
from unikv.tools.demo_job import Done
from unikv.tools.demo_model import DTYPE, NAME, Model, find_model, read_config
from unikv.tools.demo_phases import Sample, compare_phase, read_phase, write_phase
from unikv.tools.demo_report import DemoReport
from unikv.topology import Topology

PAGE_TOKENS = 64


def ignore() -> None:
    """Advance nothing."""


@dataclass
class Lab:
    """The model, the prompt with its KV in memory, and the facts of its identity."""

    config: Mapping[str, Any]
    weights: str
    sample: Sample

    @classmethod
    def build(cls, scratch: Path) -> "Lab":
        path = find_model()
        model = Model.load(path)
        tokens = model.ask(PROMPT.read_text().rstrip(), QUESTION)
        sample = Sample.of(model, tokens, model.prefill(tokens), PAGE_TOKENS, scratch)
        return cls(read_config(path), weights_from_files([path]), sample)

    def namespace(self, grid: GridChoice | None = None) -> Namespace:
        """Return the namespace cut as ``grid`` says, or not at all."""
        return Namespace.from_hf_config(
            self.config,
            weights=self.weights,
            page_tokens=PAGE_TOKENS,
            dtype=DTYPE,
            model=NAME,
            layer_cuts=grid.layer_cuts if grid else None,
            heads_per_chunk=grid.heads_per_chunk if grid else None,
        )

    def choose(self, write: str, read: str) -> tuple[Namespace, GridChoice]:
        """Return the grid that suits two topologies, and the namespace with it."""
        sides = Topology.parse(write), Topology.parse(read)
        grid = choose_grid(self.namespace().spec, *sides)
        return self.namespace(grid), grid

    def write(self, namespace: Namespace, topology: str, url: str) -> tuple[Done, ...]:
        return write_phase(self.sample, namespace, Topology.parse(topology), url, ignore)

    def read(
        self,
        namespace: Namespace,
        grid: GridChoice,
        topology: str,
        url: str,
        *,
        written: tuple[Done, ...],
        tokens: int,
    ) -> DemoReport:
        loaded = read_phase(self.sample, namespace, Topology.parse(topology), url, ignore)
        return compare_phase(
            self.sample,
            namespace,
            grid,
            written=written,
            loaded=loaded,
            count=tokens,
            url=url,
            kept=True,
            advance=ignore,
        )

    def run(self, write: str, read: str, url: str, *, tokens: int) -> DemoReport:
        """Write as one topology and read as another."""
        namespace, grid = self.choose(write, read)
        written = self.write(namespace, write, url)
        return self.read(namespace, grid, read, url, written=written, tokens=tokens)


def rotate_heads(
    namespace: Namespace, pages: tuple[str, ...], at: int, url: str, *, forge: bool
) -> list[str]:
    """Give each head group of a page's first layers the payload of the next one.

    With ``forge`` the tags are made anew to fit; without, headers stay as they were.

    Returns:
        The keys of the objects that were tampered with.
    """
    form = ObjectFormat.of(namespace)
    layers = Interval(namespace.layer_cuts[0], namespace.layer_cuts[1])
    chunks = [chunk for chunk in form.grid.chunks if chunk.layers == layers]
    assert len(chunks) > 1
    keys = [form.key(pages[at], chunk) for chunk in chunks]
    store = open_store(url)
    whole = [bytearray(form.object_bytes(chunk)) for chunk in chunks]
    spans = [
        Span(key, 0, len(data), (memoryview(data),)) for key, data in zip(keys, whole, strict=True)
    ]
    assert store.get(spans).ok
    begin = form.header_bytes
    items = []
    for i, (key, chunk) in enumerate(zip(keys, chunks, strict=True)):
        end = begin + chunk.payload_bytes
        header, description = bytes(whole[i][:begin]), bytes(whole[i][end:])
        payload = bytes(whole[(i + 1) % len(whole)][begin:end])
        if forge:
            header, description = form.encode(
                pages[at], chunk, payload, parent=pages[at - 1] if at else None, page_index=at
            )
        items.append(Item(key, (header, payload, description)))
    assert store.put(items, replace=True).ok
    store.close()
    return keys

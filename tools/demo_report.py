"""Report: what the demo found, as data. It knows how nothing was done and prints nothing."""

from dataclasses import dataclass
from typing import TypeAlias

from unikv.namespace import Namespace
from unikv.tools.demo_grid import Cell, GridChoice
from unikv.tools.demo_job import Done

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class Prompt:
    """Sizes of the prompt in tokens, and its whole pages."""

    tokens: int
    pages: int
    page_tokens: int
    page_bytes: int  # payload of one page, all layers and heads

    @property
    def tail(self) -> int:
        """Tokens behind the last whole page: never stored, always computed."""
        return self.tokens - self.pages * self.page_tokens


@dataclass(frozen=True)
class Stored:
    """What the store holds of the prompt."""

    url: str
    objects: int
    bytes: int
    kept: bool


@dataclass(frozen=True)
class Times:
    """Seconds until the first token, each part by its name."""

    cold: float  # prefill of the whole prompt
    load: float  # the slowest rank's `Client.load`
    tail: float  # computing the tokens that the loaded pages do not cover

    @property
    def warm(self) -> float:
        """Load and tail together; starting processes is in neither."""
        return self.load + self.tail


@dataclass(frozen=True)
class Generated:
    """Greedy continuations: behind the loaded cache and behind the one in memory."""

    loaded: tuple[int, ...]
    memory: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class DemoReport:
    """One run of the demo."""

    model: str
    namespace: Namespace
    grid: GridChoice
    prompt: Prompt
    write: str  # topology
    read: str
    written: tuple[Done, ...]
    loaded: tuple[Done, ...]
    stored: Stored
    cells: tuple[Cell, ...]
    differences: tuple[str, ...]  # one for each reader whose box is not the one in memory
    exact: bool  # readers that can, read their share of the payload and nothing else
    generated: Generated
    times: Times

    @property
    def stops(self) -> tuple[str, ...]:
        """Why ranks loaded less than all pages: the object and, if it is damaged, the slab."""
        return tuple(
            f"rank {done.job.name}: {done.answer.stopped}"
            for done in self.loaded
            if done.answer.stopped
        )

    @property
    def checks(self) -> dict[str, bool]:
        """What must hold."""
        whole = all(done.answer.pages == self.prompt.pages for done in self.loaded)
        return {
            "kv_bitwise_equal": whole and not self.differences,
            "tokens_equal": self.generated.loaded == self.generated.memory,
            "other_slots_untouched": all(done.answer.untouched for done in self.loaded),
            "exact_bytes_read": self.exact,
        }

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(self.checks.values())

    @property
    def exit_status(self) -> int:
        """0 when all checks hold, else 1."""
        return 0 if self.ok else 1

    @property
    def inspect(self) -> str:
        """The command that shows what was stored."""
        return f"unikv inspect '{self.stored.url}'"

    def to_json(self) -> dict[str, Json]:
        """Return all of it as JSON values; sizes in bytes, times in seconds."""
        spec, prompt = self.namespace.spec, self.prompt
        return {
            "ok": self.ok,
            "checks": dict(self.checks),
            "stopped": list(self.stops),
            "differences": list(self.differences),
            "model": {
                "name": self.model,
                "weights": self.namespace.weights,
                "layers": spec.layers,
                "kv_heads": spec.kv_heads,
                "head_dim": spec.head_dim,
                "dtype": spec.dtype,
                "token_bytes": prompt.page_bytes // prompt.page_tokens,
            },
            "prompt": {
                "tokens": prompt.tokens,
                "pages": prompt.pages,
                "page_tokens": prompt.page_tokens,
                "page_bytes": prompt.page_bytes,
                "tail_tokens": prompt.tail,
            },
            "namespace": {
                "digest": self.namespace.digest,
                "family": self.namespace.family,
                "layer_cuts": list(self.namespace.layer_cuts),
                "heads_per_chunk": self.namespace.heads_per_chunk,
                "grid_reason": self.grid.reason,
            },
            "write": {"topology": self.write, "ranks": [_written(done) for done in self.written]},
            "read": {
                "topology": self.read,
                "ranks": [_loaded(done) for done in self.loaded],
                **_read_sizes(self.loaded),
            },
            "store": {
                "url": self.stored.url,
                "objects": self.stored.objects,
                "bytes": self.stored.bytes,
                "kept": self.stored.kept,
                "inspect": self.inspect,
            },
            "generated": {
                "text": self.generated.text,
                "loaded_ids": list(self.generated.loaded),
                "memory_ids": list(self.generated.memory),
            },
            "first_token_seconds": {
                "cold": self.times.cold,
                "warm": self.times.warm,
                "warm_load": self.times.load,
                "warm_tail": self.times.tail,
            },
            "grid": [_cell(cell) for cell in self.cells],
        }


def read_over_needed(ranks: tuple[Done, ...]) -> float:
    """Return payload bytes read for each payload byte needed, over all ranks."""
    needed = sum(done.answer.bytes_needed for done in ranks)
    return sum(done.payload for done in ranks) / needed if needed else 1.0


def _read_sizes(ranks: tuple[Done, ...]) -> dict[str, Json]:
    return {
        "requests": sum(done.answer.requests for done in ranks),
        "payload_bytes": sum(done.payload for done in ranks),
        "needed_bytes": sum(done.answer.bytes_needed for done in ranks),
        "header_bytes": sum(done.answer.bytes_headers for done in ranks),
        "read_over_needed": read_over_needed(ranks),
    }


def _rank(done: Done) -> dict[str, Json]:
    job, box = done.job, done.job.box
    return {
        "rank": {"tp": job.tp, "pp": job.pp},
        "layers": [box.layers.start, box.layers.stop],
        "heads": [box.heads.start, box.heads.stop],
        "pages": done.answer.pages,
        "seconds": done.answer.seconds,
    }


def _written(done: Done) -> dict[str, Json]:
    return {
        **_rank(done),
        "stored": done.answer.stored,
        "existed": done.answer.existed,
        "bytes_written": done.answer.bytes_written,
    }


def _loaded(done: Done) -> dict[str, Json]:
    return {
        **_rank(done),
        "stopped": done.answer.stopped,
        "untouched": done.answer.untouched,
        "share_bytes": done.share,
        **_read_sizes((done,)),
    }


def _cell(cell: Cell) -> dict[str, Json]:
    return {
        "chunk": cell.chunk,
        "layers": list(cell.layers),
        "heads": list(cell.heads),
        "wrote": list(cell.wrote),
        "read": list(cell.read),
    }

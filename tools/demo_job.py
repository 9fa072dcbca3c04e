"""Job: what a rank process is told and what it answers, as JSON. It knows no torch, no process."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from unikv.geometry import Box
from unikv.namespace import Namespace
from unikv.topology import Rank, Topology


@dataclass(frozen=True)
class Job:
    """One rank's work: save the pages of a KV file, or load pages and leave its box in a file."""

    role: Literal["write", "read"]
    text: str  # canonical text of the namespace
    topology: str
    tp: int
    pp: int
    url: str
    pages: tuple[str, ...]  # page hashes in sequence order
    kv: str  # path of the KV file to save from, or to leave the loaded box in
    seed: int  # of the slots: every rank keeps its pages elsewhere

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the job that `text`, from `str`, spells."""
        fields = json.loads(text)
        return cls(**{**fields, "pages": tuple(fields["pages"])})

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @cached_property
    def namespace(self) -> Namespace:
        """The namespace, from its text."""
        return Namespace.parse(self.text.encode())

    @cached_property
    def rank(self) -> Rank:
        """The rank, from its topology and coordinates."""
        return Topology.parse(self.topology).rank(tp=self.tp, pp=self.pp)

    @cached_property
    def box(self) -> Box:
        """What the rank holds."""
        return self.rank.box(self.namespace.spec)

    @property
    def name(self) -> str:
        """The rank in words, as errors and tables name it."""
        return f"tp{self.tp} pp{self.pp}"


@dataclass(frozen=True)
class Answer:
    """What a rank process did. Counts are objects, sizes bytes, times seconds."""

    pages: int = 0  # pages this rank was to write, or leading pages that it loaded
    seconds: float = 0.0  # the one call of `Client.save` or `Client.load`
    stored: int = 0
    existed: int = 0
    bytes_written: int = 0  # whole objects
    bytes_read: int = 0  # headers and payload
    bytes_headers: int = 0
    bytes_needed: int = 0  # payload of the rank's box in the pages asked of the store
    requests: int = 0
    stopped: str | None = None  # why the load ended early
    untouched: bool = True  # slots that hold none of the loaded pages are as they were
    error: str | None = None  # an error of unikv that ended the rank

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the answer that `text`, from `str`, spells."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Done:
    """A rank's job and its answer."""

    job: Job
    answer: Answer

    @property
    def payload(self) -> int:
        """Payload bytes that the rank read."""
        return self.answer.bytes_read - self.answer.bytes_headers

    @property
    def share(self) -> int:
        """Payload bytes of the rank's box in all pages: what it must read and no more."""
        spec, box = self.job.namespace.spec, self.job.box
        row = sum(part.rows * part.width for part in spec.parts)  # all tokens of a page, one head
        return len(self.job.pages) * box.layers.size * box.heads.size * row


def answer_path(job: Path) -> Path:
    """Return where the rank process of the job file leaves its answer."""
    return job.with_suffix(".answer")

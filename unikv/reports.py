"""Reports: what match, save and load answer. They know how nothing was done, only what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias


class Match(NamedTuple):
    """How much of a sequence is stored, by sizes alone. A hint: the load decides."""

    pages: int  # whole leading pages that every required component can restore
    # Whether the store told the size of every object that this follows from. False: each size is a
    # request (S3, always), sizes are not told, the store did not answer, or what ends the prefix is
    # an object that this client could not read less than 5 s ago.
    exact: bool
    first_missing: str | None  # key that ends the prefix; None when all pages are there
    valid: Mapping[str, int] = {}  # by optional component, the page it could be restored up to


FailureKind: TypeAlias = Literal["missing", "damaged", "error"]


class Failure(NamedTuple):
    """One object that could not be stored or used, and why."""

    key: str
    page: int  # position in the call's pages
    reason: str
    # missing: not stored, or not whole; damaged: its bytes do not fit its tags; error: the store
    # failed, or the call had no time or room, which says nothing of what is stored
    kind: FailureKind = "error"


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What one save did. Counts are of objects, sizes in bytes, times in seconds."""

    stored: int = 0  # objects written
    existed: int = 0  # objects that were there already
    failed: tuple[Failure, ...] = ()  # one for each object that could not be stored
    bytes_written: int = 0  # of the objects stored, whole: header, payload and description
    pages: int = 0  # pages that this rank was to write; replicas write the others
    unheld: int = 0  # pages to store that were skipped: the component had no slots for them
    # by stage: stat, pack; encode, put where the I/O is done; wait (for it)
    seconds: dict[str, float] = field(default_factory=dict)
    # of a save of several: each component's own
    components: Mapping[str, "SaveReport"] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether everything this rank was to write is stored."""
        return not self.failed

    @classmethod
    def total(cls, components: Mapping[str, "SaveReport"]) -> "SaveReport":
        """Add up the reports of several components."""
        reports = components.values()
        stages = {stage for report in reports for stage in report.seconds}
        return cls(
            stored=sum(report.stored for report in reports),
            existed=sum(report.existed for report in reports),
            failed=tuple(failure for report in reports for failure in report.failed),
            bytes_written=sum(report.bytes_written for report in reports),
            pages=max((report.pages for report in reports), default=0),
            unheld=sum(report.unheld for report in reports),
            seconds={s: sum(r.seconds.get(s, 0.0) for r in reports) for s in sorted(stages)},
            components=components,
        )


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one load did. What a prefetch had brought costs it no byte of the store."""

    pages: int = 0  # so many leading pages are in the pools, or what an endpoint needs of them
    bytes_read: int = 0  # headers and slabs, of the pages that the store gave whole
    bytes_headers: int = 0  # of these, headers
    # Payload bytes of the rank's box in these pages; with a codec less may be read.
    bytes_needed: int = 0
    requests: int = 0  # byte ranges of these pages
    prefetched: int = 0  # pages that a prefetch had brought already, summed over components
    failed: tuple[Failure, ...] = ()  # what ended the prefix, if an object did; at most one
    stopped: str | None = None  # why the prefix ended before the last page; None when it did not
    # by stage: stat (of windows and states); plan, get, verify where the I/O is done; wait (for
    # it), unpack where the pool is
    seconds: dict[str, float] = field(default_factory=dict)
    valid: Mapping[str, int] = field(default_factory=dict)  # by component, the page it is good to
    dropped: Mapping[str, str] = field(default_factory=dict)  # optional, not good to ``pages``: why

    @property
    def amplification(self) -> float:
        """Payload bytes read for each payload byte needed; 1.0 on a grid that fits the rank.

        More where slabs hold heads that the rank has not, less with a codec; 1 where none is read.
        """
        return (
            (self.bytes_read - self.bytes_headers) / self.bytes_needed if self.bytes_needed else 1
        )


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    """What one prefetch did."""

    pages: int = 0  # leading pages that a load will find in host memory, whole
    wanted: int = 0  # leading pages that are stored, as far as they were asked for
    bytes_read: int = 0  # headers and slabs brought
    # The arena had no room, or the store did not answer: ask again, it is no miss.
    deferred: bool = False
    stopped: str | None = None  # why it ended before the last page; None when it did not
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage: stat, plan, get, verify

"""Reports: what match, save and load answer. They know how nothing was done, only what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias


class Match(NamedTuple):
    """How much of a sequence is stored. A hint: the load decides."""

    pages: int  # whole leading pages that every required component can restore
    exact: bool  # False where a backend was not asked for every object, or did not answer
    first_missing: str | None  # key that ends the prefix; None when all is there
    valid: Mapping[str, int] = {}


FailureKind: TypeAlias = Literal["missing", "damaged", "error"]


class Failure(NamedTuple):
    """One object that could not be stored or used, and why."""

    key: str
    page: int  # position in the call's pages
    reason: str
    kind: FailureKind = "error"  # of the store; or the object is missing, or damaged


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What one save did. Counts are objects, sizes bytes, times seconds."""

    stored: int = 0
    existed: int = 0
    failed: tuple[Failure, ...] = ()
    bytes_written: int = 0  # whole objects: header, payload and description
    pages: int = 0  # pages that this rank was to write; replicas write the others
    unheld: int = 0  # pages to store that were skipped: the component had no slots for them
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: stat, pack, encode, put
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
    """What one load did. ``pages`` leading pages are in the pools, those that an endpoint needs."""

    pages: int = 0
    bytes_read: int = 0  # headers and slabs, of the pages that the store gave whole
    bytes_headers: int = 0  # of these, headers
    bytes_needed: int = 0  # payload bytes of the rank's box in these pages
    requests: int = 0  # byte ranges of these pages
    prefetched: int = 0  # pages of components that a prefetch had brought already
    failed: tuple[Failure, ...] = ()
    stopped: str | None = None  # why the prefix ended before the last page; None when it did not
    # by stage: plan, get, verify where the I/O is done; wait (for it), unpack where the pool is
    seconds: dict[str, float] = field(default_factory=dict)
    valid: Mapping[str, int] = field(default_factory=dict)  # by component, the page it is good to
    dropped: Mapping[str, str] = field(default_factory=dict)  # optional component and the reason

    @property
    def amplification(self) -> float:
        """Payload bytes read for each payload byte needed; 1.0 on a grid that fits the rank."""
        return (
            (self.bytes_read - self.bytes_headers) / self.bytes_needed if self.bytes_needed else 1
        )


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    """What one prefetch did."""

    pages: int = 0  # leading pages that a load will find in host memory, whole
    wanted: int = 0  # leading pages that are stored, as far as they were asked for
    bytes_read: int = 0
    deferred: bool = False  # there was no room or no time for all of it: ask again, it is no miss
    stopped: str | None = None  # why it ended before ``wanted``
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage

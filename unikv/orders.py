"""Orders: what the I/O side is asked to do, and what it answers. They know no thread, no process.

An order names bytes by their place in the arena, so that it can be carried out wherever the arena
is mapped. Its answer has one line for each thing that failed, none for what went well. Each also
has an ``error`` where the order failed as a whole, its ``retries``, and whether it was an
``outage``: all of it failed, in a way that may pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from unikv.geometry import Interval
from unikv.passage import Passage
from unikv.reports import FailureKind
from unikv.store import Item


class ReadPart(NamedTuple):
    """Pages of one component to read, page after page, to ``at`` bytes into the arena and on."""

    passage: Passage
    at: int
    pages: Sequence[str]
    layers: Interval | None = None  # of the passage's box, from 0; None: all of them


class Bad(NamedTuple):
    """The first thing that is wrong with a page that was read."""

    part: int
    page: int  # position in the part's pages
    key: str
    reason: str
    kind: FailureKind


@dataclass(frozen=True, slots=True)
class Read:
    """Read pages into the arena and, where ``verify``, check every byte of them."""

    parts: Sequence[ReadPart]
    verify: bool


@dataclass(frozen=True, slots=True)
class ReadDone:
    """What a read found bad: a line a page, and the keys of all damaged objects."""

    bad: Sequence[Bad] = ()
    damaged: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    coded: tuple[int, int] = (
        0,
        0,
    )  # bytes and ranges asked of coded objects: who orders cannot tell
    error: str | None = None
    outage: bool = False
    retries: int = 0


class WritePage(NamedTuple):
    """A page to write some chunks of."""

    page: str
    parent: str | None
    number: int  # in its sequence
    chunks: Sequence[int]  # positions in the plan's chunks


@dataclass(frozen=True, slots=True)
class Write:
    """Encode and put chunks of pages that lie packed in the arena, page after page from ``at``."""

    passage: Passage
    at: int
    pages: Sequence[WritePage]
    again: Sequence[str] = ()  # keys to replace: what is there is damaged


class Unwritten(NamedTuple):
    """An object that could not be stored."""

    page: int  # position in the order's pages
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Counts of objects, bytes of those written, and what failed."""

    stored: int = 0
    existed: int = 0
    written: int = 0
    failed: Sequence[Unwritten] = ()
    replaced: Sequence[str] = ()  # of `Write.again`, those that are stored anew
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    outage: bool = False
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Stat:
    """Ask for the sizes of objects; those ``wanted`` count as requested where they are."""

    keys: Sequence[str]
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class StatDone:
    """A size a key; None for none, or where it cannot be told."""

    sizes: Sequence[int | None] = ()
    error: str | None = None
    outage: bool = False
    retries: int = 0


class Peek(NamedTuple):
    """Read bytes ``start..stop`` of small records, which come back in the answer."""

    spans: Sequence[tuple[str, int, int]]  # key, start, stop


@dataclass(frozen=True, slots=True)
class PeekDone:
    """An outcome a span, the bytes of those that are OK, and errors by position."""

    codes: Sequence[int] = ()
    data: Sequence[bytes] = ()  # empty where not OK
    errors: Mapping[int, str] = field(default_factory=dict)
    error: str | None = None
    outage: bool = False
    retries: int = 0


class Post(NamedTuple):
    """Put small records, which come with the order."""

    items: Sequence[Item]
    replace: bool


@dataclass(frozen=True, slots=True)
class PostDone:
    """An outcome an item, and errors by position."""

    codes: Sequence[int] = ()
    errors: Mapping[int, str] = field(default_factory=dict)
    error: str | None = None
    outage: bool = False
    retries: int = 0


Order: TypeAlias = Read | Write | Stat | Peek | Post
Answer: TypeAlias = ReadDone | WriteDone | StatDone | PeekDone | PostDone


def cause_of(answer: "Answer") -> str:
    """Return the first thing that an answer says went wrong; an empty text if it names none."""
    if answer.error is not None:
        return answer.error
    match answer:
        case ReadDone(bad=[first, *_]) | WriteDone(failed=[first, *_]):
            return first.reason
        case PeekDone(errors=errors) | PostDone(errors=errors):
            return next(iter(errors.values()), "")
    return ""


def refuse(order: Order, reason: str, *, outage: bool = True) -> Answer:
    """Return the answer of an order of which nothing could be done."""
    match order:
        case Read():
            return ReadDone(error=reason, outage=outage)
        case Write():
            return WriteDone(error=reason, outage=outage)
        case Stat():
            return StatDone(error=reason, outage=outage)
        case Peek():
            return PeekDone(error=reason, outage=outage)
        case Post():
            return PostDone(error=reason, outage=outage)

"""Coverage: which endpoints of a sequence can be restored from which pages. It does no I/O.

Endpoint e stands behind page e - 1: restoring it lets an engine go on at token e * page_tokens.
Endpoints and page positions count from the first page of a call. What lies before that page is
in the engine's pools already, so endpoint 0 can always be restored.

A rule comes down to one number, how many pages next before an endpoint must be there. Save, match
and load all go by it, so what one writes the other can read.
"""

import sys
from collections.abc import Collection, Container
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from unikv.errors import SpecError


@dataclass(frozen=True, slots=True)
class EveryPage:
    """All pages before the endpoint: KV, draft KV, indexer rows, scales."""


@dataclass(frozen=True, slots=True)
class Window:
    """The pages that a sliding window touches before the endpoint.

    ``tokens`` is the window as a model's config has it, the attending token counted: the last
    ``tokens - 1`` are needed. ``retained`` tokens before them are kept for a drafter.

    Raises:
        SpecError: a window below one token, or fewer than 0 tokens retained.
    """

    tokens: int
    retained: int = 0

    def __post_init__(self) -> None:
        _check_count("window tokens", self.tokens, 1)
        _check_count("tokens retained", self.retained, 0)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The state at the endpoint itself, kept with the page before it: recurrent state."""


Coverage: TypeAlias = EveryPage | Window | Endpoints

_ALL = sys.maxsize  # more pages than any sequence has


def choose_coverage(kind: str, coverage: Coverage | None = None) -> Coverage:
    """Return the rule of a component whose spec is of ``kind``; by default the kind's own.

    Raises:
        SpecError: no rule, state without endpoints, or endpoints of what is no state.
    """
    if coverage is None:
        return Endpoints() if kind == "state" else EveryPage()
    _pages_back(coverage, 1)
    if (kind == "state") != isinstance(coverage, Endpoints):
        right = "Endpoints()" if kind == "state" else "EveryPage() or Window(tokens)"
        raise SpecError(f"coverage {coverage} of kind {kind!r}: want {right}")
    return coverage


def window_pages(window: int, retained: int, page_tokens: int) -> int:
    """Return how many pages the last ``window - 1 + retained`` tokens before an endpoint touch.

    Endpoints are page borders, so that rounding up, once, is exact.
    """
    _check_count("window tokens", window, 1)
    _check_count("tokens retained", retained, 0)
    _check_count("page_tokens", page_tokens, 1)
    return -(-(window - 1 + retained) // page_tokens)


def pages_needed(rule: Coverage, endpoint: int, page_tokens: int) -> range:
    """Return the positions of the pages that restore ``endpoint``: those to load for it."""
    _check_count("endpoint", endpoint, 0)
    return range(max(0, endpoint - _pages_back(rule, page_tokens)), endpoint)


def endpoints(rule: Coverage, held: Container[int], pages: int, page_tokens: int) -> frozenset[int]:
    """Return the endpoints, of 0 to ``pages``, whose needed pages are all in ``held``.

    Args:
        rule: the component's.
        held: positions of pages found, or read and verified; on a rank that owns a part of the
            pages, those that others own too.
        pages: how many pages the call has.
        page_tokens: tokens of a page.
    """
    _check_count("pages", pages, 0)
    back = _pages_back(rule, page_tokens)
    restorable = [0]
    run = back  # held pages in a row, up to this one; before page 0 there is nothing to miss
    for page in range(pages):
        run = run + 1 if page in held else 0
        if run >= back:
            restorable.append(page + 1)
    return frozenset(restorable)


def intersect(*sets: AbstractSet[int]) -> frozenset[int]:
    """Return the endpoints that all sets hold: over the components of a rank, or over ranks.

    Raises:
        SpecError: no set, of which nothing would follow.
    """
    fewest, *others = _by_size(sets)
    return frozenset(fewest).intersection(*others)


def greatest(*sets: AbstractSet[int]) -> int:
    """Return the greatest endpoint that all sets hold; 0 where they meet nowhere.

    It may be less than the least of their greatest ones: {0, 2, 4} and {0, 2, 3} meet at 2.

    Raises:
        SpecError: no set, of which nothing would follow.
    """
    fewest, *others = _by_size(sets)
    for endpoint in sorted(fewest, reverse=True):  # dense sets meet at once
        if all(endpoint in other for other in others):
            return endpoint
    return 0


def valid_to(rule: Coverage, held: Container[int], endpoint: int, page_tokens: int) -> int:
    """Return up to which page an optional component is good when ``endpoint`` is restored.

    The required components chose the endpoint; an optional one has no say in it. One of every page
    is good up to its first gap. A window or a state serves this endpoint or none: where its pages
    are not all held, it is 0, and nothing of it is to be loaded.

    ``pages_needed(rule, valid_to(...), page_tokens)`` are the pages to load.
    """
    restorable = endpoints(rule, held, endpoint, page_tokens)
    if isinstance(rule, EveryPage):
        return max(restorable)
    return endpoint if endpoint in restorable else 0


def pages_to_store(
    rule: Coverage, wanted: Collection[int], pages: int, page_tokens: int
) -> list[int]:
    """Return the positions of the pages that restore every endpoint in ``wanted``, ascending.

    Raises:
        SpecError: an endpoint that ``pages`` pages do not reach.
    """
    _check_count("pages", pages, 0)
    back = _pages_back(rule, page_tokens)
    stored: list[int] = []
    last = 0
    for endpoint in sorted(set(wanted)):
        if not 0 <= endpoint <= pages:
            raise SpecError(f"endpoint {endpoint}: want 0 to {pages}, the number of pages")
        stored.extend(range(max(last, endpoint - back), endpoint))
        last = endpoint
    return stored


def covers(wide: Coverage, narrow: Coverage, page_tokens: int) -> bool:
    """Tell whether the pages held under ``wide`` are all that ``narrow`` needs."""
    return _pages_back(wide, page_tokens) >= _pages_back(narrow, page_tokens)


def restorable_pages(tokens: int, page_tokens: int) -> int:
    """Return how many pages of a prompt of ``tokens`` tokens may be restored.

    At least one token must be computed, since logits come from nowhere else, and state cannot be
    trimmed by one token: so whole pages of the prompt less its last token.
    """
    _check_count("tokens", tokens, 0)
    _check_count("page_tokens", page_tokens, 1)
    return max(0, tokens - 1) // page_tokens


def storable_pages(tokens: int, page_tokens: int, lookahead: int = 0) -> int:
    """Return how many pages hold nothing but accepted tokens.

    Args:
        tokens: tokens whose KV is in the pools.
        page_tokens: tokens of a page.
        lookahead: how many of the last tokens may stand on drafts that nobody accepted yet.
    """
    _check_count("tokens", tokens, 0)
    _check_count("lookahead", lookahead, 0)
    _check_count("page_tokens", page_tokens, 1)
    return max(0, tokens - lookahead) // page_tokens


def endpoints_to_keep(tokens: int, page_tokens: int) -> frozenset[int]:
    """Return the endpoints that a prompt of ``tokens`` tokens is asked for again at.

    The same prompt asks for `restorable_pages`, a longer one for all its whole pages: they differ
    where the prompt ends with a page, and a window or a state stored for one misses the other.
    """
    return frozenset({restorable_pages(tokens, page_tokens), storable_pages(tokens, page_tokens)})


def _pages_back(rule: Coverage, page_tokens: int) -> int:
    """Return how many pages next before an endpoint are needed, as far as there are so many."""
    _check_count("page_tokens", page_tokens, 1)
    match rule:
        case EveryPage():
            return _ALL
        case Window(tokens, retained):
            return window_pages(tokens, retained, page_tokens)
        case Endpoints():
            return 1
        case _:
            raise SpecError(
                f"coverage {rule!r:.80}: want EveryPage(), Window(tokens) or Endpoints()"
            )


def _by_size(sets: Collection[AbstractSet[int]]) -> list[AbstractSet[int]]:
    if not sets:
        raise SpecError("endpoints of no component: want a set for each required one")
    return sorted(sets, key=len)


def _check_count(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise SpecError(f"{name} {value!r:.80}: want a whole number, {least} or more")

"""Persisting: calls a store again for those items of a batch whose failure may pass. No orders."""

import random
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import NoneType
from typing import TypeVar

from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span

MOST_TRIES = 3
"""How often an item is tried whose failure may pass, the first time counted."""

FIRST_PAUSE_S = 0.02
"""Longest pause before the second try; each further one is up to four times as long."""

_One = TypeVar("_One", Item, Span)
_Answer = TypeVar("_Answer")


def persist(
    call: Callable[[Sequence[_One]], Outcomes], batch: Sequence[_One], until: float
) -> tuple[Outcomes, int]:
    """Call for a batch, again for the items whose failure may pass; return how often that was."""
    begun = monotonic()
    return again(call, batch, call(batch), until, monotonic() - begun)


def again(
    call: Callable[[Sequence[_One]], Outcomes],
    batch: Sequence[_One],
    outcomes: Outcomes,
    until: float,
    took: float = 0.0,
) -> tuple[Outcomes, int]:
    """Do as `persist` for a batch that was called for once, with these outcomes.

    ``took`` is how long that was, in seconds. A try that would last behind ``until`` is not made:
    nobody would hear what went wrong.
    """
    judged(outcomes, batch)
    pause, tries = FIRST_PAUSE_S, 1
    while tries < MOST_TRIES and outcomes.errors:
        again = [n for n, error in outcomes.errors.items() if error.retryable]
        wait = pause * random.uniform(0.5, 1)  # noqa: S311 - so that clients do not march in step
        if not again or monotonic() + wait + took >= until:
            break
        sleep(wait)
        pause, tries, begun = pause * 4, tries + 1, monotonic()
        news = judged(call([batch[n] for n in again]), again)
        took = monotonic() - begun
        codes, errors = list(outcomes.codes), dict(outcomes.errors)
        for i, n in enumerate(again):
            codes[n] = news.codes[i]
            errors.pop(n)
            if i in news.errors:
                errors[n] = news.errors[i]
        outcomes = Outcomes(codes, errors)
    return outcomes, tries - 1


def counted(answers: Sequence[_Answer], asked: Sequence[object]) -> Sequence[_Answer]:
    """Return what a store answered, one for each that it was asked."""
    if len(answers) != len(asked):
        raise StoreError(f"the store gave {len(answers)} answers to {len(asked)} questions")
    return answers


def judged(outcomes: Outcomes, asked: Sequence[object]) -> Outcomes:
    """Return a store's outcomes, one known code for each item: no other counts as stored or read.

    Raises:
        StoreError: it gave something else.
    """
    codes = counted(outcomes.codes, asked)
    try:
        known = not codes or (min(codes) >= 0 and max(codes) <= Outcome.FAILED)
    except TypeError:
        known = False
    if not known:
        raise StoreError(f"the store gave codes that are no outcomes: {codes!r:.80}")
    return outcomes


def sized(sizes: Sequence[int | None], keys: Sequence[str]) -> Sequence[int | None]:
    """Return a store's sizes of objects, one for each key.

    Raises:
        StoreError: it gave something else.
    """
    for kind in set(map(type, counted(sizes, keys))) - {int, NoneType}:
        if not issubclass(kind, int):
            raise StoreError(f"the store gave a size that is a {kind.__name__}")
    return sizes


def outage_of(outcomes: Outcomes) -> bool:
    """Tell whether the store did nothing at all of a batch, though it might a moment later."""
    every = outcomes.errors.values()
    return 0 < len(every) == len(outcomes.codes) and all(error.retryable for error in every)

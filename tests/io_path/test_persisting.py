"""Tries: again for what may pass, never behind the time that somebody waits for the answer."""

from collections.abc import Sequence
from time import monotonic, sleep

import pytest

from unikv.errors import StoreError
from unikv.persisting import MOST_TRIES, persist
from unikv.store import Item, Outcome, Outcomes


def fails(seconds: float, calls: list[int], *, retryable: bool = True) -> Outcomes:
    calls.append(1)
    sleep(seconds)
    error = StoreError("no room")
    error.retryable = retryable
    return Outcomes([Outcome.FAILED], {0: error})


def put(
    seconds: float, until_s: float, *, retryable: bool = True
) -> tuple[int, float, Outcomes, int]:
    """Put one item that fails after ``seconds``; return calls, seconds left, and the answer."""
    calls: list[int] = []

    def call(_: Sequence[Item]) -> Outcomes:
        return fails(seconds, calls, retryable=retryable)

    until = monotonic() + until_s
    outcomes, retries = persist(call, [Item("key", [b""])], until)
    return len(calls), until - monotonic(), outcomes, retries


def test_what_may_pass_is_tried_again_and_what_may_not_is_not() -> None:
    assert put(0, 9)[0] == MOST_TRIES
    assert put(0, 9)[3] == MOST_TRIES - 1
    assert put(0, 9, retryable=False)[0] == 1


@pytest.mark.parametrize(("seconds", "tries"), [(0.1, 3), (0.35, 2), (0.6, 1)])
def test_a_try_that_would_end_too_late_is_not_made(seconds: float, tries: int) -> None:
    """So that the answer says what is wrong, rather than that there was none in time."""
    calls, left, outcomes, _ = put(seconds, 1.0)
    assert calls == tries
    assert left > 0
    assert str(outcomes.errors[0]) == "no room"

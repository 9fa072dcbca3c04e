"""Coverage on bad input: each gets an error that names the value and a right one."""

from collections.abc import Callable
from typing import Any

import pytest

from unikv.coverage import (
    Coverage,
    Endpoints,
    EveryPage,
    Window,
    choose_coverage,
    endpoints,
    endpoints_to_keep,
    greatest,
    intersect,
    pages_needed,
    pages_to_store,
    restorable_pages,
    storable_pages,
    window_pages,
)
from unikv.errors import SpecError

WRONG: list[Any] = [-1, True, 1.0, "16", None]


@pytest.mark.parametrize("tokens", [0, *WRONG])
def test_a_window_below_one_token_is_refused(tokens: Any) -> None:
    with pytest.raises(SpecError, match=r"window tokens .*: want a whole number, 1 or more"):
        Window(tokens)
    with pytest.raises(SpecError, match="window tokens"):
        window_pages(tokens, 0, 16)


@pytest.mark.parametrize("retained", WRONG)
def test_tokens_retained_below_none_are_refused(retained: Any) -> None:
    with pytest.raises(SpecError, match=r"retained .*: want a whole number, 0 or more"):
        Window(1024, retained)


@pytest.mark.parametrize(
    "call",
    [
        lambda size: window_pages(32, 0, size),
        lambda size: pages_needed(EveryPage(), 1, size),
        lambda size: endpoints(Endpoints(), set(), 1, size),
        lambda size: pages_to_store(EveryPage(), set(), 1, size),
        lambda size: restorable_pages(64, size),
        lambda size: storable_pages(64, size),
        lambda size: endpoints_to_keep(64, size),
    ],
)
@pytest.mark.parametrize("size", [0, *WRONG])
def test_a_page_below_one_token_is_refused(call: Callable[[Any], object], size: Any) -> None:
    with pytest.raises(SpecError, match=r"page_tokens .*: want a whole number, 1 or more"):
        call(size)


@pytest.mark.parametrize(
    "call",
    [
        lambda count: pages_needed(EveryPage(), count, 16),
        lambda count: endpoints(EveryPage(), set(), count, 16),
        lambda count: pages_to_store(EveryPage(), set(), count, 16),
        lambda count: restorable_pages(count, 16),
        lambda count: storable_pages(count, 16),
        lambda count: storable_pages(64, 16, count),
    ],
)
@pytest.mark.parametrize("count", WRONG)
def test_a_count_that_is_no_count_is_refused(call: Callable[[Any], object], count: Any) -> None:
    with pytest.raises(SpecError, match="want a whole number, 0 or more"):
        call(count)


@pytest.mark.parametrize("endpoint", [-1, 5])
def test_an_endpoint_outside_the_pages_is_not_stored_for(endpoint: int) -> None:
    with pytest.raises(SpecError, match=f"endpoint {endpoint}: want 0 to 4"):
        pages_to_store(EveryPage(), {endpoint}, 4, 16)


def test_no_component_has_no_endpoint() -> None:
    for call in (greatest, intersect):
        with pytest.raises(SpecError, match="no component"):
            call()


def test_sets_that_meet_nowhere_meet_at_none() -> None:
    assert greatest({1}, {2}) == 0


@pytest.mark.parametrize(
    ("kind", "coverage", "chosen"),
    [
        ("mha", None, EveryPage()),
        ("rows", None, EveryPage()),
        ("state", None, Endpoints()),
        ("mha", Window(1024), Window(1024)),
        ("state", Endpoints(), Endpoints()),
    ],
    ids=str,
)
def test_a_kind_has_a_coverage_of_its_own(
    kind: str, coverage: Coverage | None, chosen: Coverage
) -> None:
    assert choose_coverage(kind, coverage) == chosen


@pytest.mark.parametrize(
    ("kind", "coverage", "right"),
    [
        ("state", EveryPage(), "Endpoints"),
        ("state", Window(64), "Endpoints"),
        ("mha", Endpoints(), "EveryPage"),
        ("mha", "window", "Window"),
        ("mha", Window, "Window"),
    ],
    ids=str,
)
def test_state_without_endpoints_is_refused(kind: str, coverage: Any, right: str) -> None:
    with pytest.raises(SpecError, match=f"want .*{right}"):
        choose_coverage(kind, coverage)


def test_rules_are_values() -> None:
    assert EveryPage() == EveryPage()
    assert len({Window(4), Window(4, 0), Window(4, 1), Endpoints(), EveryPage()}) == 4

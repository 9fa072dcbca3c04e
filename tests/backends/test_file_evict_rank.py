"""Ranking: the oldest go, the deepest of them first, and nobody is asked for nothing."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.file_evict_look import Page
from unikv.backends.file_evict_rank import choose

SECOND = 10**9
NOW = 1_000_000 * SECOND


def page(name: object, age_s: float) -> Page:
    return Page(str(name), NOW - int(age_s * SECOND), str(name))


def names(pages: object) -> list[str]:
    return [page.name for page in pages]  # type: ignore[attr-defined]


def test_of_nothing_nothing_goes() -> None:
    assert choose([], lambda _page: None, NOW) == ([], [])


def test_where_no_depth_is_known_the_oldest_go() -> None:
    pages = [page(age, age) for age in range(1, 81)]
    goes, stays = choose(reversed(pages), lambda _page: None, NOW)
    assert names(goes) == [str(age) for age in range(80, 70, -1)]
    assert names(stays) == [str(age) for age in range(70, 36, -1)]


def test_B86_what_was_just_written_stays() -> None:
    goes, _ = choose([page("old", 86_400), page("new", 0)], lambda _page: None, NOW)
    assert names(goes) == ["old"]


def test_a_prefix_goes_from_its_tail_though_its_head_is_older() -> None:
    """Pages of one request differ by a moment only, and the head was requested first."""
    pages = [page(depth, 3600 - depth * 0.01) for depth in range(100)]
    goes, stays = choose(pages, lambda page: int(page.name), NOW)
    assert names(goes) == [str(depth) for depth in range(99, 86, -1)]
    assert names(stays) == [str(depth) for depth in range(86, -1, -1)]


def test_an_old_prefix_goes_before_the_deep_tail_of_a_young_one() -> None:
    old = [page(f"old {depth}", 3600) for depth in range(60)]
    young = [page(f"young {depth}", 60) for depth in range(1000, 1040)]
    goes, _ = choose(young + old, lambda page: int(page.name.split()[1]), NOW)
    assert names(goes) == [f"old {depth}" for depth in range(59, 46, -1)]


def test_the_older_of_two_prefixes_is_cut_more() -> None:
    older = [page(f"older {depth}", 7200) for depth in range(40)]
    newer = [page(f"newer {depth}", 3600) for depth in range(40)]
    fresh = [page(f"fresh {depth}", 1) for depth in range(80)]
    goes, _ = choose(fresh + newer + older, lambda page: int(page.name.split()[1]), NOW)
    cut = {name: [g for g in names(goes) if g.startswith(name)] for name in ("older", "newer")}
    assert len(cut["older"]) > len(cut["newer"])
    for name, gone in cut.items():
        assert set(gone) == {f"{name} {depth}" for depth in range(40 - len(gone), 40)}


def test_an_old_head_does_not_stay_for_ever() -> None:
    """However deep what is younger lies, an old page that nobody extends goes at last."""
    heads = [page(f"head {i}", 86_400) for i in range(60)]
    deep = [page(f"deep {i + 1000}", 3600 - i) for i in range(40)]
    goes, _ = choose(heads + deep, lambda page: int(page.name.split()[1]) % 1000, NOW)
    assert "head" in {name.split()[0] for name in names(goes)}


def test_depths_are_asked_of_old_pages_only() -> None:
    asked: list[str] = []

    def depth_of(page: Page) -> int:
        asked.append(page.name)
        return 0

    choose([page(age, age) for age in range(1, 101)], depth_of, NOW)
    assert {int(name) for name in asked} == set(range(46, 101))


def test_pages_of_the_future_are_the_youngest() -> None:
    pages = [page("now", 0), page("future", -3600), page("past", 10)]
    goes, _ = choose(pages, lambda _page: None, NOW)
    assert names(goes) == ["past"]


@given(
    st.lists(st.tuples(st.floats(-1e5, 1e9), st.none() | st.integers(0, 2**32 - 2)), max_size=200)
)
def test_an_eighth_goes_and_each_is_old(content: list[tuple[float, int | None]]) -> None:
    pages = [page(i, age) for i, (age, _) in enumerate(content)]
    goes, stays = choose(pages, lambda page: content[int(page.name)][1], NOW)
    assert len(goes) == ceil(len(pages) / 8)
    both = names(goes) + names(stays)
    assert len(set(both)) == len(both)
    kept = [page for page in pages if page.name not in set(both)]
    if kept:
        youngest = max(page.requested for page in [*goes, *stays])
        assert youngest <= min(page.requested for page in kept)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_small_sample_gives_one_at_least(count: int) -> None:
    goes, _ = choose([page(i, i + 1) for i in range(count)], lambda _page: 5, NOW)
    assert len(goes) == 1

"""Coverage against the oracle: endpoints, their intersection, and what is to be stored."""

from time import perf_counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.components import oracle
from unikv.coverage import (
    Coverage,
    Endpoints,
    EveryPage,
    Window,
    covers,
    endpoints,
    greatest,
    intersect,
    pages_needed,
    pages_to_store,
    valid_to,
)

windows = st.builds(Window, st.integers(1, 90), st.integers(0, 40))
rules = st.one_of(st.just(EveryPage()), st.just(Endpoints()), windows)
page_sizes = st.integers(1, 20)


class Case(NamedTuple):
    rule: Coverage
    pages: int
    held: set[int]
    page_tokens: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pages = draw(st.integers(0, 14))
    lost = draw(st.sets(st.integers(0, 13), max_size=4))
    held = set(range(pages)) - lost
    return Case(draw(rules), pages, held, draw(page_sizes))


def plain(rule: Coverage) -> oracle.Rule:
    if isinstance(rule, Window):
        return oracle.Rule("window", rule.tokens, rule.retained)
    return oracle.Rule("state" if isinstance(rule, Endpoints) else "every")


@given(cases())
def test_endpoints_are_those_that_the_oracle_finds(case: Case) -> None:
    found = endpoints(case.rule, case.held, case.pages, case.page_tokens)
    assert found == oracle.restorable(plain(case.rule), case.held, case.pages, case.page_tokens)
    assert 0 in found


@given(rules, st.integers(0, 14), page_sizes)
def test_pages_needed_are_those_that_the_tokens_touch(
    rule: Coverage, endpoint: int, page_tokens: int
) -> None:
    needed = pages_needed(rule, endpoint, page_tokens)
    assert set(needed) == oracle.needed(plain(rule), endpoint, page_tokens)


@given(cases())
def test_an_endpoint_is_restorable_iff_its_pages_needed_are_held(case: Case) -> None:
    found = endpoints(case.rule, case.held, case.pages, case.page_tokens)
    for endpoint in range(case.pages + 1):
        needed = pages_needed(case.rule, endpoint, case.page_tokens)
        assert (endpoint in found) == case.held.issuperset(needed)


@given(st.lists(st.tuples(rules, st.sets(st.integers(0, 9))), min_size=1, max_size=5), page_sizes)
def test_the_greatest_is_the_one_that_the_oracle_finds(
    components: list[tuple[Coverage, set[int]]], page_tokens: int
) -> None:
    sets = [endpoints(rule, held, 10, page_tokens) for rule, held in components]
    bundle = {str(n): (plain(rule), held) for n, (rule, held) in enumerate(components)}
    assert greatest(*sets) == oracle.best(bundle, 10, page_tokens)
    assert greatest(*sets) == max(intersect(*sets))


@given(st.data(), rules, st.integers(0, 12), page_sizes)
def test_what_is_stored_for_endpoints_restores_them_and_holds_no_page_more(
    data: st.DataObject, rule: Coverage, pages: int, page_tokens: int
) -> None:
    wanted = data.draw(st.sets(st.integers(0, pages)))
    stored = pages_to_store(rule, wanted, pages, page_tokens)
    assert stored == sorted(set(stored))
    assert wanted <= endpoints(rule, set(stored), pages, page_tokens)
    for page in stored:
        left = set(stored) - {page}
        assert not wanted <= endpoints(rule, left, pages, page_tokens)


@given(st.data(), rules, st.integers(1, 12), page_sizes)
def test_what_two_saves_store_restores_the_endpoints_of_both(
    data: st.DataObject, rule: Coverage, pages: int, page_tokens: int
) -> None:
    one, two = (data.draw(st.sets(st.integers(0, pages))) for _ in range(2))
    first, second = (set(pages_to_store(rule, some, pages, page_tokens)) for some in (one, two))
    assert first | second == set(pages_to_store(rule, one | two, pages, page_tokens))


@given(cases(), st.sets(st.integers(0, 13)))
def test_a_page_more_never_costs_an_endpoint(case: Case, more: set[int]) -> None:
    before = endpoints(case.rule, case.held, case.pages, case.page_tokens)
    assert before <= endpoints(case.rule, case.held | more, case.pages, case.page_tokens)


@given(cases())
def test_an_optional_component_is_good_as_far_as_its_pages_to_load_are_held(case: Case) -> None:
    page = valid_to(case.rule, case.held, case.pages, case.page_tokens)
    assert case.held.issuperset(pages_needed(case.rule, page, case.page_tokens))
    if isinstance(case.rule, EveryPage):
        assert page == case.pages or page not in case.held
    else:
        assert page in (0, case.pages)


@given(rules, rules, page_sizes)
def test_a_rule_covers_another_iff_it_keeps_all_that_the_other_needs(
    wide: Coverage, narrow: Coverage, page_tokens: int
) -> None:
    far = 200  # more pages than any window here
    kept, wanted = (set(pages_needed(rule, far, page_tokens)) for rule in (wide, narrow))
    assert covers(wide, narrow, page_tokens) == (kept >= wanted)


@st.composite
def stores(draw: st.DrawFn) -> dict[str, tuple[Coverage, set[int], set[int]]]:
    """Return components by name: rule, pages that a stat finds, those of them that are damaged."""
    count = draw(st.integers(1, 4))
    found = st.sets(st.integers(0, 9)).map(lambda lost: set(range(10)) - lost)
    damaged = st.sets(st.integers(0, 9), max_size=3)
    return {str(n): (draw(rules), draw(found), draw(damaged)) for n in range(count)}


@given(stores(), page_sizes)
def test_asking_again_without_what_failed_ends_where_the_oracle_does(
    store: dict[str, tuple[Coverage, set[int], set[int]]], page_tokens: int
) -> None:
    held = {name: set(found) for name, (_, found, _) in store.items()}
    while True:
        end = greatest(
            *(endpoints(rule, held[n], 10, page_tokens) for n, (rule, _, _) in store.items())
        )
        failed = {
            name: set(pages_needed(rule, end, page_tokens)) & damaged
            for name, (rule, _, damaged) in store.items()
        }
        if not any(failed.values()):
            break
        held = {name: held[name] - failed[name] for name in store}
    good = {n: (plain(rule), found - damaged) for n, (rule, found, damaged) in store.items()}
    assert end == oracle.best(good, 10, page_tokens)


@pytest.mark.parametrize("rule", [EveryPage(), Window(1024, 3), Endpoints()], ids=str)
def test_a_million_tokens_take_milliseconds(rule: Coverage) -> None:
    held = frozenset(range(15625))

    def once() -> float:
        began = perf_counter()
        assert greatest(endpoints(rule, held, 15625, 64)) == 15625
        return perf_counter() - began

    assert min(once() for _ in range(7)) < 0.005

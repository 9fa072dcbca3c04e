"""FaultPlan: rules are checked values, and travel as JSON."""

import errno
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.testing_fault_plan import HOWS, OF_CALLS, SUITS, VERBS, Fault, Plan, Rule


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    fault: Fault = draw(st.sampled_from(sorted(SUITS)))
    waits = fault in ("delay", "hang", "late")
    return Rule(
        fault=fault,
        verbs=tuple(draw(st.lists(st.sampled_from(SUITS[fault]), unique=True))),
        keys=draw(st.text(max_size=5)),
        nth=draw(st.integers(1, 9)),
        every=draw(st.integers(1, 9)),
        count=draw(st.none() | st.integers(0, 9)),
        probability=draw(st.floats(0, 1)),
        after_s=draw(st.floats(0, 9)),
        until_s=draw(st.none() | st.floats(10, 20)),
        while_file=draw(st.none() | st.text()),
        once_file=draw(st.none() | st.text()),
        seconds=draw(st.floats(0, 9)) if waits else None,
        retryable=draw(st.booleans()),
        how=draw(st.sampled_from(HOWS.get(fault, ("",)))),
        survives_close=draw(st.booleans()),
    )


@given(st.lists(rules(), max_size=4), st.integers(), st.none() | st.text())
def test_a_plan_travels_as_json(some: list[Rule], seed: int, told: str | None) -> None:
    plan = Plan(some, seed, told)
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    json.loads(text)


def test_a_plan_shows_what_is_not_usual() -> None:
    assert json.loads(Plan([Rule("full", nth=3)]).to_json())["rules"] == [
        {"fault": "full", "verbs": ["put"], "nth": 3}
    ]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"fault": "explode"}, "fault 'explode': want one of delay, hang"),
        ({"fault": "torn", "verbs": ["get"]}, r"rule torn: verbs=\('get',\) does not suit it"),
        ({"fault": "late", "verbs": ["put"]}, "verbs"),
        ({"fault": "error", "nth": 0}, "nth=0"),
        ({"fault": "error", "every": 0}, "every=0"),
        ({"fault": "error", "count": -1}, "count=-1"),
        ({"fault": "error", "probability": 1.5}, "probability=1.5"),
        ({"fault": "error", "probability": float("nan")}, "probability=nan"),
        ({"fault": "error", "after_s": -1}, "after_s=-1"),
        ({"fault": "error", "after_s": 2, "until_s": 2}, "until_s=2"),
        ({"fault": "hang", "seconds": -1}, "seconds=-1"),
        ({"fault": "delay"}, "rule delay: seconds=None does not suit it"),
        ({"fault": "error", "seconds": 1}, "rule error: seconds=1 does not suit it"),
        ({"fault": "flip", "when": "after"}, "when='after'"),
        ({"fault": "error", "when": "during"}, "when='during'"),
        ({"fault": "torn", "how": "garbage"}, "how='garbage'"),
        ({"fault": "error", "how": "cut"}, "how='cut'"),
    ],
)
def test_what_does_not_suit_is_refused(rule: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rule(**rule)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"rules": [{}]}',
        '{"rules": [{"fault": "lost", "often": 1}]}',
        '{"rules": [{"fault": "lost", "nth": "3"}]}',
        '{"rules": [], "sed": 1}',
        '{"rules": 5}',
    ],
)
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Plan.from_json(text)


def test_each_fault_suits_some_verbs_and_has_usual_ways() -> None:
    assert {verb for verbs in SUITS.values() for verb in verbs} == set(VERBS)
    for fault in SUITS:
        rule = Rule(fault, seconds=0 if fault in ("delay", "hang", "late") else None)
        assert rule.verbs == SUITS[fault]
        assert rule.how == HOWS.get(fault, ("",))[0]
    assert set(OF_CALLS) <= set(SUITS)


def test_a_failure_says_that_it_was_planned() -> None:
    error = Rule("full").failure("put 'k'", errno.ENOSPC)
    assert str(error) == "put 'k': No space left on device (a planned full)"
    assert error.errno == errno.ENOSPC
    assert not error.retryable
    assert Rule("error", retryable=True).failure("get 'k'").retryable

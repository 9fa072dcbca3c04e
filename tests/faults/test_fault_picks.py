"""FaultPicks: which calls and items are befallen, by number, chance, time and file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.memory import MemoryStore
from unikv.store import Item, Span
from unikv.testing_data import page_key
from unikv.testing_faults import FaultyStore, Plan, Rule, faulty, told


def lost(**rule: Any) -> list[int]:
    """Return which of 20 puts, from 1, were lost."""
    store = faulty(MemoryStore(), [Rule("lost", **rule)])
    return lost_by(store, [f"k{n}" for n in range(1, 21)])


def lost_by(store: FaultyStore, keys: Sequence[str]) -> list[int]:
    for key in keys:
        assert store.put([Item(key, [b"data"])]).ok
    store.heal()
    sizes = store.stat(keys)
    return [n for n, size in enumerate(sizes, 1) if size is None]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, range(1, 21)),
        ({"nth": 3}, range(3, 21)),
        ({"nth": 3, "count": 1}, [3]),
        ({"nth": 3, "every": 5}, [3, 8, 13, 18]),
        ({"every": 7, "count": 2}, [1, 8]),
        ({"count": 0}, []),
        ({"count": 2}, [1, 2]),
        ({"probability": 0}, []),
        ({"keys": "k1*", "nth": 2, "every": 4}, [10, 14, 18]),
        ({"keys": "K1"}, []),
        ({"keys": "k[!1]"}, range(2, 10)),
    ],
    ids=str,
)
def test_matches_are_numbered_from_one(rule: dict[str, Any], expected: Sequence[int]) -> None:
    assert lost(**rule) == list(expected)


def test_a_page_is_picked_by_its_prefix() -> None:
    keys = [page_key(n) for n in range(30)]
    store = faulty(MemoryStore(), [Rule("lost", keys=keys[4][:10] + "*")])
    assert lost_by(store, keys) == [5]


def test_chances_follow_the_seed_and_nothing_else() -> None:
    def run(seed: int, batch: int) -> list[int]:
        store = faulty(MemoryStore(), Plan([Rule("lost", probability=0.3)], seed))
        keys = [f"k{n}" for n in range(200)]
        for first in range(0, 200, batch):
            store.put([Item(key, [b"data"]) for key in keys[first : first + batch]])
        store.heal()
        return [n for n, size in enumerate(store.stat(keys)) if size is None]

    assert run(1, 1) == run(1, 1) == run(1, 50)
    assert run(1, 1) != run(2, 1)
    assert 30 < len(run(1, 1)) < 90


def test_a_rule_holds_between_its_times() -> None:
    now = [100.0]
    rules = [Rule("lost", after_s=2, until_s=4)]
    store = faulty(MemoryStore(), rules, clock=lambda: now[0])
    gone = []
    for n in range(7):
        now[0] = 100.0 + n
        store.put([Item(f"k{n}", [b"data"])])
        gone.append(store.stat([f"k{n}"])[0] is None)
    assert gone == [False, False, True, True, False, False, False]


def test_a_rule_holds_while_its_file_is_there(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    store = faulty(MemoryStore(), [Rule("lost", while_file=str(switch), nth=2)])
    seen = []
    for n, there in enumerate([False, True, True, True, False, True]):
        switch.touch() if there else switch.unlink(missing_ok=True)
        store.put([Item(f"k{n}", [b"data"])])
        seen.append(store.stat([f"k{n}"])[0] is None)
    # Only matches while the file is there are numbered.
    assert seen == [False, False, True, True, False, True]


def test_a_rule_befalls_once_by_taking_its_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    stores = [faulty(MemoryStore(), [Rule("lost", once_file=str(token))]) for _ in range(2)]
    token.touch()
    for store in stores * 2:
        store.put([Item("key", [b"data"])], replace=True)
    assert not token.exists()
    assert [store.counts["lost"] for store in stores] == [1, 0]
    token.touch()
    stores[1].put([Item("key", [b"data"])], replace=True)
    assert stores[1].counts["lost"] == 1


def test_the_first_rule_that_matches_takes_an_item() -> None:
    rules = [
        Rule("full", keys="a*", count=1),
        Rule("lost", keys="a*", nth=2),
        Rule("lost", keys="b*"),
    ]
    store = faulty(MemoryStore(), rules)
    outcomes = store.put([Item(key, [b"x"]) for key in ("a1", "a2", "a3", "b1", "c1")])
    assert list(outcomes.errors) == [0]  # a2 is the second rule's first match, a3 its second
    assert store.counts == {"full": 1, "lost": 2}
    assert [size is not None for size in store.stat(["a2", "a3", "b1", "c1"])] == [
        *(True, False, False, True)
    ]


def test_what_was_done_is_recorded_in_order(tmp_path: Path) -> None:
    rules = [
        Rule("lost", keys="a"),
        Rule("miss", verbs=("get",)),
        Rule("raise", verbs=("list",)),
    ]
    file = str(tmp_path / "told")
    store = faulty(MemoryStore(), Plan(rules, told_file=file))
    assert told(file) == []
    store.put([Item("a", [b"x"]), Item("b", [b"x"])])
    store.get([Span("b", 0, 1, [memoryview(bytearray(1))])])
    with pytest.raises(RuntimeError, match="a planned exception"):
        store.list("pre")
    assert store.done == [("lost", "put", "a"), ("miss", "get", "b"), ("raise", "list", "pre")]
    assert told(file) == store.done
    assert store.counts == {"lost": 1, "miss": 1, "raise": 1}
    assert store.counts["flip"] == 0


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("unikv.testing_fault_picks.REMEMBERED", 5)
    plan = Plan([Rule("miss")], told_file=str(tmp_path / "told"))
    store = faulty(MemoryStore(), plan)
    store.stat([f"k{n}" for n in range(9)])
    assert store.counts["miss"] == 9
    assert [done.key for done in store.done] == [f"k{n}" for n in range(4, 9)]
    assert [done.key for done in told(tmp_path / "told")] == [f"k{n}" for n in range(5)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 4))
def test_numbers_go_on_over_batches(sizes: list[int], nth: int, every: int) -> None:
    store = faulty(MemoryStore(), [Rule("lost", nth=nth, every=every)])
    keys = [f"k{n}" for n in range(sum(sizes))]
    at = 0
    for size in sizes:
        store.put([Item(key, [b"x"]) for key in keys[at : at + size]])
        at += size
    gone = [n for n, size in enumerate(store.stat(keys), 1) if size is None]
    assert gone == list(range(nth, len(keys) + 1, every))


def test_a_call_is_one_match_however_many_its_keys() -> None:
    store = faulty(MemoryStore(), [Rule("raise", keys="k3", nth=2, count=1)])
    batch = [f"k{n}" for n in range(5)]
    store.stat(batch)
    store.stat(["other"])
    with pytest.raises(RuntimeError):
        store.stat(batch)
    store.stat(batch)

"""Faults in another process: opened by the opener, steered by files, and killed at any stage."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.openable import OpenableFileStore
from unikv.store import Item
from unikv.testing_data import content, read
from unikv.testing_faults import EXIT_CODE, FaultyStore, Plan, Rule, faulty, told

OPEN = """
import importlib, json, sys
from unikv.store import Item, Span
module, function, arguments = json.loads(sys.argv[1])
store = getattr(importlib.import_module(module), function)(*arguments)
def put(*keys): return store.put([Item(key, [key.encode()]) for key in keys])
def get(key, out): return store.get([Span(key, 0, len(out), [memoryview(out)])])
"""


def file_store(root: Path, *rules: Rule, **plan: Any) -> FaultyStore:
    return faulty(OpenableFileStore(root), Plan(rules, **plan))


@contextmanager
def other(store: FaultyStore, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a process that has opened the store again."""
    arguments = [sys.executable, "-c", OPEN + code, json.dumps(store.opener)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run(store: FaultyStore, code: str) -> tuple[int, str]:
    with other(store, code) as process:
        out, _ = process.communicate(timeout=60)
        return process.returncode, out.strip()


def test_an_opener_opens_the_same_faults_elsewhere(tmp_path: Path) -> None:
    store = file_store(tmp_path / "kv", Rule("lost", keys="k2"), seed=7)
    assert run(store, "print(put('k1', 'k2', 'k3').ok, store.counts['lost'])") == (0, "True 1")
    assert list(store.stat(["k1", "k2", "k3"])) == [2, None, 2]
    assert store.counts == {}  # what is done elsewhere is counted there


def test_an_opener_is_json_and_shows_no_arguments(tmp_path: Path) -> None:
    store = file_store(tmp_path / "kv", Rule("full"))
    opener = store.opener
    assert json.loads(json.dumps(opener)) == [opener[0], opener[1], opener[2]]
    assert str(tmp_path) not in repr(opener)


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("during", 2), ("after", 4)])
@pytest.mark.parametrize(
    ("how", "code"), [("kill", -signal.SIGKILL), ("exit", EXIT_CODE)], ids=["kill", "exit"]
)
def test_a_crash_ends_the_other_process_at_its_stage(
    tmp_path: Path, when: Any, stored: int, how: Any, code: int
) -> None:
    rule = Rule("crash", verbs=("put",), nth=2, when=when, how=how)
    store = file_store(tmp_path / "kv", rule, told_file=str(tmp_path / "told"))
    keys = [f"k{n}" for n in range(4)]
    script = f"put('first'); print('on', flush=True); put(*{keys}); print('past')"
    assert run(store, script) == (code, "on")
    assert store.stat(["first"])[0] is not None
    assert sum(size is not None for size in store.stat(keys)) == stored
    assert told(tmp_path / "told") == [("crash", "put", "k0")]


def test_a_crash_spares_the_process_that_made_the_store(tmp_path: Path) -> None:
    store = file_store(tmp_path / "kv", Rule("crash", verbs=("stat",)))
    with pytest.raises(RuntimeError, match="open its opener"):
        store.stat(["a"])


def test_a_process_may_crash_itself() -> None:
    code = (
        "from unikv.testing_faults import faulty, Rule; from unikv import open_store; "
        "faulty(open_store('memory://'), [Rule('crash')], crash_here=True).stat(['a'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL


def test_one_crash_among_processes_that_come_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch()
    store = file_store(tmp_path / "kv", Rule("crash", once_file=str(token)))
    assert run(store, "put('k')")[0] == -signal.SIGKILL
    assert run(store, "print(put('k').ok)") == (0, "True")


def test_a_file_steers_a_hang_elsewhere(tmp_path: Path) -> None:
    switch, heard = tmp_path / "switch", tmp_path / "told"
    switch.touch()
    rule = Rule("late", how="right", keys="k", while_file=str(switch))
    store = file_store(tmp_path / "kv", rule, told_file=str(heard))
    store.put([Item("k", [content("k", 100)])])
    code = """
out = bytearray(100)
print(get("k", out).ok, out.hex(), flush=True)
"""
    with other(store, code) as process:
        end = time.monotonic() + 30
        while not told(heard):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert process.poll() is None
        switch.unlink()
        assert process.communicate(timeout=30)[0].strip() == f"True {content('k', 100).hex()}"
    assert read(store, "k", 0, 100) == content("k", 100)
    assert told(heard) == [("late", "get", "k")]

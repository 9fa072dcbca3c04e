"""The `unikv conformance` command: its words, exit statuses, JSON, and that it leaves nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unikv.backends.file import FileStore
from unikv.store import Item
from unikv.testing import StoreContract, page_key, read
from unikv.testing_data import Keys
from unikv.testing_promises import Promise, Promises, all_promises
from unikv.tools import conformance_run
from unikv.tools.cli import main
from unikv.tools.conformance_run import Finding, try_promises
from unikv.tools.conformance_subject import Subject


class Told:
    """What a run of the command left behind."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        self.status = main(["conformance", *map(str, words)])
        self.out, self.err = capsys.readouterr()


def test_memory_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "memory://")
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith("memory://: ")
    assert " 0 broken" in told.out
    assert "B53 ranges are half open" in told.out


def test_files_keep_every_promise_beside_foreign_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FileStore(tmp_path)
    foreign = {page_key(i): b"%d" % i for i in range(50)} | {"key": b"x", "A": b"y", "ns_1": b"z"}
    store.put([Item(key, [data]) for key, data in foreign.items()])
    told = Told(capsys, f"file://{tmp_path}", "--json")
    assert (told.status, told.err) == (0, "")
    found = json.loads(told.out)
    assert found["ok"]
    assert (found["broken"], found["not_tried"], found["left_keys"]) == (0, 0, [])
    assert found["kept"] + found["not_applicable"] == len(found["promises"]) > 50
    assert {entry.key for entry in store.list()} == set(foreign)
    assert all(read(store, key, 0, len(data)) == data for key, data in foreign.items())
    store.close()


def test_json_names_what_each_promise_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(Told(capsys, "memory://", "--json", "--only", "comes back").out)
    assert {promise["group"] for promise in found["promises"]} == {"object"}
    first = found["promises"][0]
    assert first["name"] == "an_object_comes_back_as_it_was_put"
    assert (first["case"], first["verdict"], first["reason"]) == ("size 0", "kept", "")
    assert first["says"].startswith("Bytes in, the same bytes out")
    assert set(first) == {"name", "case", "group", "says", "verdict", "reason", "seconds"}
    absent = json.loads(Told(capsys, "memory://", "--json", "--only", "another process").out)
    assert absent["promises"][0]["verdict"] == "not_applicable"
    assert "no opener" in absent["promises"][0]["reason"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing://"], "unknown scheme"),
        (["file:///tmp/unikv-none?readonly=1"], "no such folder"),
        (["memory://", "--only", "nothing like it"], "no promise has 'nothing like it'"),
    ],
)
def test_what_cannot_be_tried_is_status_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    told = Told(capsys, *words)
    assert (told.status, told.out) == (2, "")
    assert message in told.err
    assert len(told.err.splitlines()) == 1


def test_a_store_that_takes_nothing_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(capsys, f"file://{tmp_path}?readonly=1")
    assert told.status == 2
    assert "nothing can be stored there" in told.err
    assert list(tmp_path.iterdir()) == []


def test_a_limit_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "nan", "inf", "soon"):
        with pytest.raises(SystemExit):
            Told(capsys, "memory://", "--limit", text)
        assert "want a number of seconds" in capsys.readouterr().err


def test_pytest_and_the_command_try_the_same() -> None:
    tests = {name for name in dir(StoreContract) if name.startswith("test_")}
    assert tests == {f"test_{promise.name}" for promise in all_promises(Promises())}
    assert all(promise.says.endswith(".") for promise in all_promises(Promises()))


@pytest.mark.parametrize("flags", [[], ["-O"]])
def test_it_needs_no_pytest_and_no_assert_statement(flags: list[str]) -> None:
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['torch'] = None\n"
        "from unikv.backends import memory\n"
        "memory.MemoryStore.delete = lambda self, keys: memory.Batch(len(keys)).outcomes()\n"
        "from unikv.tools.cli import main\n"
        "sys.exit(main(['conformance', 'memory://', '--only', 'B97_all']))"
    )
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "broken          B97 all calls agree" in done.stdout
    assert "delete: found" in done.stdout


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(subject: Subject, _: Promise, keys: Keys) -> Finding:
        names = [keys.page(n) for n in range(5)]
        assert subject.store().put([Item(key, [b"data"]) for key in names]).ok
        assert len(list(tmp_path.glob("*/*/*"))) >= 5
        raise KeyboardInterrupt

    monkeypatch.setattr(conformance_run, "_judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        try_promises(f"file://{tmp_path}")
    store = FileStore(tmp_path)
    assert list(store.list()) == []
    store.close()

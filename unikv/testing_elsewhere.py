"""Elsewhere promises: a store is opened by another process, and forked. They know no backend.

Each runs in an interpreter of its own, so that a store that hangs or crashes after a fork harms no
other promise.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module

from unikv.errors import StoreError
from unikv.store import Item, Opener, Store
from unikv.testing_checks import NotApplicable, expect, expect_true
from unikv.testing_data import FAILED, MISS, OK, Keys, content, read

WAIT_S = 60.0
"""How long another process may take."""

FORK_WAIT_S = 20.0
"""How long a forked child may take to answer or refuse."""

SIZE = 10_007
_others: "set[subprocess.Popen[str]]" = set()
_PROGRAM = "from unikv.testing_elsewhere import main; main()"


class ElsewherePromises:
    """An `opener` opens an equal store in another process; a fork does no harm."""

    def test_another_process_opens_the_same_store(self, store: Store, keys: Keys) -> None:
        """By its opener another process reads what was stored here, and the other way round."""
        ours, theirs = keys.page("ours"), keys.page("theirs")
        store.put([Item(ours, [content(ours, SIZE)])])
        told = _run(opener_of(store), "exchange", [ours, theirs])
        expect(told, "well", "what the other process tells")
        expect(read(store, theirs, 0, SIZE), content(theirs, SIZE), "what it stored")

    def test_an_opener_shows_no_argument(self, store: Store) -> None:
        """Its arguments are what JSON holds, and its text does not show them."""
        opener = opener_of(store)
        again = json.loads(json.dumps(list(opener.arguments)))
        expect(again, list(opener.arguments), "the arguments after JSON")
        shown = f"{opener} {opener!r}"
        texts = [text for text in opener.arguments if isinstance(text, str) and len(text) > 8]
        expect_true(not any(text in shown for text in texts), "an opener shows its arguments")

    def test_a_forked_child_answers_or_refuses(self, store: Store, keys: Keys) -> None:
        """A child forked while the store is open reads right bytes or gets a `StoreError`, in time.

        The parent goes on as if nothing was.
        """
        names = [keys.page("fork"), keys.page("after")]
        store.put([Item(names[0], [content(names[0], SIZE)])])
        told = _run(opener_of(store), "fork", names)
        expect(told, "well", "what parent and child tell")

    def test_a_forked_child_that_ends_takes_nothing_along(self, store: Store, keys: Keys) -> None:
        """A child that closes its copy of the store and ends costs the parent nothing."""
        names = [keys.page("fork"), keys.page("after")]
        store.put([Item(names[0], [content(names[0], SIZE)])])
        told = _run(opener_of(store), "end", names)
        expect(told, "well", "what the parent tells")


def opener_of(store: Store) -> Opener:
    """Return how another process opens the store.

    Raises:
        NotApplicable: it has no opener.
    """
    opener = getattr(store, "opener", None)
    if not isinstance(opener, Opener):
        raise NotApplicable("the store has no opener: only this process reaches it")
    return opener


def open_by(opener: Opener) -> Store:
    """Open the store that an opener tells of."""
    opened: Store = getattr(import_module(opener.module), opener.function)(*opener.arguments)
    return opened


def _run(opener: Opener, task: str, keys: list[str]) -> str:
    """Have another interpreter carry out a task; return what it tells."""
    job = {"opener": list(opener), "task": task, "keys": keys}
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(  # noqa: S603 - our own interpreter, no word of a caller
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    ) as process:
        _others.add(process)
        try:
            out, err = process.communicate(json.dumps(job), WAIT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            return f"no answer after {WAIT_S:g} s"
        finally:
            _others.discard(process)
    if process.returncode:
        last = err.strip().splitlines()[-1:] or ["nothing on standard error"]
        return f"exit status {process.returncode}: {last[0][:300]}"
    return out.strip()


def end_others() -> None:
    """End the interpreters that still carry out a task, for a process that ends meanwhile."""
    for process in _others.copy():
        with suppress(ProcessLookupError):
            _kill(process)


def _kill(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)  # its children hold our ends of the pipes


def main() -> None:
    """Carry out the task on standard input; what the other interpreter of `_run` runs."""
    job = json.load(sys.stdin)
    store = open_by(Opener(*job["opener"]))
    first, second = job["keys"]
    told = ""
    if read(store, first, 0, SIZE) != content(first, SIZE):
        told = "an equal store does not hold what was stored"
    elif job["task"] == "fork":
        told = _fork(store, first)
    elif job["task"] == "end":
        told = _end(store)
    if not told and list(store.put([Item(second, [content(second, SIZE)])]).codes) != [OK]:
        told = "put fails" if job["task"] == "exchange" else "put fails after a fork"
    if not told and read(store, second, 0, SIZE) != content(second, SIZE):
        told = "get fails" if job["task"] == "exchange" else "get fails after a fork"
    store.close()
    sys.stdout.write(told or "well")


def _fork(store: Store, key: str) -> str:
    """Read in a forked child; return what is wrong with what it saw."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(theirs, _look(store, key).encode())
        os._exit(0)  # as a worker of an engine ends that is killed
    os.close(theirs)
    told = _wait(pid)
    with os.fdopen(ours, "rb") as pipe:
        seen = pipe.read().decode()
    return told or seen.removeprefix("well") or ("" if seen else "the child told nothing")


def _look(store: Store, key: str) -> str:
    """Use the store in a forked child; return "well" or what is wrong."""
    try:
        store.stat([key])
        found = read(store, key, 0, SIZE)
    except StoreError:  # it refuses
        return "well"
    except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
        return f"a forked child got {type(error).__name__}: {error}"[:300]
    if found in (content(key, SIZE), FAILED):
        return "well"
    return "get in a forked child " + ("misses" if found == MISS else "gives wrong bytes")


def _end(store: Store) -> str:
    """Let a forked child close the store and end in good order; return what went wrong."""
    pid = os.fork()
    if pid == 0:
        with suppress(StoreError):
            store.close()
        sys.exit(0)
    return _wait(pid)


def _wait(pid: int) -> str:
    """Wait for a child; return what is wrong with its end."""
    until = time.monotonic() + FORK_WAIT_S
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"a forked child ended with status {code}"
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f"a forked child gave no answer in {FORK_WAIT_S:g} s"

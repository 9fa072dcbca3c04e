"""MooncakeStore refuses what would crash or hang its process: calls after close or a fork."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.mooncake_cluster import (
    ROOT,
    MooncakeCluster,
    free_port,
    require_mooncake,
    running,
)
from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends import mooncake, mooncake_gate, mooncake_open
from unikv.backends.mooncake_gate import Gate
from unikv.errors import MissingExtraError, StoreError
from unikv.registry import open_store
from unikv.store import Item

served = pytest.mark.mooncake
BOUNDS = {
    "MC_RPC_TIMEOUT_MS": "10000",
    "MC_TCP_STATUS_TIMEOUT_SEC": "1",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
}

# The end


def test_close_waits_for_calls_and_lets_no_more_in() -> None:
    native = FakeNative()
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(10)

    native.before["batch_put_session_end"] = hold
    with fake_store(native) as store:
        put = threading.Thread(target=store.put, args=[[Item("key", [b"x"])]])
        put.start()
        assert begun.wait(10)
        close = threading.Thread(target=store.close)
        close.start()
        time.sleep(0.1)
        assert close.is_alive()
        assert native.closed < 1
        with pytest.raises(StoreError, match="fake:1 is closed"):
            store.stat(["key"])
        go_on.set()
        put.join(10)
        close.join(10)
        store.close()
    assert native.closed == 1
    assert native.objects == {"key": b"x"}


def test_close_does_not_wait_for_ever_and_the_last_call_out_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mooncake_gate, "CLOSE_WAIT_S", 0.1)
    ends: list[str] = []
    gate = Gate("store", lambda: ends.append("closed"))
    inside, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        with gate:
            inside.set()
            go_on.wait(10)
            ends.append("left")

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(10)
    gate.close(0.1)
    assert ends == []
    go_on.set()
    thread.join(10)
    assert ends == ["left", "closed"]
    gate.close()
    assert ends == ["left", "closed"]


def test_a_call_that_raises_is_counted_out() -> None:
    ends: list[str] = []
    gate = Gate("store", lambda: ends.append("closed"))
    with pytest.raises(RuntimeError, match="broken"), gate:
        raise RuntimeError("broken")
    gate.close()
    assert ends == ["closed"]


# Processes


def run(code: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    with running(tmp_path_factory.mktemp("mooncake")) as cluster:
        yield cluster


AFTER_CLOSE = """
import sys, threading
from unikv import open_store
from unikv.store import Item
store = open_store(sys.argv[1])
native = store._native
def put():
    try:
        for i in range(100000):
            store.put([Item(f"k{i % 50}", [b"x" * 100000])])
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__} {'closed' in str(error)}\\n")
threads = [threading.Thread(target=put) for _ in range(4)]
for thread in threads: thread.start()
import time; time.sleep(0.3)
store.close()
for thread in threads: thread.join()
"""


@served
def test_close_amid_calls_of_other_threads_crashes_nothing(cluster: MooncakeCluster) -> None:
    done = run(AFTER_CLOSE, cluster.url())
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "StoreError True\n" * 4


UNCLOSED = """
import sys
from unikv import open_store
from unikv.store import Item
store = open_store(sys.argv[1])
assert store.put([Item("unclosed", [b"x"])], replace=True).ok
"""


@served
def test_a_process_that_never_closes_ends_well(cluster: MooncakeCluster) -> None:
    done = run(UNCLOSED, cluster.url())
    assert done.returncode == 0, done.stderr[-2000:]


FORK = """
import os, sys
from unikv import open_store
from unikv.errors import StoreError
from unikv.store import Item, Span
store = open_store(sys.argv[1])
store.put([Item("forked", [b"bytes"])])
pid = os.fork()
if pid == 0:
    calls = [
        lambda: store.put([Item("k", [b"x"])]),
        lambda: store.get([Span("forked", 0, 5, [memoryview(bytearray(5))])]),
        lambda: store.stat(["forked"]),
        lambda: store.delete(["forked"]),
        lambda: store.list(),
        lambda: store.register(memoryview(bytearray(9))),
        lambda: open_store(sys.argv[1]),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except StoreError as error:
            refused += "spawn" in str(error) and "process" in str(error)
    store.close()
    print("refused", refused, flush=True)
    sys.exit(7)  # in good order: Python ends, and the library's own handlers would crash
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
data = bytearray(5)
assert store.get([Span("forked", 0, 5, [memoryview(data)])]).ok and data == b"bytes"
again = open_store(sys.argv[1])
again.close()
store.close()
print("well")
"""


@served
def test_a_forked_child_is_refused_everything_and_ends_as_it_says(cluster: MooncakeCluster) -> None:
    done = run(FORK, cluster.url(admin=cluster.admin))
    assert done.stdout == "refused 7\nchild 7\nwell\n", done.stderr[-2000:]
    assert done.returncode == 0


@served
def test_several_stores_of_one_process_share_registered_memory(cluster: MooncakeCluster) -> None:
    arena = memoryview(bytearray(1 << 20))
    stores = [open_store(cluster.url()) for _ in range(3)]
    for i, store in enumerate(stores):
        store.register(arena)  # type: ignore[attr-defined]
        assert store.put([Item(f"shared{i}", [arena[: 100_000 + i]])]).ok
    stores[0].close()
    assert list(stores[1].stat([f"shared{i}" for i in range(3)])) == [100_000, 100_001, 100_002]
    for store in stores[1:]:
        store.close()


LEAK = """
import gc, os, sys
from unikv import open_store
from unikv.store import Item, Span
def held():
    pages = int(open("/proc/self/statm").read().split()[1])
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), pages >> 8
found = []
for turn in range(10):
    store = open_store(sys.argv[1])
    data = bytearray(3_000_000)
    assert store.put([Item("leak", [data])], replace=True).ok
    assert store.get([Span("leak", 0, 3_000_000, [memoryview(data)])]).ok
    store.close()
    del store, data
    gc.collect()
    found.append(held())
print(found)
assert found[3][:2] == found[9][:2]  # threads and descriptors
assert found[9][2] - found[3][2] < 30  # MiB: each client holds more
"""


@served
@pytest.mark.slow
def test_a_closed_store_leaves_nothing_behind(cluster: MooncakeCluster) -> None:
    done = run(LEAK, cluster.url())
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


# What the library is told, and what it lacks


def test_waits_are_bounded_where_nobody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BOUNDS:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    mooncake_open._bound(None)
    assert {name: os.environ[name] for name in BOUNDS} == BOUNDS
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "777")
    mooncake_open._bound(None)
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "777"
    mooncake_open._bound(40)
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "40000"
    assert os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] == "4"
    assert os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] == "4"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "unikv.backends.mooncake_library", raising=False)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    monkeypatch.setitem(sys.modules, "mooncake", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'unikv\[mooncake\]'"):
        open_store(f"mooncake://127.0.0.1:{free_port()}")


def test_a_library_of_the_system_that_is_missing_is_named() -> None:
    cause = ImportError("libibverbs.so.1: cannot open shared object file: No such file")
    error = mooncake_open._missing(cause)
    assert "libibverbs.so.1" in str(error)
    assert "libibverbs1, libnuma1 and libcurl4" in str(error)


@served
def test_a_library_that_is_too_old_is_refused(
    cluster: MooncakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_mooncake()
    from unikv.backends import mooncake_library

    monkeypatch.setattr(mooncake_library, "new_client", object)
    with pytest.raises(StoreError, match=r"has no batch_put_session_start.*want 0\.3\.13"):
        open_store(cluster.url())


def test_a_store_that_gets_no_memory_leaves_no_client_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = FakeNative()
    native.say("register_buffer", [-1])
    monkeypatch.setattr(mooncake, "open_client", lambda _: native)
    monkeypatch.setattr(mooncake, "close_client", FakeNative.close)
    with pytest.raises(StoreError, match="register 67108864 bytes"):
        open_store("mooncake://127.0.0.1:1")
    assert native.closed == 1

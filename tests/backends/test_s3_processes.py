"""S3Store in processes that fork, and in ones that end while a server keeps silent."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.servers.s3_hostile import Server, hostile, stalls

OPEN = """
import os, sys, time
from threading import Thread
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Span

def read(store, key):
    data = bytearray(4)
    return list(map(int, store.get([Span(key, 0, 4, [memoryview(data)])]).codes)), bytes(data)

def in_child(call):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(call())
        except StoreError as error:
            said = f"StoreError: {error}"
        os.write(theirs, said.encode())
        os.close(theirs)
        sys.exit(0)  # with all that an interpreter does at its end
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return said

url = sys.argv[1]
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with hostile() as server:
        server.objects.update({f"p/k{i}": b"data" for i in range(20)})
        yield server


def run(server: Server, script: str, timeout: float = 20) -> str:
    """Run a script in another process; return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN + script, server.address.url("p", timeout=5)],
        env={**os.environ, **server.address.environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    return done.stdout


def test_a_forked_child_refuses_what_would_hang(server: Server) -> None:
    """An old store, one opened before and not used, a new one: all refuse, and the parent works."""
    said = run(
        server,
        """
store, unused = open_store(url), open_store(url)
keys = [f"k{i}" for i in range(20)]
assert store.stat(keys) == [4] * 20  # its threads run
calls = {
    "get": lambda: read(store, "k0"),
    "put": lambda: store.put([Item("k", [b"x"])]),
    "stat": lambda: store.stat(["k0"]),
    "delete": lambda: store.delete(["k0"]),
    "list": lambda: list(store.list()),
    "unused": lambda: read(unused, "k0"),
    "new": lambda: open_store(url),
}
for name, call in calls.items():
    print(name, in_child(call)[:60])
    assert store.stat(keys) == [4] * 20
print(in_child(store.close))
assert store.stat(keys) == [4] * 20
print(read(unused, "k0"), in_child(lambda: in_child(lambda: read(store, "k0")))[:60])
""",
    )
    refusal = "StoreError: S3 stores cannot be used in this process: it was forked from"
    names = ["get", "put", "stat", "delete", "list", "unused", "new"]
    assert said.splitlines()[:-2] == [f"{name} {refusal[:60]}" for name in names]
    assert said.splitlines()[-2:] == ["None", f"([0], b'data') {refusal[:60]}"]


def test_a_store_that_was_not_used_before_the_fork_works_on_both_sides(server: Server) -> None:
    said = run(
        server,
        """
store = open_store(url)
keys = [f"k{i}" for i in range(20)]
print(in_child(lambda: (store.stat(keys) == [4] * 20, read(store, "k0"))))
print(store.stat(keys) == [4] * 20, read(store, "k0"))
""",
    )
    assert said.splitlines() == ["(True, ([0], b'data'))", "True ([0], b'data')"]


@pytest.mark.parametrize("closed", ["", "store.close()"], ids=["open", "closed"])
def test_a_silent_server_does_not_hold_up_the_end_of_a_process(server: Server, closed: str) -> None:
    server.faults["GET"] = stalls
    start = time.monotonic()
    run(
        server,
        f"""
store = open_store(url)
spans = [Span(f"k{{i}}", 0, 4, [memoryview(bytearray(4))]) for i in range(20)]
Thread(target=store.get, args=[spans], daemon=True).start()
time.sleep(0.3)
{closed}
""",
    )
    assert time.monotonic() - start < 4  # the request itself may take 5


def test_a_store_that_is_forgotten_takes_its_threads_along(server: Server) -> None:
    said = run(
        server,
        """
import gc, threading
def threads():
    return sum(thread.name == "unikv-s3" for thread in threading.enumerate())
store = open_store(url)
store.stat([f"k{i}" for i in range(20)])
print(threads())
store.stat([f"k{i}" for i in range(20)])
print(threads())
store.close()
store = open_store(url + "&threads=3")
store.stat([f"k{i}" for i in range(20)])
time.sleep(0.2)
print(threads())
del store
gc.collect()
time.sleep(0.2)
print(threads())
""",
    )
    assert said.split() == ["15", "15", "2", "0"]


def test_a_put_copies_no_buffer(server: Server) -> None:
    """64 MiB in 64 buffers leave with far less memory beside them."""
    said = run(
        server,
        """
from pathlib import Path
def peak():
    [line] = [w for w in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in w]
    return int(line.split()[1]) >> 10
MIB = 1 << 20
data = memoryview(bytearray(b"x") * (64 * MIB))
store = open_store(url)
store.put([Item("small", [b"x"])])
before = peak()
assert store.put([Item("large", [data[i * MIB :][:MIB] for i in range(64)])], replace=True).ok
print(peak() - before)
""",
    )
    assert int(said) < 16
    assert len(server.objects["p/large"]) == 64 << 20

"""Forks while threads are in the middle of calls: neither side hangs or reads the other's bytes."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer, valkey_binary

pytestmark = pytest.mark.redis

FORKS = """
import os, signal, sys, threading
from unikv.registry import open_store
from unikv.store import Item, Span
from unikv.testing_data import content, page_key

store, keys = open_store(sys.argv[1]), [page_key(i) for i in range(20)]
assert store.put([Item(key, [content(key, 30_000)]) for key in keys]).ok

def right():
    data = [bytearray(30_000) for _ in keys]
    spans = [Span(key, 0, 30_000, [memoryview(d)]) for key, d in zip(keys, data)]
    return store.get(spans).ok and all(d == content(k, 30_000) for k, d in zip(keys, data))

done, seen = threading.Event(), []

def work():
    while not done.is_set():
        seen.append(right())

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for turn in range(15):
    pid = os.fork()
    if not pid:
        signal.alarm(15)
        good = right() and right()
        store.close()
        os._exit(0 if good else 7)
    assert os.waitpid(pid, 0)[1] == 0, turn
done.set()
for thread in threads:
    thread.join()
assert seen and all(seen), seen
assert right()
print("well")
"""


@pytest.fixture(scope="module", params=["server", "socket", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fork")
    if request.param == "cluster":
        with RedisCluster(valkey_binary(), folder) as cluster:
            yield cluster.url
        return
    with RedisServer(valkey_binary(), folder) as server:
        yield server.url if request.param == "server" else f"unix://{server.unix}"


def test_a_child_makes_connections_of_its_own(url: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, url],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (found.stdout, found.stderr) == ("well\n", "")

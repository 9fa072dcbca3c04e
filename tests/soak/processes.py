"""Processes: what /proc says of the processes of one soak. It starts none."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TOKEN = "UNIKV_SOAK"
"""Environment variable that tells a soak's processes from all others: its folder."""


class Size(NamedTuple):
    """What a process holds."""

    rss_mb: float
    descriptors: int
    threads: int
    children: int


class Process(NamedTuple):
    """One process; its start tells it from a later one of the same number."""

    pid: int
    started: str
    parent: int
    command: str

    @property
    def role(self) -> str:
        """What it does: worker, io, host or evictor."""
        if "file_evict_loop" in self.command:
            return "evictor"
        if "unikv.io_process" in self.command:
            return "host" if " listen " in self.command else "io"
        return "worker"


def find(token: str) -> list[Process]:
    """Return the live processes of a soak, without its parent."""
    found, mark = [], f"{TOKEN}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            state, parent, *rest = _stat(folder)
            if state in "ZX" or int(folder.name) == os.getpid():
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            found.append(Process(int(folder.name), rest[17], int(parent), command))
    return found


def is_alive(process: Process) -> bool:
    """Return whether it is still that process, and runs."""
    with suppress(OSError):
        state, _, *rest = _stat(Path(f"/proc/{process.pid}"))
        return state not in "ZX" and rest[17] == process.started
    return False


def beneath(pid: int, processes: list[Process]) -> list[Process]:
    """Return the children of a process, and theirs."""
    found = [process for process in processes if process.parent == pid]
    return [one for child in found for one in (child, *beneath(child.pid, processes))]


def measure(pid: int, processes: list[Process]) -> Size | None:
    """Return what a process holds, None if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text().splitlines()
        rss_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return Size(
            rss_kb / 1024,
            len(list((folder / "fd").iterdir())),
            len(list((folder / "task").iterdir())),
            sum(process.parent == pid for process in processes),
        )
    except (OSError, StopIteration):  # a zombie has no memory
        return None


def kill(process: Process) -> bool:
    """Kill a process unless it is gone; return whether it was there."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            return True
    return False


def _stat(folder: Path) -> list[str]:
    """Return state, parent and what follows of a process."""
    return (folder / "stat").read_text().rpartition(")")[2].split()

"""IoSocket: the path where all clients of a host meet one I/O process. It knows no store.

Beside the socket lies a lock, and whoever changes what is at the path holds it: a client that joins
or starts the process, and the process as it ends. So nobody connects to a process that is about to
end, and socket and lock can go with it.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import TypeAlias

from unikv.errors import SpecError, StoreError

PATH_BYTES = 107
"""Bytes that the path of a socket may have, see unix(7)."""

LINE = 64
"""Clients that may wait to be let in."""

PAUSE_S = 0.005
"""How often it is tried again what somebody else is in the way of."""

Patience: TypeAlias = Callable[[], bool]
"""Whether to go on waiting."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid; see unix(7)


def join(path: str, start: Callable[[socket.socket], object], patience: Patience) -> socket.socket:
    """Connect to the I/O process at a path; have one started if there is none.

    Args:
        path: of the socket.
        start: is given a listening socket, and starts a process that serves those who connect to
            it. It need not wait for the process: whoever connects stands in line meanwhile.
        patience: asked while somebody else is in the way.

    Raises:
        SpecError: a path that cannot be used.
        StoreError: the lock was not to be had, or the line was full, when patience ended.
    """
    if len(os.fsencode(path)) > PATH_BYTES:
        raise SpecError(
            f"io='host:{path}': a path of {len(os.fsencode(path))} bytes: want at most {PATH_BYTES}"
        )
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(path, patience):
            try:
                _enter(path, end, start, patience)
            except BaseException:
                Path(_lock_of(path)).unlink(missing_ok=True)
                raise
    except TimeoutError as error:
        end.close()
        raise StoreError(f"io='host:{path}': {error}") from error
    except StoreError:  # no process could be started
        end.close()
        raise
    except OSError as error:
        end.close()
        raise SpecError(
            f"io='host:{path}': {error.strerror or error}; want the path of a socket in a folder "
            "that this user can write to"
        ) from error
    except BaseException:
        end.close()
        raise
    return end


def leave(path: str, ours: os.stat_result | None, anybody: Callable[[], bool]) -> bool:
    """Remove a process's socket and its lock, unless somebody came meanwhile or is on the way.

    Args:
        path: of the socket.
        ours: what was at the path when the process began to listen; anything else is left alone.
        anybody: tells whether somebody stands in line.
    """
    try:
        with _locked(path, lambda: False):
            if anybody():
                return False
            if _is_at(path, ours):
                Path(path).unlink()
            Path(_lock_of(path)).unlink(missing_ok=True)
    except TimeoutError:
        return False
    except OSError:  # the folder is gone, or no longer ours: nobody comes in by it, either
        return not anybody()
    return True


def user_of(end: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a socket."""
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _enter(
    path: str,
    end: socket.socket,
    start: Callable[[socket.socket], object],
    patience: Patience,
) -> None:
    """Connect, with the lock held."""
    place = Path(path)
    end.settimeout(0)  # where the line is full, connect says so at once
    with suppress(FileNotFoundError, ConnectionRefusedError):
        _insist(partial(end.connect, path), patience, "the I/O process there lets nobody in")
        if user_of(end)[1] != os.getuid():
            raise PermissionError(errno.EPERM, "another user listens there")
        return
    if place.exists() and not place.is_socket():
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    place.unlink(missing_ok=True)  # of a process that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        place.chmod(0o600)
        listener.listen(LINE)
        start(listener)
        end.connect(path)


@contextmanager
def _locked(path: str, patience: Patience) -> Iterator[None]:
    """Hold the lock of a path; raises `TimeoutError` where patience ends before."""
    fd = _lock(_lock_of(path), patience)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile holds it open
        os.close(fd)


def _lock(path: str, patience: Patience) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            take = partial(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _insist(take, patience, f"another client holds {path} and does not let go of it")
            if _is_at(path, os.fstat(fd)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # whoever held it before has removed it: it keeps nobody out


def _insist(attempt: Callable[[], object], patience: Patience, otherwise: str) -> None:
    """Try until nobody is in the way; raises `TimeoutError` where patience ends before."""
    while True:
        with suppress(BlockingIOError):
            attempt()
            return
        if not patience():
            raise TimeoutError(otherwise)
        sleep(PAUSE_S)


def _is_at(path: str, what: os.stat_result | None) -> bool:
    try:
        return what is not None and os.path.samestat(what, os.stat(path, follow_symlinks=False))  # noqa: PTH116 - as that
    except FileNotFoundError:
        return False


def _lock_of(path: str) -> str:
    return f"{path}.lock"

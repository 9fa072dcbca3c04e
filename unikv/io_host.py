"""IoHost: a client's side of its I/O process: starts it, and again when it died. It has no pool."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from weakref import WeakSet

from unikv.arena import Arena
from unikv.errors import SpecError, StoreError
from unikv.events import Teller
from unikv.io_process import send_with
from unikv.memory import PAGE, reserve
from unikv.meters import Meters
from unikv.orders import Answer, Order, refuse
from unikv.store import Opener
from unikv.wire import VERSION, Link, read_answer, write_order

START_S = 30.0
"""Seconds that a new I/O process may take to open the store."""

MOST_STARTS = 3
"""Starts in `PAUSE_S` seconds; more fail at once, as where the store's client kills its process."""

PAUSE_S = 5.0
DIED = "the I/O process died"
STARTING = "the I/O process has not opened the store yet"


class ProcessWorker:
    """A worker that is a thread of an I/O process, at the other end of a socket."""

    def __init__(
        self, end: socket.socket, words: memoryview, number: int, failed: Callable[[], None]
    ) -> None:
        self.lost = False
        self.busy = False
        """Whether it has an order whose answer was not taken yet."""
        self._failed = failed  # called for an order that is lost with the process
        self._link = Link(end)
        self._words = words  # u64, how many orders each worker has ended; written by the process
        self._number = number
        self._count = 0
        self._order: Order | None = None

    def begin(self, order: Order, until: float) -> None:
        """Start an order; see `unikv.crew.Worker.begin`."""
        self._count += 1
        self._order, self.busy = order, True
        try:
            left = max(0.001, until - monotonic())
            self._link.send([self._count, until, write_order(order)], left)
        except OSError:
            self.busy = False
            self.close()

    def done(self) -> bool:
        """Tell whether the order has ended, from shared memory."""
        return self.lost or bool(self._words[self._number] >= self._count)

    def wait(self, seconds: float) -> Answer | None:
        """Return the order's answer; see `unikv.crew.Worker.wait`."""
        if not self.lost:
            try:
                message = self._link.receive(max(0.0, seconds))
                answer = None if message is None else read_answer(message)
            except OSError:
                self.close()
            else:
                self.busy = self.busy and answer is None
                return answer
        assert self._order is not None
        if self.busy:
            self.busy = False
            self._failed()
        return refuse(self._order, DIED, outage=False)

    def close(self) -> None:
        """Let its thread end."""
        # A socket that the other end closed says that every thread of the process is gone, and so
        # is its I/O; one that took no message in time has not begun the order.
        self.lost = True
        self._link.close()
        self._words = memoryview(b"")


class IoHost:
    """Hires workers of an I/O process, started at once and anew when it died.

    Args:
        opener: how the process opens the store.
        arena: memory that both share.
        socket_path: where a process for all of a host listens; None for one of this client's own.
        meters: where restarts are counted.
        teller: who is told of starts and deaths.

    Raises:
        SpecError: a socket path that cannot be used.
        StoreError: the process cannot be started.
    """

    def __init__(
        self,
        opener: Opener,
        arena: Arena,
        socket_path: str | None,
        meters: Meters,
        teller: Teller,
    ) -> None:
        place = [opener.module, opener.function, list(opener.arguments)]
        self._hello = [VERSION, place, sys.path, arena.size]
        self._arena = arena
        self._path = socket_path
        self._meters = meters
        self._teller = teller
        self._lock = Lock()
        self._words_fd, view = reserve(PAGE)
        self._words = memoryview(view).cast("Q")
        self._workers: WeakSet[ProcessWorker] = WeakSet()
        self._starts: list[float] = []
        self._restarts = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._greeting: Link | None = None  # until the process has said that the store is open
        self._numbers = 0
        self._failed = 0  # orders lost with the process, told when it is buried
        self._refused = ""  # why a process could not open the store, last
        self._closed = False
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def hire(self, seconds: float) -> ProcessWorker:
        """Return a worker; wait ``seconds`` at most for a process that is starting.

        Raises:
            StoreError: the process cannot be started, has not opened the store yet, or cannot.
        """
        until = monotonic() + min(seconds, START_S)
        if not self._lock.acquire(timeout=max(0.0, until - monotonic())):
            raise StoreError(STARTING)
        try:
            for _ in range(2):  # it may have died since it was last asked
                if self._closed:
                    raise StoreError("this client is closed")
                if self._control is None:
                    self._start()
                try:
                    return self._hire(until)
                except StoreError:
                    raise
                except OSError:
                    self._bury()
            raise StoreError(DIED)
        except SpecError as error:
            raise StoreError(f"{DIED}, and another cannot be started: {error}") from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process, or one's part of it; nothing is waited for but its end."""
        self._closed = True
        if (control := self._control) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # whoever waits for a greeting goes on
        with self._lock:
            self._end()
            if self._words_fd >= 0:
                os.close(self._words_fd)
                self._words_fd = -1
                self._words = memoryview(b"")

    def _count_failed(self) -> None:
        self._failed += 1

    def _hire(self, until: float) -> ProcessWorker:
        assert self._control is not None
        if self._greeting is not None:
            said = self._greeting.receive(max(0.0, until - monotonic()))
            if said is None:
                raise StoreError(STARTING)
            if said[0] is not None:
                self._end()
                self._refused = f"the I/O process cannot open the store: {said[0]}"
                raise StoreError(self._refused)
            self._greeting, self._refused = None, ""
        ours, theirs = socket.socketpair()
        with theirs:
            number = self._numbers % (PAGE // 8)
            self._words[number] = 0
            try:
                send_with(self._control, [number], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        self._numbers += 1
        worker = ProcessWorker(ours, self._words, number, self._count_failed)
        self._workers.add(worker)
        return worker

    def _start(self) -> None:
        """Start a process, or join the host's, and send it the hello."""
        now = monotonic()
        self._starts = [at for at in self._starts if now - at < PAUSE_S]
        if len(self._starts) >= MOST_STARTS:
            died = f"the I/O process died {len(self._starts)} times in {PAUSE_S} s"
            raise StoreError(self._refused or died)
        self._starts.append(now)
        try:
            self._greet()
        except SpecError:
            raise
        except OSError as error:  # the last guest of a host's process may just have left it
            self._end()
            raise StoreError(f"{DIED} as it started ({error.strerror or error})") from error
        self._restarts += 1
        if self._restarts:
            self._meters.count("unikv_io_process_restarts_total")
        pid = self._process.pid if self._process is not None else 0
        self._teller.tell("io_process_started", pid=pid, restarts=self._restarts)

    def _greet(self) -> None:
        if self._path is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = _spawn("control", theirs)
        else:
            self._control = _join(Path(self._path))
        self._greeting = Link(self._control)
        send_with(self._control, self._hello, [self._arena.fd, self._words_fd])

    def _bury(self) -> None:
        """Note that the process is gone; its I/O is, too."""
        tickets = self._failed + sum(worker.busy for worker in self._workers)
        self._failed = 0
        process = self._process
        self._end()
        pid, code = (process.pid, process.returncode) if process is not None else (0, 0)
        self._teller.tell("io_process_died", pid=pid, exit_code=code, tickets=tickets)

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _spawn(mode: str, end: socket.socket) -> "subprocess.Popen[bytes]":
    """Start an I/O process that inherits a socket, and nothing else; it runs this same code."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from unikv.io_process import main; main()"
    command = [sys.executable, "-P", "-c", start, "unikv.io_process", mode, str(end.fileno())]
    return subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs this
        command, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
    )


def _join(path: Path) -> socket.socket:
    """Connect to the I/O process of this host; start it if there is none."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with Path(f"{path}.lock").open("a") as lock:  # two that come at once start one
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError, ConnectionRefusedError):
                end.connect(str(path))
                _check_peer(end, path)
                return end
            if path.exists() and not path.is_socket():
                raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                path.chmod(0o600)
                listener.listen(64)
                _spawn("listen", listener).wait()
            end.connect(str(path))
            return end
    except OSError as error:
        end.close()
        raise SpecError(
            f"io='host:{path}': {error.strerror or error}; want the path of a socket in a folder "
            "that this user can write to"
        ) from error


def _check_peer(end: socket.socket, path: Path) -> None:
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", raw)[1] != os.getuid():
        raise PermissionError(1, f"another user listens at {path}")

"""IoHost: a client's side of its I/O process: starts it, and again when it died. It has no pool."""

import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from weakref import WeakSet

from unikv.arena import Arena
from unikv.errors import SpecError, StoreError
from unikv.events import Teller
from unikv.interpreter import find_interpreter, search_path
from unikv.io_process import send_with
from unikv.io_socket import join
from unikv.memory import PAGE, reserve
from unikv.meters import Meters
from unikv.orders import Answer, Order, refuse
from unikv.store import Opener
from unikv.wire import VERSION, Link, read_answer, write_order

START_S = 30.0
"""Seconds that a new I/O process may take to open the store, and that joining one may take."""

SAY_S = 0.1
"""Seconds behind its time in which a hire that came to nothing has to say why."""

MOST_STARTS = 3
"""Starts in `PAUSE_S` seconds; more fail at once, as where the store's client kills its process."""

PAUSE_S = 5.0

END_S = 2.0
"""Seconds for which a client that leaves waits for its process to end."""

LINGER_S = 35.0
"""Seconds that the process has to end by itself: its store may have to write back first."""

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
        self.number = number
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

    def interrupt(self, order: Order) -> None:
        """Hang up; see `unikv.crew.Worker.interrupt`."""
        self._order, self.busy, self._link.broken = order, False, True

    def done(self) -> bool:
        """Tell whether the order has ended, from shared memory."""
        return self.lost or bool(self._words[self.number] >= self._count)

    def wait(self, seconds: float) -> Answer | None:
        """Return the order's answer; see `unikv.crew.Worker.wait`."""
        if self._link.broken and not self.lost:
            # The order may be under way. Its thread ends behind it, once nothing more can come.
            if not self._link.hang_up(seconds):
                return None
            self.close()
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
        # A socket that the other end closed says that its thread is out of the store, or that all
        # of the process is gone; one that took no message in time has not begun the order.
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
        StoreError: the process cannot be started, or joined in `START_S`.
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
        self._hello = [VERSION, place, search_path(), arena.size]
        self._arena = arena
        self._path = socket_path
        self._meters = meters
        self._teller = teller
        self._lock = Lock()
        self._words_fd, view = reserve(PAGE)
        self._words = memoryview(view).cast("Q")
        self._workers: WeakSet[ProcessWorker] = WeakSet()
        self._starts: list[float] = []
        self._news: deque[tuple[str, dict[str, int]]] = deque()  # that nobody was told of yet
        self._restarts = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._starter: subprocess.Popen[bytes] | None = None  # of the host's; it ends at once
        self._control: socket.socket | None = None
        self._greeting: Link | None = None  # until the process has said that the store is open
        self._numbers = 0
        self._failed = 0  # orders lost with the process, told when it is buried
        self._refused = ""  # why a process could not open the store, last
        self._closed = False
        try:
            self._start(monotonic() + START_S)
            self._tell_news()
        except BaseException:
            self.close()
            raise

    def hire(self, seconds: float) -> ProcessWorker:
        """Return a worker; wait ``seconds`` at most for a process that is starting.

        Raises:
            StoreError: the process cannot be started, has not opened the store yet, or cannot.
        """
        # By a thread of its own, which no signal interrupts: half a message to the process would
        # be its end, and a lock that nobody gives back that of the client.
        seconds = min(seconds, START_S)
        hired: Future[ProcessWorker] = Future()
        args = (monotonic() + seconds, hired)
        Thread(target=self._hire_into, args=args, name="unikv-hiring", daemon=True).start()
        try:
            return hired.result(seconds + SAY_S)
        except StoreError:
            raise
        except BaseException as error:
            hired.add_done_callback(_send_home)
            if isinstance(error, TimeoutError):
                raise StoreError(STARTING) from None
            raise

    def _hire_into(self, until: float, hired: "Future[ProcessWorker]") -> None:
        try:
            hired.set_result(self._hire_by(until))
        except BaseException as error:  # noqa: BLE001 - the caller's, whatever it is
            hired.set_exception(error)
        self._tell_news()

    def _hire_by(self, until: float) -> ProcessWorker:
        if not self._lock.acquire(timeout=max(0.0, until - monotonic())):
            raise StoreError(STARTING)
        try:
            for _ in range(2):  # it may have died since it was last asked
                if self._closed:
                    raise StoreError("this client is closed")
                if self._control is None:
                    self._start(until)
                try:
                    return self._hire(until)
                except StoreError:
                    raise
                except OSError:
                    if self._closed:
                        raise StoreError("this client is closed") from None
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
            if self._starter is not None:
                _see_end(self._starter)
                self._starter = None
        self._control.settimeout(max(0.001, until - monotonic()))  # it may be stopped
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptors: that says nothing of the process
            raise StoreError(f"no worker of the I/O process: {error.strerror}") from error
        with theirs:
            number = self._free_number()
            self._words[number] = 0
            try:
                send_with(self._control, [number], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        worker = ProcessWorker(ours, self._words, number, self._count_failed)
        self._workers.add(worker)
        return worker

    def _free_number(self) -> int:
        """Return a number that no worker has who may still count there."""
        taken = {worker.number for worker in self._workers if not worker.lost}
        while True:
            self._numbers = (self._numbers + 1) % (PAGE // 8)
            if self._numbers not in taken:
                return self._numbers

    def _start(self, until: float) -> None:
        """Start a process, or join the host's by ``until``, and send it the hello."""
        now = monotonic()
        self._starts = [at for at in self._starts if now - at < PAUSE_S]
        if len(self._starts) >= MOST_STARTS:
            died = f"the I/O process died {len(self._starts)} times in {PAUSE_S} s"
            raise StoreError(self._refused or died)
        self._starts.append(now)
        try:
            self._greet(until)
        except (SpecError, StoreError):
            self._starts.pop()  # nothing was started
            self._end()
            raise
        except OSError as error:
            self._end()
            raise StoreError(f"{DIED} as it started ({error.strerror or error})") from error
        self._restarts += 1
        if self._restarts:
            self._meters.count("unikv_io_process_restarts_total")
        pid = self._process.pid if self._process is not None else 0
        self._news.append(("io_process_started", {"pid": pid, "restarts": self._restarts}))

    def _greet(self, until: float) -> None:
        if self._path is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = _spawn("control", theirs)
        else:
            self._control = join(
                self._path, self._open_house, lambda: not self._closed and monotonic() < until
            )
            self._control.settimeout(max(0.001, until - monotonic()))
        self._greeting = Link(self._control)
        send_with(self._control, self._hello, [self._arena.fd, self._words_fd])

    def _open_house(self, listener: socket.socket) -> None:
        self._starter = _spawn("listen", listener)

    def _bury(self) -> None:
        """Note that the process is gone; its I/O is, too."""
        tickets = self._failed + sum(worker.busy for worker in self._workers)
        self._failed = 0
        process = self._process
        self._end()
        pid, code = (process.pid, process.returncode) if process is not None else (0, 0)
        fields = {"pid": pid, "exit_code": code, "tickets": tickets}
        self._news.append(("io_process_died", fields))

    def _tell_news(self) -> None:
        """Tell what happened, with no lock held: who hears it may call the client, or close it."""
        while self._news:
            kind, fields = self._news.popleft()
            self._teller.tell(kind, **fields)

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        for process in filter(None, (self._process, self._starter)):
            _see_end(process)
        self._process = self._starter = None


def _spawn(mode: str, end: socket.socket) -> "subprocess.Popen[bytes]":
    """Start an I/O process that inherits a socket, and nothing else; it runs this same code."""
    path = search_path()
    start = f"import sys; sys.path[:] = {path!r}; from unikv.io_house import main; main()"
    command = [find_interpreter(), "-P", "-c", start, "unikv.io_process", mode, str(end.fileno())]
    # Whoever waits for the end of a client's output must not wait for the host's process as well.
    out = subprocess.DEVNULL if mode == "listen" else None
    try:
        return subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs this
            command,
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    except OSError as error:
        raise StoreError(f"no I/O process can be started: {error.strerror or error}") from error


def _send_home(hired: "Future[ProcessWorker]") -> None:
    """Let a worker go whom nobody waits for any more."""
    if hired.exception() is None:
        hired.result().close()


def _see_end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a process that has nothing left to do but to close its store.

    One that takes longer is seen out by a thread. One that is stopped never ends by itself.
    """
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        patience = 0.0 if _stopped(process.pid) else LINGER_S
        name = "unikv-lingering"
        last = Thread(target=_wait_or_kill, args=(process, patience), name=name, daemon=True)
        last.start()
        if not patience:
            last.join()


def _wait_or_kill(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stopped(pid: int) -> bool:
    """Tell whether a child is stopped by a signal; see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except FileNotFoundError:
        return False

"""IoProcess: the process in which stores are called for clients, on memory that they share.

It serves those who hold the other end of its sockets, and ends when the last of them is gone,
however that went. ``python -m unikv.io_process control FD`` serves one client by a socket that it
inherits; ``listen FD`` serves all that connect, of the same user. It knows no pool.
"""

import json
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from threading import Lock, Thread
from typing import TYPE_CHECKING, cast

from unikv.memory import PAGE, attach
from unikv.orders import refuse
from unikv.performing import perform
from unikv.wire import VERSION, Link, Message, Passages, read_order, write_answer

if TYPE_CHECKING:
    from unikv.store import Store

HELLO_S = 5.0
"""Seconds in which a client that began a message has to end it."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid; see unix(7)
_MOST_FDS = 2


class _Guest:
    """One client: its store, its memory, and a thread for each of its workers."""

    def __init__(self, control: socket.socket, hello: Message, fds: Sequence[int]) -> None:
        version, opener, path, arena_bytes = hello
        self._version = version
        sys.path += [entry for entry in path if entry not in sys.path]  # where openers lie
        arena, words = fds
        try:
            self._memory = memoryview(attach(arena, arena_bytes))
            self._words = memoryview(attach(words, PAGE)).cast("Q")
        finally:
            os.close(arena)
            os.close(words)
        self._control = control
        self._passages = Passages()
        self._ends: list[socket.socket] = []
        self._lock = Lock()
        self._threads = 2  # the one that opens the store, and the house's until the guest leaves
        self._store: Store | None = None
        Thread(target=self._open, args=opener, name="opener", daemon=True).start()

    def _open(self, module: str, function: str, arguments: Sequence[object]) -> None:
        """Open the store and say how it went; other guests need not wait for a slow one."""
        said: Message = [None]
        try:
            if self._version != VERSION:
                raise RuntimeError(  # noqa: TRY301 - told like all that keeps a store from opening
                    f"it speaks version {VERSION} of its messages, the client {self._version}: "
                    "want all clients of an I/O process from one version of unikv"
                )
            store = cast("Store", getattr(import_module(module), function)(*arguments))
            if (register := getattr(store, "register", None)) is not None:
                register(self._memory)
            self._store = store
        except Exception as error:  # noqa: BLE001 - whatever keeps a store from opening is told
            said = [f"{type(error).__name__}: {error!s:.400}"]
        with suppress(OSError):  # the guest may have left meanwhile
            Link(self._control).send(said)
        self._end_one()

    def hire(self, number: int, end: socket.socket) -> None:
        """Serve one worker of the client."""
        with self._lock:
            self._ends.append(end)
            self._threads += 1
        Thread(target=self._serve, args=(number, end), name=f"worker-{number}", daemon=True).start()

    def leave(self) -> None:
        """The client is gone: end its threads; the store is closed behind the last one."""
        with self._lock:
            ends = list(self._ends)
        for end in ends:  # a fork of the client may still hold the others
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._end_one()

    def _serve(self, number: int, end: socket.socket) -> None:
        link = Link(end)
        try:
            while (message := link.receive()) is not None:
                count, until, order = message
                wanted = read_order(order, self._passages)
                assert self._store is not None  # workers come once it is open
                answer = write_answer(perform(self._store, self._memory, wanted, until))
                self._words[number] = count  # seen by who polls, before the message is read
                try:
                    link.send(answer)
                except (TypeError, ValueError) as error:  # a store's numbers that JSON cannot hold
                    link.send(
                        write_answer(refuse(wanted, f"{type(error).__name__}: {error!s:.99}"))
                    )
        except OSError:
            pass  # the client has gone
        finally:
            with self._lock:
                self._ends.remove(end)
            link.close()
            self._end_one()

    def _end_one(self) -> None:
        with self._lock:
            self._threads -= 1
            last = not self._threads
        if last and self._store is not None:
            with suppress(Exception):  # nobody is left to hear of it
                self._store.close()


class _House:
    """All guests of this process, and what tells of their coming and going."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, socket.socket] = {}  # by descriptor: listener or control
        self._guests: dict[int, _Guest | None] = {}  # by descriptor of the control socket
        self._lives: dict[int, int] = {}  # descriptor of a process: that of its control socket

    def admit(self, control: socket.socket) -> None:
        """Serve whoever is at the other end of a socket."""
        control.settimeout(HELLO_S)
        fd = control.fileno()
        self._watched[fd] = control
        self._guests[fd] = None
        self._poll.register(fd, select.POLLIN)
        pid, uid, _ = _peer(control)
        if uid != os.getuid():
            self._part(fd)
            return
        # Its death shows here even where a fork of it keeps the socket open.
        with suppress(OSError):
            life = os.pidfd_open(pid)
            self._lives[life] = fd
            self._poll.register(life, select.POLLIN)

    def listen(self, listener: socket.socket) -> None:
        """Serve all who connect."""
        listener.settimeout(0)
        self._watched[listener.fileno()] = listener
        self._poll.register(listener.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serve until the last guest is gone."""
        came = False
        while self._guests or not came:
            for fd, _ in self._poll.poll():
                if fd in self._lives:
                    self._part(self._lives[fd])
                elif fd in self._guests:
                    came = True
                    self._hear(fd)
                elif fd in self._watched:
                    with suppress(BlockingIOError):
                        self.admit(self._watched[fd].accept()[0])
                        came = True

    def _hear(self, fd: int) -> None:
        """Take one message of a control socket: first the hello, then a worker each."""
        control = self._watched[fd]
        try:
            fds, message = _receive(control)
        except (OSError, ValueError):
            self._part(fd)
            return
        guest = self._guests[fd]
        if guest is not None:
            guest.hire(int(message[0]), socket.socket(fileno=fds[0]))
            return
        try:
            self._guests[fd] = _Guest(control, message, fds)
        except (OSError, ValueError):
            self._part(fd)

    def _part(self, fd: int) -> None:
        """Let a guest go."""
        control = self._watched.pop(fd, None)
        if control is None:
            return
        self._poll.unregister(fd)
        for life in [life for life, of in self._lives.items() if of == fd]:
            self._poll.unregister(life)
            del self._lives[life]
            os.close(life)
        guest = self._guests.pop(fd)
        if guest is not None:
            guest.leave()
        else:
            control.close()


def send_with(control: socket.socket, message: Message, fds: Sequence[int]) -> None:
    """Send a message to `_House`, descriptors with it; raises `OSError` where it is gone."""
    body = json.dumps(message).encode()
    socket.send_fds(control, [struct.pack("<I", len(body))], fds)
    control.sendall(body)


def _receive(control: socket.socket) -> tuple[list[int], Message]:
    head, fds, _, _ = socket.recv_fds(control, 4, _MOST_FDS)
    if len(head) < 4:
        raise ConnectionResetError("the client has closed")
    (length,) = struct.unpack("<I", head)
    body = bytearray()
    while len(body) < length:
        read = control.recv(length - len(body))
        if not read:
            raise ConnectionResetError("the client has closed")
        body += read
    message: Message = json.loads(body)
    return fds, message


def _peer(control: socket.socket) -> tuple[int, int, int]:
    raw = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


def main() -> None:
    """Serve as the last two arguments say, then end without waiting for what a store still does."""
    mode, fd = sys.argv[-2], int(sys.argv[-1])
    house = _House()
    end = socket.socket(fileno=fd)
    if mode == "listen":
        if os.fork():  # whoever started it must not have to wait for its end
            os._exit(0)
        house.listen(end)
    else:
        house.admit(end)
    house.run()
    os._exit(0)


if __name__ == "__main__":
    main()

"""IoHouse: who comes to an I/O process and who goes. It calls no store.

Its one thread waits for nobody: what has come of a message is kept until the rest of it comes, and
whoever leaves is seen out by a thread of his own. ``python -m unikv.io_house control FD`` serves
one client by a socket that it inherits; ``listen FD`` all who connect, of the same user.
"""

import json
import os
import select
import socket
import struct
import sys
from array import array
from contextlib import suppress
from threading import Thread
from time import monotonic

from unikv.io_process import Guest
from unikv.io_socket import leave, user_of
from unikv.wire import Message

MOST_BYTES = 16 << 20
"""Bytes of a message; whoever begins a longer one is no client of ours."""

ASIDE_S = 0.05
"""How often a house without guests looks whether the one who is on the way has come."""

CLOSING_S = 30.0
"""Seconds that the stores of the last guests have for being closed: one may have to write back."""

_LENGTH = struct.Struct("<I")
_HELLO_FDS = 2  # arena and words
_HIRE_FDS = 1  # our end of a worker's socket


class Visit:
    """A connection: what has come of its next message, and its guest once it said hello."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.guest: Guest | None = None
        self._bytes = bytearray()
        self._fds: list[int] = []

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, None if more of it is still to come.

        A worker's descriptor may be missing, where this process has none left to take it by.

        Raises:
            OSError: it has closed, or is no client.
            ValueError: what it said is no JSON.
        """
        wanted = _HELLO_FDS if self.guest is None else _HIRE_FDS
        while missing := self._missing():
            try:
                data, fds = self._read(missing)
            except BlockingIOError:
                return None
            self._fds += fds
            if not data or len(self._fds) > wanted:
                raise ConnectionResetError("the client has closed, or is none")
            self._bytes += data
        message: Message = json.loads(self._bytes[_LENGTH.size :])
        if len(self._fds) != wanted and self.guest is None:
            raise ConnectionResetError(f"{len(self._fds)} descriptors: want {wanted}")
        fds, self._fds = self._fds, []
        self._bytes.clear()
        return message, fds

    def close(self) -> None:
        """Let the connection go."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self.guest is not None:
            self.guest.leave()
        else:
            self.control.close()

    def _read(self, most: int) -> tuple[bytes, list[int]]:
        """Read what has come, of this message alone: descriptors come with its first byte.

        `socket.recv_fds` would wait: before Python 3.13 it ignores its flags.
        """
        room = socket.CMSG_LEN(_HELLO_FDS * array("i").itemsize)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        data, ancillary, _, _ = self.control.recvmsg(min(most, 1 << 16), room, flags)
        fds = array("i")
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(rights[: len(rights) // fds.itemsize * fds.itemsize])
        return data, fds.tolist()

    def _missing(self) -> int:
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise ConnectionResetError(f"a message of {length} bytes: want at most {MOST_BYTES}")
        return int(length) + _LENGTH.size - len(self._bytes)


class House:
    """All guests of this process, and what tells of their coming and going."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._listener: socket.socket | None = None
        self._ours: os.stat_result | None = None  # what is at the listener's path
        self._visits: dict[int, Visit] = {}  # by descriptor of the control socket
        self._lives: dict[int, int] = {}  # descriptor of a process: that of its control socket
        self._leaving: list[Thread] = []
        self._came = False

    def admit(self, control: socket.socket) -> None:
        """Serve whoever is at the other end of a socket."""
        self._came = True
        pid, uid = user_of(control)
        if uid != os.getuid():
            control.close()
            return
        fd = control.fileno()
        self._visits[fd] = Visit(control)
        self._poll.register(fd, select.POLLIN)
        # Its death shows here even where a fork of it keeps the socket open.
        with suppress(OSError):
            life = os.pidfd_open(pid)
            self._lives[life] = fd
            self._poll.register(life, select.POLLIN)

    def listen(self, listener: socket.socket) -> None:
        """Serve all who connect."""
        listener.settimeout(0)
        self._listener = listener
        with suppress(OSError):  # somebody has removed it already
            self._ours = os.stat(listener.getsockname())  # noqa: PTH116 - for `os.path`
        self._poll.register(listener.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serve until the last guest is gone and nobody is on the way."""
        self._serve()
        self._see_out()

    def _serve(self) -> None:
        while self._visits or not self._came or not self._may_end():
            empty = self._came and not self._visits
            for fd, _ in self._poll.poll(ASIDE_S * 1000 if empty else None):
                if fd in self._lives:
                    self._part(self._lives[fd])
                elif fd in self._visits:
                    self._hear(fd)
                elif self._listener is not None and fd == self._listener.fileno():
                    self._let_in()

    def _may_end(self) -> bool:
        if self._listener is None:
            return True
        return leave(self._listener.getsockname(), self._ours, self._let_in)

    def _let_in(self) -> bool:
        """Let in who stands first in line; tell whether there was anybody."""
        assert self._listener is not None
        try:
            control, _ = self._listener.accept()
        except OSError:
            return False
        self.admit(control)
        return True

    def _hear(self, fd: int) -> None:
        """Take what has come of a message: first the hello, then a worker each."""
        visit = self._visits[fd]
        try:
            if (said := visit.receive()) is None:
                return
            message, fds = said
            if visit.guest is None:
                visit.guest = Guest(visit.control, message, fds)
            elif fds:  # else the kernel has closed it, and the client sees the end of it
                end = socket.socket(fileno=fds[0])  # which is closed with whoever says no number
                visit.guest.hire(int(message[0]), end)
        except Exception:  # noqa: BLE001 - whatever a stranger may say hurts nobody else
            self._part(fd)

    def _part(self, fd: int) -> None:
        """Let a guest go."""
        visit = self._visits.pop(fd)
        self._poll.unregister(fd)
        for life in [life for life, of in self._lives.items() if of == fd]:
            self._poll.unregister(life)
            del self._lives[life]
            os.close(life)
        # Its store is closed by whichever thread ends last, and that may take long.
        leaving = Thread(target=visit.close, name="leaving", daemon=True)
        leaving.start()
        self._leaving = [*(one for one in self._leaving if one.is_alive()), leaving]

    def _see_out(self) -> None:
        until = monotonic() + CLOSING_S
        for thread in self._leaving:
            thread.join(max(0.0, until - monotonic()))


def main() -> None:
    """Serve as the last two arguments say, then end without waiting for what a store still does."""
    mode, fd = sys.argv[-2], int(sys.argv[-1])
    house = House()
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

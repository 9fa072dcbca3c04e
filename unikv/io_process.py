"""IoProcess: what an I/O process does for one client: its store is called, on memory they share.

Who its clients are is told by `unikv.io_house`. It knows no pool.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, cast

from unikv.memory import PAGE, attach
from unikv.orders import refuse
from unikv.performing import perform
from unikv.wire import VERSION, Link, Message, Passages, read_order, write_answer

if TYPE_CHECKING:
    from unikv.store import Store


ENDING_S = 0.3
"""Seconds in which threads of a guest who left have to end; a store may hold one for ever."""


class Guest:
    """One client: its store, its memory, and a thread for each of its workers."""

    def __init__(self, control: socket.socket, hello: Message, fds: Sequence[int]) -> None:
        arena, words = fds
        try:
            version, opener, path, arena_bytes = hello
            self._memory = memoryview(attach(arena, arena_bytes))
            self._words = memoryview(attach(words, PAGE)).cast("Q")
        finally:
            os.close(arena)
            os.close(words)
        self._version = version
        sys.path += [entry for entry in path if entry not in sys.path]  # where openers lie
        self._control = control
        self._passages = Passages()
        self._ends: list[socket.socket] = []
        self._lock = Lock()
        self._left = 2  # threads to end: the one that opens the store, and the one that sees us out
        self._closing = Event()
        self._store: Store | None = None
        opening = Thread(target=self._open, args=opener, name="opener", daemon=True)
        self._threads = [opening]
        opening.start()

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
        """Serve one worker of the client; where no thread can be started, close its socket."""
        name = f"worker-{number}"
        thread = Thread(target=self._serve, args=(number, end), name=name, daemon=True)
        with self._lock:
            self._ends.append(end)
            self._left += 1
        try:
            thread.start()
        except RuntimeError:  # the client sees the end of it; its other workers go on
            with self._lock:
                self._ends.remove(end)
            end.close()
            self._end_one()
        else:
            self._threads.append(thread)

    def leave(self) -> None:
        """The client is gone: end its threads; the store is closed behind the last one.

        Returns once it is closed, or soon where a thread is held by its store.
        """
        with self._lock:
            ends = list(self._ends)
        # A fork of the client may still hold the others. Only what they send is cut off: should
        # the client live, the end of a socket is what tells it that a thread is out of its store,
        # and that nothing more can be written where its order reads to.
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
        self._control.close()
        self._end_one()
        until = monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        if self._closing.is_set():
            for thread in self._threads:
                thread.join()

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
            self._left -= 1
            last = not self._left
        if last and self._store is not None:
            self._closing.set()
            with suppress(Exception):  # nobody is left to hear of it
                self._store.close()


def send_with(control: socket.socket, message: Message, fds: Sequence[int]) -> None:
    """Send a message to the house, descriptors with it; raises `OSError` where it is gone."""
    body = json.dumps(message).encode()
    socket.send_fds(control, [struct.pack("<I", len(body))], fds)
    control.sendall(body)

"""A server that speaks Redis's protocol and answers as a test says: wrong, late, in part, never."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

Answer: TypeAlias = bytes | None
"""What to send; None closes the connection, and `b""` sends nothing for good."""


class FakeRedis:
    """Answers each command with what ``answer`` returns for its words; pings by itself."""

    def __init__(self, answer: Callable[[list[bytes]], Answer]) -> None:
        self.answer = answer
        self.greeting = b"+OK\r\n"
        self.connections = 0
        self.commands: list[list[bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._plugs: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for plug in (self._listener, *self._plugs):
            with suppress(OSError):
                plug.shutdown(socket.SHUT_RDWR)
            plug.close()
        self._thread.join()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?timeout=0.4&connect_timeout=2"

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                plug, _ = self._listener.accept()
            except OSError:
                break
            self.connections += 1
            self._plugs.append(plug)
            threads.append(threading.Thread(target=self._serve, args=[plug], daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, plug: socket.socket) -> None:
        with suppress(OSError):
            for words in commands(plug):
                if words[0] in {b"CLIENT", b"PING"}:
                    reply: Answer = self.greeting
                else:
                    self.commands.append(words)
                    reply = self.answer(words)
                if reply is None:
                    plug.shutdown(socket.SHUT_RDWR)
                    return
                plug.sendall(reply)


def commands(plug: socket.socket) -> Iterator[list[bytes]]:
    """Yield the commands that come in."""
    with plug.makefile("rb") as stream:
        while head := stream.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int(stream.readline()[1:])
                words.append(stream.read(size + 2)[:-2])
            yield words


def bulk(data: bytes) -> bytes:
    """Return a reply of bytes."""
    return b"$%d\r\n%b\r\n" % (len(data), data)

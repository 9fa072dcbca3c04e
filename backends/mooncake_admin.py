"""Admin: the master's HTTP server, which lists keys and tells sizes without a lease. No client."""

import json
import math
import socket
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import quote

from unikv.backends.mooncake_codes import passing
from unikv.errors import StoreError

KEYS_A_QUESTION = 200
"""Keys of one request: they stand in its first line."""

MOST_BYTES = 4 << 20
"""More than the answer to one question can hold."""

_KINDS = (
    ("values", "size_"),
    ("disk_values", "object_size"),
    ("local_disk_values", "object_size"),
    ("nof_values", "size_"),
)


class _Socket(socket.socket):
    """A socket whose reads end at a time, however little each of them waits for."""

    until = math.inf  # `time.monotonic`

    def recv_into(self, *args: Any) -> int:
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(*args)


class _Connection(HTTPConnection):
    """A connection that can be told until when an answer is awaited."""

    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(fileno=self.sock.detach())
        self.sock.settimeout(self.timeout)

    def wait(self, seconds: float) -> None:
        """Let what is sent or read from now on take at most so many seconds."""
        if isinstance(self.sock, _Socket):
            self.sock.settimeout(seconds)
            self.sock.until = monotonic() + seconds


class Admin:
    """Questions to the HTTP server at ``host:port``; safe to ask from several threads."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self.address = f"{host}:{port}"
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._lock = Lock()

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the bytes of the objects that exist, as they are stored.

        Raises:
            StoreError: it does not answer, or not what a Mooncake master does.
        """
        found: dict[str, int] = {}
        for first in range(0, len(keys), KEYS_A_QUESTION):
            some = keys[first : first + KEYS_A_QUESTION]
            body = self._ask(f"/batch_query_keys?keys={quote(','.join(some), safe=',')}")
            try:
                answers = json.loads(body)["data"]
                for key in some:
                    size = _size(answers[key])
                    if size is not None:
                        found[key] = size
            except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                raise StoreError(
                    f"http://{self.address}/batch_query_keys answers what no Mooncake master "
                    f"does: {body[:80]!r}"
                ) from error
        return found

    def names(self) -> Iterator[str]:
        """Stream the names of all objects that can be read, whoever stored them."""
        connection = self._connect()
        try:
            response = self._request(connection, "/get_all_keys")
            while line := response.readline(1 << 16):
                connection.wait(self._timeout_s)  # for the next one
                yield line.decode(errors="replace").removesuffix("\n")
        except (OSError, HTTPException) as error:
            raise self._failure("/get_all_keys", error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connections that are kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, path: str) -> bytes:
        """Return the answer to one question, over a connection that is kept for the next."""
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        for connection in filter(None, (kept, self._connect())):
            try:
                body = self._request(connection, path).read(MOST_BYTES)
            except (OSError, HTTPException) as error:
                connection.close()
                if connection is kept:  # the server closes what was idle for long: once more
                    continue
                raise self._failure(path, error) from error
            with self._lock:
                self._idle.append(connection)
            return body
        raise AssertionError

    def _connect(self) -> _Connection:
        return _Connection(self._host, self._port, timeout=self._timeout_s)

    def _request(self, connection: _Connection, path: str) -> HTTPResponse:
        connection.wait(self._timeout_s)
        connection.request("GET", path)
        connection.wait(self._timeout_s)  # also of one that was connected only now
        response = connection.getresponse()
        if response.status != 200:
            body = response.read(200)
            error = passing(f"HTTP status {response.status}: {body!r}")
            error.retryable = response.status >= 500
            raise error
        return response

    def _failure(self, path: str, error: Exception) -> StoreError:
        name = path.partition("?")[0]
        cause = str(error) or type(error).__name__
        found = passing(f"the master's HTTP server, http://{self.address}{name}: {cause}")
        found.retryable = getattr(error, "retryable", True)
        return found


def _size(answer: dict[str, Any]) -> int | None:
    """Return the size that one key's answer tells, None if there is no such object."""
    if not answer["ok"]:
        return None
    for kind, name in _KINDS:
        if answer.get(kind):
            size = answer[kind][0][name]
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise TypeError(size)
            return size
    return None

"""HostileS3: a small S3 in memory that can be told to misbehave, and how. It checks no signature.

It heeds ranges and If-None-Match, knows one bucket, and writes down what it was asked.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers.s3_server import S3Address, Tls

DATE = "Sun, 29 Nov 2026 00:00:00 GMT"
MIB = 1 << 20


class Request(NamedTuple):
    """One request as it came."""

    verb: str
    target: str
    headers: Mapping[str, str]


class Server(ThreadingHTTPServer):
    """The listening socket and what is shared by its connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, tls: Tls | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = S3Address.on(self.server_address[1], tls)
        if tls:
            self.tls = tls.context()
            self.socket = self.tls.wrap_socket(  # each thread shakes hands with its own client
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: dict[str, Misbehave] = {}  # by verb; GET without a key is LIST
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that broke: most were broken on purpose."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    path_of_key: str
    key: str | None

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size) if size else b""
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        host = self.headers.get("Host", "")
        if host.startswith(f"{self.server.address.bucket}."):  # virtual style
            bucket, key = self.server.address.bucket, unquote(url.path).lstrip("/")
        self.key = key or None
        self.query = parse_qs(url.query)
        with self.server.lock:
            self.server.requests.append(Request(self.command, self.path, dict(self.headers)))
        verb = "LIST" if self.key is None else self.command
        fault = self.server.faults.get(verb)
        if fault is not None:
            self.close_connection = True
            fault(self)
        elif bucket != self.server.address.bucket:
            self.refuse(404, "NoSuchBucket")
        else:
            getattr(self, f"serve_{verb.lower()}")()

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815 - http.server's names

    def serve_get(self) -> None:
        data = self.server.objects.get(str(self.key))
        if data is None:
            self.refuse(404, "NoSuchKey")
            return
        start, stop = self.range(len(data))
        if start >= len(data):
            self.refuse(416, "InvalidRange")
            return
        self.partial(data[start:stop], start, stop, len(data))

    def serve_head(self) -> None:
        data = self.server.objects.get(str(self.key))
        if data is None:
            self.answer(404, {"Content-Length": "0"})
        else:
            self.answer(200, {"Content-Length": str(len(data))})

    def serve_put(self) -> None:
        with self.server.lock:
            held = str(self.key) in self.server.objects
            if not (held and self.headers.get("If-None-Match") == "*"):
                self.server.objects[str(self.key)] = self.body
                held = False
        if held:
            self.refuse(412, "PreconditionFailed")
        else:
            self.answer(200, {"Content-Length": "0"})

    def serve_delete(self) -> None:
        with self.server.lock:
            self.server.objects.pop(str(self.key), None)
        self.answer(204, {})

    def serve_list(self) -> None:
        query = {name: values[0] for name, values in self.query.items()}
        prefix, slash = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        with self.server.lock:
            found = sorted(name for name in self.server.objects if name.startswith(prefix))
        shown: dict[str, str] = {}  # by the name that the next page begins behind
        for key in found:
            inner, cut, _ = key[len(prefix) :].partition(slash) if slash else (key, "", "")
            if cut:
                folder = prefix + inner + slash
                shown[folder] = f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>"
            else:
                shown[key] = entry(key, len(self.server.objects[key]))
        names = sorted(name for name in shown if name > after)
        page = names[: int(query.get("max-keys", "1000"))]
        more = len(page) < len(names)
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        self.send(200, listing("".join(shown[name] for name in page), token, more=more))

    def range(self, size: int) -> tuple[int, int]:
        """Return the half-open range that was asked for, cut at the object's end."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a status, headers and a body that need not fit each other."""
        self.send_response(status)
        for name, value in {"ETag": '"x"', "Last-Modified": DATE, **headers}.items():
            self.send_header(name, value)
        if self.close_connection:  # else the next request may be sent into a closed one
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send(self, status: int, body: bytes) -> None:
        """Send a body with its length."""
        self.answer(status, {"Content-Length": str(len(body))}, body)

    def partial(self, body: bytes, start: int, stop: int, size: int) -> None:
        """Send a body and say that it is that range of an object of that size."""
        says = f"bytes {start}-{stop - 1}/{size}"
        self.answer(206, {"Content-Length": str(len(body)), "Content-Range": says}, body)

    def refuse(self, status: int, code: str) -> None:
        """Send an error as S3 does."""
        text = f"<Error><Code>{code}</Code><Message>said the server</Message></Error>"
        self.send(status, text.encode())


def entry(key: str, size: int | str, when: str = "2026-11-29T00:00:00.000Z") -> str:
    """Return an object as a listing shows it."""
    return (
        f"<Contents><Key>{quote(key)}</Key><LastModified>{when}</LastModified>"
        f"<ETag>x</ETag><Size>{size}</Size></Contents>"
    )


def listing(entries: str, token: str = "", *, more: bool = False) -> bytes:
    """Return a page of a listing; ``token`` is the element that says where the next begins."""
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
        f"{token}{entries}</ListBucketResult>"
    ).encode()


Misbehave: TypeAlias = Callable[[Handler], None]


@contextmanager
def hostile(tls: Tls | None = None) -> Iterator[Server]:
    """Run the server in threads of this process."""
    server = Server(tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusing(status: int, code: str) -> Misbehave:
    """Answer everything with an error."""
    return lambda asked: asked.refuse(status, code)


def stalls(_: Handler) -> None:
    """Take the request and never answer."""
    time.sleep(20)


def hangs_up(asked: Handler) -> None:
    """Close the connection without a word."""
    asked.wfile.flush()
    asked.connection.close()

"""MooncakeUrl: what a ``mooncake://`` URL says of a client, checked. It opens nothing."""

import re
from typing import NamedTuple

from unikv.backends.file_size import parse_size
from unikv.backends.url import StoreUrl, is_host
from unikv.errors import UrlError

P2P = "P2PHANDSHAKE"
"""The metadata server that is none: clients ask each other."""

OPTIONS = (
    "admin",
    "buffer",
    "device",
    "host",
    "local",
    "metadata",
    "protocol",
    "segment",
    "timeout",
    "wait",
)
LEAST_BUFFER = 1 << 20
LEAST_SEGMENT = 16 << 20
"""The library lends no less."""

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+)):(\d{1,5})\Z")
# Of a kind that it was not built with, the library ends the process; a password goes to its log.
_METADATA = re.compile(rf"(?:{P2P}|(?:etcd|https?)://[^@]+)\Z")
_SECONDS = re.compile(r"\d{1,5}\Z")


class Place(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(NamedTuple):
    """What a store URL says of the client."""

    master: Place
    metadata: str
    protocol: str
    device: str
    host: str | None  # of this process, as others reach it; None: as this one reaches the master
    segment: int  # bytes that this process lends to the store
    buffer: int  # bytes for what lies in no registered memory
    local: int  # bytes that the library takes for itself, to read from a shared file system
    admin: Place | None  # the master's HTTP server
    timeout_s: int | None  # None: the environment's, or a default
    wait_s: int

    def __repr__(self) -> str:
        return f"Settings({self.master}, protocol={self.protocol!r})"


def settings_of(url: StoreUrl) -> Settings:
    """Read a store URL.

    Raises:
        UrlError: a part or option of it is wrong.
    """
    master = _place(url.authority)
    if master is None or url.path not in ("", "/"):
        raise UrlError(
            f"store URL {url.shown!r:.200}: want mooncake://host:port of the master and no path, "
            "as in mooncake://10.0.0.1:50051"
        )
    url.refuse_options_except(*OPTIONS)
    admin = _place(url.options.get("admin", ""))
    if admin is None and "admin" in url.options:
        raise _wrong(url, "admin", "host:port of the master's HTTP server (its --metrics_port)")
    protocol = url.options.get("protocol", "tcp")
    if protocol not in ("tcp", "rdma"):
        raise _wrong(url, "protocol", "tcp or rdma")
    buffer = _bytes(url, "buffer", 64 << 20)
    if buffer < LEAST_BUFFER:
        raise _wrong(url, "buffer", f"at least {LEAST_BUFFER} bytes")
    segment = _bytes(url, "segment", 0)
    if 0 < segment < LEAST_SEGMENT:
        raise _wrong(url, "segment", f"none, or at least {LEAST_SEGMENT} bytes")
    metadata = url.options.get("metadata", P2P)
    if not _METADATA.match(metadata):
        want = f"{P2P}, http://host:port/path or etcd://host:port, without a password"
        raise _wrong(url, "metadata", want)
    timeout_s = _seconds(url, "timeout", None)
    if timeout_s == 0:
        raise _wrong(url, "timeout", "at least 1 second")
    return Settings(
        master,
        metadata,
        protocol,
        url.options.get("device", ""),
        url.options.get("host"),
        segment,
        buffer,
        _bytes(url, "local", 16 << 20),
        admin,
        timeout_s,
        _seconds(url, "wait", 2) or 0,
    )


def _place(text: str) -> Place | None:
    """Return the host and port that a text names; None if it is none."""
    match = _PLACE.match(text)
    if match is None or not 0 < int(match[3]) < 65536:
        return None
    host = match[1] or match[2]
    return Place(host, int(match[3])) if is_host(host) else None


def _bytes(url: StoreUrl, name: str, default: int) -> int:
    text = url.options.get(name)
    if text is None:
        return default
    try:
        return 0 if text == "0" else parse_size(text)
    except ValueError:
        raise _wrong(url, name, "bytes, as 67108864 or 64MiB") from None


def _seconds(url: StoreUrl, name: str, default: int | None) -> int | None:
    text = url.options.get(name)
    if text is None:
        return default
    if not _SECONDS.match(text):
        raise _wrong(url, name, "whole seconds")
    return int(text)


def _wrong(url: StoreUrl, name: str, want: str) -> UrlError:
    return UrlError(f"store URL {url.shown!r:.200}: option {name}: want {want}")

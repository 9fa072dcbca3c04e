"""RedisPlace: where a Redis server is and how to talk to it, from a store URL. It opens nothing."""

import math
import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

from unikv.backends.url import StoreUrl, is_host
from unikv.errors import UrlError

PREFIX = "unikv:"
_PREFIX = re.compile(r"[0-9A-Za-z_.:/-]{0,64}\Z")
_PASSWORD_VARIABLE = "REDISCLI_AUTH"  # noqa: S105 - a name; redis-cli reads the same one
_COMMON = ("prefix", "ttl", "connect_timeout", "timeout", "connections")
_OPTIONS = {
    "redis": (*_COMMON, "cluster"),
    "rediss": (*_COMMON, "cluster", "ca_certs", "certfile", "keyfile", "check_hostname"),
    "unix": (*_COMMON, "db"),
}


class Node(NamedTuple):
    """One server: a host and its port, or the path of a Unix socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(NamedTuple):
    """What the server must show, and what we show it. The server's certificate is always checked.

    Files in PEM; ``ca_certs`` None stands for the authorities that the system trusts.
    """

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """A server or a cluster, who we are there, and the part of its keys that is ours."""

    node: Node
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    cluster: bool = False
    prefix: str = PREFIX
    ttl: int | None = None  # seconds that a stored object lives
    connect_timeout: float = 5.0  # seconds, handshakes included
    timeout: float = 30.0  # seconds without a byte sent or received
    connections: int = 16  # at most, to one node from one process

    def __str__(self) -> str:
        if not self.node.port:
            return f"unix://{self.node}?db={self.db}"
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{self.node}/{self.db}{'?cluster=1' if self.cluster else ''}"

    @property
    def secret_url(self) -> str:
        """The URL of this place, with password and all: never to be shown."""
        options: dict[str, object] = {
            "prefix": self.prefix,
            "ttl": self.ttl,
            "connect_timeout": self.connect_timeout,
            "timeout": self.timeout,
            "connections": self.connections,
        }
        user = ""
        if self.password:
            user = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        if not self.node.port:
            front = f"unix://{user}{quote(self.node.host)}"
            options["db"] = self.db
        else:
            front = f"{'rediss' if self.tls else 'redis'}://{user}{self.node}/{self.db}"
            options["cluster"] = int(self.cluster)
        if self.tls:
            options |= self.tls._asdict() | {"check_hostname": int(self.tls.check_hostname)}
        given = [f"{k}={quote(str(v), safe='')}" for k, v in options.items() if v is not None]
        return f"{front}?{'&'.join(given)}"


def parse_place(url: StoreUrl) -> RedisPlace:
    """Take ``redis://``, ``rediss://`` and ``unix://`` URLs apart.

    A user name without a password takes it from the environment variable ``REDISCLI_AUTH``.

    Raises:
        UrlError: a part or an option is wrong, or a password is wanted and not there.
    """
    if "db" in url.options and url.scheme != "unix":
        raise _wrong(url, f"option db: want the database as the path: {_example(url)}")
    url.refuse_options_except(*_OPTIONS[url.scheme])
    user, at, host = url.authority.rpartition("@")
    username, password = _credentials(url, user) if at else (None, None)
    cluster = url.flag("cluster")
    prefix = url.options.get("prefix", PREFIX)
    if not _PREFIX.match(prefix):  # braces would pin a cluster's keys to one node
        raise _wrong(url, "option prefix: want at most 64 characters of [0-9A-Za-z_.:/-]")
    if url.scheme == "unix":
        if host or len(url.path) < 2:
            raise _wrong(url, "want unix:///path/of/socket")
        node, db = Node(url.path, 0), _number(url, "db", url.options.get("db", "0"))
    else:
        node, db = _address(url, host), _database(url)
    if cluster and db:
        raise _wrong(url, "a cluster has database 0 alone: want no other in the path")
    return RedisPlace(
        node,
        db,
        username,
        password,
        _tls(url) if url.scheme == "rediss" else None,
        cluster,
        prefix,
        _number(url, "ttl", url.options["ttl"], least=1) if "ttl" in url.options else None,
        _seconds(url, "connect_timeout", "5"),
        _seconds(url, "timeout", "30"),
        _number(url, "connections", url.options.get("connections", "16"), least=1),
    )


def _wrong(url: StoreUrl, why: str) -> UrlError:
    return UrlError(f"store URL {url.shown!r:.200}: {why}")


def _credentials(url: StoreUrl, text: str) -> tuple[str | None, str]:
    """Return user name and password; the server knows who a password without a name is for."""
    try:
        username, colon, password = (unquote(part, errors="strict") for part in text.partition(":"))
    except UnicodeDecodeError:
        raise _wrong(url, "user name or password: want percent escapes of UTF-8") from None
    if not colon:
        password = os.environ.get(_PASSWORD_VARIABLE, "")
    if not password:
        raise _wrong(
            url, f"a user without a password: want user:password@, or {_PASSWORD_VARIABLE} set"
        )
    return username or None, password


def _address(url: StoreUrl, text: str) -> Node:
    """Return host and port; an IPv6 address stands in brackets."""
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", text)
    if parts is None:
        raise _wrong(url, f"want {url.scheme}://host:port/db, as in {_example(url)}")
    port = int(parts[3] or 6379)
    if not 0 < port < 2**16:
        raise _wrong(url, f"port {port}: want 1 to 65535")
    host = parts[1] or unquote(parts[2])
    if not is_host(host):
        raise _wrong(url, f"host {host!r:.100}: want a name or an address")
    return Node(host, port)


def _database(url: StoreUrl) -> int:
    """Return the number of the database, 0 where the path names none."""
    # The path is not shown: it may have been meant for another place, and be secret.
    found = re.fullmatch(r"/?|/([0-9]{1,9})/?", url.path)
    if found is None:
        raise _wrong(
            url,
            f"the path: want the number of a database, 0 or more: {_example(url)}; our keys "
            "are told apart by the option prefix",
        )
    return int(found[1] or 0)


def _example(url: StoreUrl) -> str:
    return f"{url.scheme}://localhost:6379/0"


def _tls(url: StoreUrl) -> Tls:
    files = {name: url.options.get(name) for name in ("ca_certs", "certfile", "keyfile")}
    for name, path in files.items():
        if path is not None and not os.access(path, os.R_OK):
            raise _wrong(url, f"option {name}: there is no such file, or it cannot be read")
    if files["keyfile"] and not files["certfile"]:
        raise _wrong(url, "option keyfile: want the certfile that it belongs to, too")
    return Tls(**files, check_hostname=url.flag("check_hostname", default=True))


def _number(url: StoreUrl, name: str, text: str, *, least: int = 0) -> int:
    # The text is not shown: it may have been meant for another place, and be secret.
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise _wrong(url, f"option {name}: want a whole number from {least} on")
    return int(text)


def _seconds(url: StoreUrl, name: str, default: str) -> float:
    try:
        seconds = float(url.options.get(name, default))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86_400:  # a day; and not NaN
        raise _wrong(url, f"option {name}: want seconds above 0")
    return seconds

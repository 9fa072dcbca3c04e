"""Web: one HTTP request by the standard library, for what obstore cannot ask. It knows no S3.

It follows no redirect, ends in time whatever the server does, and takes no endless answer.
"""

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address, ip_network
from threading import Timer
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

MOST = 16 << 20
"""Bytes of an answer; a page of S3's listing has at most some 4 MiB."""


class Answer(NamedTuple):
    """What a server answered, whatever that was."""

    status: int
    reason: str
    body: bytes


class Ask(NamedTuple):
    """A request. Its headers may hold secrets, so it shows none."""

    verb: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None

    def __repr__(self) -> str:
        return f"Ask({self.verb!r}, ...)"


def ask(
    request: Ask, seconds: float, *, trust: ssl.SSLContext | None = None, proxied: bool = True
) -> Answer:
    """Make a request on a connection of its own.

    Args:
        request: what is asked; its headers name the host, or get it from the URL.
        seconds: how long it may take, all of it.
        trust: how an ``https://`` server is checked.
        proxied: whether the proxies of the environment are heeded.

    Raises:
        TimeoutError: it took longer.
        ssl.SSLError: there can be no trusted connection.
        OSError: there is none, or it broke off, or what came is no HTTP, or no end of it.
    """
    parts = urlsplit(request.url)
    proxy = find_proxy(parts) if proxied else None
    line = _Line(parts, proxy, seconds, trust)
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    headers = {
        "Host": parts.netloc,
        "User-Agent": "unikv",
        "Connection": "close",
        **request.headers,
    }
    if proxy is not None and parts.scheme == "http":
        target = f"http://{parts.netloc}{target}"
        headers |= _proxy_headers(proxy)
    watch = Timer(seconds, line.cut)
    watch.daemon = True
    try:
        watch.start()
    except RuntimeError:
        raise OSError("no thread is to be had that would end it in time") from None
    try:
        line.request(request.verb, target, request.body, headers)
        with line.getresponse() as response:
            body = response.read(MOST + 1)
            if response.length and len(body) <= MOST:
                raise ConnectionError("the answer broke off")
    except (OSError, HTTPException, ValueError) as error:
        if line.late or isinstance(error, TimeoutError):
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        if isinstance(error, OSError):
            raise
        raise ConnectionError(f"no HTTP came back: {type(error).__name__}") from None
    finally:
        watch.cancel()
        line.close()
        if line.held is not None:
            line.held.close()
    if line.late:
        raise TimeoutError(f"no answer in {seconds:g} s")
    if len(body) > MOST:
        raise ConnectionError(f"an answer of more than {MOST} bytes")
    return Answer(response.status, response.reason, body)


def find_proxy(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a URL, if any."""
    proxies = getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    if not named or proxy_bypass(parts.netloc) or proxy_bypass(host):
        return None
    if _is_within(host, proxies.get("no", "")):
        return None
    try:
        proxy = urlsplit(named if "://" in named else f"http://{named}")
        usable = proxy.scheme == "http" and bool(proxy.hostname) and proxy.port != 0
    except ValueError:
        usable = False
    if not usable:  # not shown: it may hold a password
        raise OSError("the proxy that the environment names: want http://host:port")
    return proxy


def _is_within(host: str, networks: str) -> bool:
    """Tell whether an address lies in one of the networks that need no proxy; Python knows none."""
    for network in networks.split(","):
        with suppress(ValueError):
            if ip_address(host) in ip_network(network.strip(), strict=False):
                return True
    return False


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}


class _Line(HTTPConnection):
    """A connection that another thread can cut, whatever it waits for."""

    def __init__(
        self,
        parts: SplitResult,
        proxy: SplitResult | None,
        seconds: float,
        trust: ssl.SSLContext | None,
    ) -> None:
        tls = parts.scheme == "https"
        self._name = parts.hostname or ""
        self._trust = (trust or make_trust()) if tls else None
        self.held: socket.socket | None = None  # http.client forgets its own once it has the head
        self.late = False
        port = parts.port or (443 if tls else 80)
        if proxy is None:
            super().__init__(self._name, port, timeout=seconds)
        else:
            super().__init__(proxy.hostname or "", proxy.port or 80, timeout=seconds)
            if tls:
                self.set_tunnel(self._name, port, _proxy_headers(proxy))

    def connect(self) -> None:
        """Connect, and speak TLS."""
        super().connect()
        if self._trust is not None:
            self.sock = self._trust.wrap_socket(
                self.sock, server_hostname=self._name, do_handshake_on_connect=False
            )
        self.held = self.sock
        if self.late:
            raise TimeoutError
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.do_handshake()

    def cut(self) -> None:
        """End what waits for the server."""
        self.late = True
        if self.held is not None:
            with suppress(OSError):  # of the socket, since TLS would talk to the server first
                socket.socket.shutdown(self.held, socket.SHUT_RDWR)


_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep their authorities; a Python that is not of the system may look elsewhere."""


def make_trust(authorities: bytes | None = None) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, and those of a PEM text if given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server may be its own authority
    context.load_default_certs()
    known = ssl.get_default_verify_paths()
    moved = known.openssl_cafile_env in os.environ or known.openssl_capath_env in os.environ
    if not (known.cafile or known.capath or moved):
        for bundle in _BUNDLES:
            with suppress(OSError, ssl.SSLError):
                context.load_verify_locations(bundle)
    if authorities is not None:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    return context

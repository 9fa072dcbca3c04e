"""Registry: from a store URL to an open store. It knows which backend serves a scheme, not how.

Another package adds a scheme by an entry point of group ``unikv.backends``, whose name is the
scheme, exactly, and whose value is a function ``open_url(url: StoreUrl) -> Store``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import quote

from unikv.backends.url import StoreUrl, mask, parse_url
from unikv.errors import MissingExtraError, StoreError, UnikvError, UrlError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from unikv.store import Store

PLUGINS = "unikv.backends"
"""The entry point group of backends that other packages bring."""


class Scheme(NamedTuple):
    """Who serves the URLs of one scheme."""

    module: str  # has a function ``open_url(url: StoreUrl) -> Store``
    example: str
    extra: str | None = None  # of this package; None where nothing more need be installed


class _Backend(Protocol):
    def open_url(self, url: StoreUrl) -> Store:
        """Open the store that the URL names."""
        ...


SCHEMES = {
    "memory": Scheme("unikv.backends.memory", "memory://"),
    "file": Scheme("unikv.backends.file", "file:///var/kv"),
    "s3": Scheme("unikv.backends.s3", "s3://bucket/prefix", "s3"),
    "redis": Scheme("unikv.backends.redis", "redis://host:6379/0", "redis"),
    "rediss": Scheme("unikv.backends.redis", "rediss://host:6379/0", "redis"),
    "unix": Scheme("unikv.backends.redis", "unix:///run/redis.sock", "redis"),
    "mooncake": Scheme("unikv.backends.mooncake", "mooncake://master:50051", "mooncake"),
    "tiered": Scheme("unikv.backends.tiered_url", "tiered://?fast=URL&slow=URL"),
    "fsspec+": Scheme("unikv.backends.fsspec", "fsspec+PROTOCOL://...", "fsspec"),
}
"""The schemes that come with unikv. One that ends with + serves all that begin so."""


def open_store(url: str) -> Store:
    """Open the store that a URL names; close it after use.

    ===============================  ==================================================
    ``memory://``                    a new, empty `MemoryStore` of this process
    ``file:///path``                 a `FileStore`; ``?durable=1`` outlives a loss of
                                     power, ``?readonly=1`` changes nothing and makes
                                     no folder, ``?direct=1`` goes past the page cache,
                                     ``?max_bytes=200GB`` and ``?min_free=10GB`` evict
                                     what was requested longest ago
    ``s3://bucket/prefix``           S3 and what speaks like it
    ``redis://host:6379/0``          Redis or Valkey; ``rediss://`` by TLS, ``unix://``
                                     by a socket file
    ``mooncake://master:50051``      a Mooncake cluster
    ``tiered://?fast=URL&slow=URL``  two stores, one before the other
    ``fsspec+PROTOCOL://...``        any file system of fsspec
    ===============================  ==================================================

    Other packages may bring more. The options of each stand in the function ``open_url`` of its
    module.

    Raises:
        UrlError: the URL is no text, its scheme unknown, or a part or option of it wrong.
        MissingExtraError: the backend needs an extra that is not installed.
        StoreError: the store cannot be reached, or not be written to; or another package's
            backend is broken.
    """
    if not isinstance(url, str):
        raise UrlError(f"store URL of type {type(url).__name__}: {_wanted(url)}")
    if "://" not in url:
        hint = f"; want file://{mask(url)}" if url.startswith("/") else ""
        raise UrlError(f"store URL {mask(url)!r:.200} has no scheme: known are {_known()}{hint}")
    parts = parse_url(url)
    first, plus, _ = parts.scheme.partition("+")
    scheme = SCHEMES.get(f"{first}+" if plus else parts.scheme)
    if scheme is not None:
        return _load(scheme, parts.scheme).open_url(parts)
    plugins = _plugins().select(name=parts.scheme)
    if not plugins:
        raise UrlError(
            f"store URL {parts.shown!r:.200}: unknown scheme {parts.scheme!r:.40}; "
            f"known are {_known()}"
        )
    return _open_plugin(tuple(plugins), parts)


def _wanted(given: object) -> str:
    """Return what whoever gave no text for a URL meant, if that can be told."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else None
    if isinstance(path, str):
        return f"want a text, 'file://{quote(os.path.abspath(path))}'"  # noqa: PTH100
    return "want a text, such as 'file:///var/kv'"  # not shown: it may hold a password


def _known() -> str:
    """Return the schemes that can be opened, those of other packages too, for a message."""
    theirs = sorted(_plugins().names - set(SCHEMES))
    return ", ".join([scheme.example for scheme in SCHEMES.values()] + [f"{s}://" for s in theirs])


def _plugins() -> EntryPoints:
    """Return the backends that other packages bring."""
    from importlib.metadata import entry_points  # takes longer than the rest of this module

    return entry_points(group=PLUGINS)


def _load(scheme: Scheme, name: str) -> _Backend:
    """Import a backend; a client library that is not there becomes a hint how to install it."""
    try:
        return cast("_Backend", import_module(scheme.module))
    except ImportError as error:
        if scheme.extra is None or (error.name or "").partition(".")[0] == "unikv":
            raise
        raise MissingExtraError(
            f"{name}:// needs {error.name or 'a package'}, which is not installed: "
            f"pip install 'unikv[{scheme.extra}]'",
            name=error.name,
        ) from error


def _open_plugin(plugins: tuple[EntryPoint, ...], url: StoreUrl) -> Store:
    """Open a store by another package's backend; what is broken there is told with its name."""
    names = sorted({f"{plugin.value} of {_package(plugin)}" for plugin in plugins})
    if len(names) > 1:
        raise StoreError(
            f"scheme {url.scheme!r:.40} is served by several packages, want one: {'; '.join(names)}"
        )
    told = f"the backend of {url.scheme}://, {names[0]},"
    try:
        open_url = plugins[0].load()
    except Exception as error:
        raise StoreError(f"{told} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        store: Store = open_url(url)
    except UnikvError:
        raise
    except Exception as error:
        # It may tell the URL, and that a password: only its type is shown.
        raise StoreError(f"{told} raised {type(error).__name__} where it should open") from error
    missing = [name for name in _CALLS if not callable(getattr(store, name, None))]
    if missing:
        raise StoreError(f"{told} opened a {type(store).__name__}, which has no {missing[0]}")
    return store


_CALLS = ("put", "get", "stat", "delete", "list", "close")


def _package(plugin: EntryPoint) -> str:
    package = plugin.dist
    return "an unnamed package" if package is None else f"{package.name} {package.version}"

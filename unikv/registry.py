"""Registry: from a store URL to an open store. It knows which backend serves a scheme, not how."""

from importlib import import_module
from typing import NamedTuple, Protocol, cast

from unikv.backends.url import StoreUrl, mask, parse_url
from unikv.errors import MissingExtraError, UrlError
from unikv.store import Store


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
}


def open_store(url: str) -> Store:
    """Open the store that a URL names; close it after use.

    ======================  =========================================================
    ``memory://``           a new, empty `MemoryStore` of this process
    ``file:///path``        a `FileStore`; ``?durable=1`` outlives a loss of power,
                            ``?readonly=1`` changes nothing and makes no folder
    ======================  =========================================================

    Raises:
        UrlError: the scheme is unknown, or a part or option of the URL is wrong.
        MissingExtraError: the backend needs an extra that is not installed.
        StoreError: the store cannot be reached, or not be written to.
    """
    known = ", ".join(scheme.example for scheme in SCHEMES.values())
    if "://" not in url:
        hint = f"; want file://{mask(url)}" if url.startswith("/") else ""
        raise UrlError(f"store URL {mask(url)!r:.200} has no scheme: known are {known}{hint}")
    parts = parse_url(url)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise UrlError(
            f"store URL {parts.shown!r:.200}: unknown scheme {parts.scheme!r:.40}; "
            f"known are {known}"
        )
    return _load(scheme, parts.scheme).open_url(parts)


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

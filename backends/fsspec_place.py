"""FsspecPlace: which fsspec file system a URL names, where in it, and how to store there.

It opens the file system and stores nothing.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote

import fsspec  # type: ignore[import-untyped]

from unikv.backends.fsspec_calls import is_http
from unikv.backends.fsspec_errors import mask_texts
from unikv.backends.url import StoreUrl
from unikv.errors import MissingExtraError, StoreError, UrlError

SCHEME = "fsspec+"

Publish = Literal["whole", "rename", "never"]
"""How an object comes to be seen all at once: written whole, renamed once written, or it cannot."""

LOCAL = ("file", "local")

_WHOLE = frozenset(
    ("memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "tosfs")
)
"""Protocols of stores where a name shows nothing before all its bytes are there."""

_CACHES = frozenset(("blockcache", "cached", "filecache", "simplecache"))
_OWN = ("publish", "timeout", "threads")
_FIXED = ("asynchronous", "loop", "protocol", "skip_instance_cache", "use_listings_cache")
_HARMLESS = re.compile(r"(endpoint|region|host|port|url|project|account_name|user)", re.IGNORECASE)
_LEAST_SECRET = 6  # characters; a shorter text would mask half of every message


@dataclass(frozen=True, slots=True)
class FsspecPlace:
    """An open file system of fsspec, and the folder or prefix in it that holds a store."""

    fs: Any = field(repr=False)  # fsspec has no types
    protocol: str
    root: str
    publish: Publish
    timeout: float
    """Seconds that one call may take, where the file system is one of fsspec's async ones."""
    threads: int
    """Calls at once, likewise."""
    shown: str
    """The URL without what may be secret."""
    text: str = field(repr=False)
    """The URL, by which another process opens the same store."""
    secrets: frozenset[str] = field(repr=False)
    """Texts that no error may show."""

    @property
    def local(self) -> bool:
        """Whether it is the file system of this machine."""
        return self.protocol in LOCAL


def open_place(url: StoreUrl) -> FsspecPlace:
    """Open the file system that ``fsspec+PROTOCOL://...`` names.

    Raises:
        UrlError: an option is wrong.
        StoreError: fsspec does not know the protocol, lacks a package, or cannot open it so.
    """
    protocol = url.scheme.removeprefix(SCHEME)
    if not protocol or "::" in f"{url.authority}{url.path}":
        raise UrlError(f"store URL {url.shown!r:.200}: want fsspec+PROTOCOL:// and one path")
    if protocol in _CACHES:
        raise UrlError(f"store URL {url.shown!r:.200}: {protocol} would hide what others change")
    options = _options(url)
    for name in _FIXED:
        if name in options:
            raise UrlError(f"store URL {url.shown!r:.200}: option {name} is unikv's to set")
    if protocol in LOCAL and (url.authority or not url.path.strip("/")):
        raise UrlError(
            f"store URL {url.shown!r:.200}: want {url.scheme}:/// and the absolute path of a folder"
        )
    secrets = frozenset(_texts(options)) | _password(url.authority)
    try:
        _require_known(url, protocol)
        fs, root = fsspec.core.url_to_fs(
            f"{protocol}://{url.authority}{url.path}",
            skip_instance_cache=True,  # or its cache and settings would be shared with others
            **_bounded(protocol, options),
        )
        _bound_answers(fs)
    except UrlError:
        raise
    except ImportError as error:
        raise MissingExtraError(
            f"{url.scheme}:// needs a package that is not installed: {error}", name=error.name
        ) from error
    except Exception as error:  # noqa: BLE001 - file systems raise what they like
        told = mask_texts(f"{type(error).__name__}: {error}", secrets)
        raise StoreError(f"open {url.shown!r:.200}: {told}") from None
    _forget_listings(fs)
    if protocol.startswith("s3"):
        fs.retries = 1  # retries are the client's
    root = str(root).rstrip("/")
    return FsspecPlace(
        fs,
        protocol,
        os.path.realpath(root) if protocol in LOCAL else root,
        _publish(url, fs, protocol),
        _number(url, "timeout", 30.0, least=0.001),
        int(_number(url, "threads", 16, least=1)),
        url.shown,
        spell(url),
        secrets,
    )


def spell(url: StoreUrl) -> str:
    """Return the text of a URL, which `unikv.backends.url.parse_url` takes apart again."""
    pairs = (f"{quote(name, '')}={quote(value, '')}" for name, value in url.options.items())
    query = "&".join(pairs)
    return f"{url.scheme}://{url.authority}{quote(url.path)}{f'?{query}' if query else ''}"


def _require_known(url: StoreUrl, protocol: str) -> None:
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise UrlError(
            f"store URL {url.shown!r:.200}: fsspec knows no {protocol!r:.40}; it knows "
            f"{', '.join(sorted(fsspec.available_protocols()))}"
        ) from None


def _options(url: StoreUrl) -> dict[str, Any]:
    """Return what the file system is to be given: ``name=text``, or ``name:=JSON``."""
    options: dict[str, Any] = {}
    for name, text in url.options.items():
        if name in _OWN:
            continue
        if not name.endswith(":"):
            options[name] = text
            continue
        try:
            options[name[:-1]] = json.loads(text)
        except (ValueError, RecursionError):
            raise UrlError(
                f"store URL {url.shown!r:.200}: option {name[:-1]!r:.80}: want JSON behind :=, "
                "such as true, 5 or {...}; text stands behind = alone"
            ) from None
    return options


def _bounded(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options that make the client of S3 give up in seconds, and not try again by itself.

    A checksum behind the body, which it would send by TLS, is refused by older servers of MinIO's
    code.
    """
    if not protocol.startswith("s3"):
        return options
    ours = {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"total_max_attempts": 1},
        "request_checksum_calculation": "when_required",
    }
    return {**options, "config_kwargs": {**ours, **options.get("config_kwargs", {})}}


def _bound_answers(fs: Any) -> None:
    """Let a server of HTTP send no more than it is asked for."""
    if is_http(fs):
        from unikv.backends.fsspec_http import bound_answers  # needs aiohttp, as `fs` does

        bound_answers(fs)


def _forget_listings(fs: Any) -> None:
    """Keep a file system from remembering listings: others change what they show."""
    for layer in (fs, getattr(fs, "fs", None)):
        cache: Any = getattr(layer, "dircache", None)
        if hasattr(cache, "use_listings_cache"):
            cache.use_listings_cache = False


def _publish(url: StoreUrl, fs: Any, protocol: str) -> Publish:
    said = url.options.get("publish")
    if said == "whole":
        return "whole"
    if said not in (None, "rename"):
        raise UrlError(f"store URL {url.shown!r:.200}: option publish: want whole or rename")
    if said is None and protocol in _WHOLE:
        return "whole"
    # What fsspec does where a file system has no rename is a copy, which readers see grow.
    return "never" if type(fs).mv is fsspec.AbstractFileSystem.mv else "rename"


def _number(url: StoreUrl, name: str, default: float, *, least: float) -> float:
    text = url.options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise UrlError(f"store URL {url.shown!r:.200}: option {name}: want a number above 0")
    return number


def _texts(value: object, name: str = "") -> Iterable[str]:
    """Yield the texts in options that may be secret."""
    if isinstance(value, Mapping):
        for inner, part in value.items():
            yield from _texts(part, str(inner))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, name)
    elif isinstance(value, str) and len(value) >= _LEAST_SECRET:
        yield from [] if _HARMLESS.search(name) and not {"@", "?"} & set(value) else [value]


def _password(authority: str) -> frozenset[str]:
    """Return the password that stands before a host, in both spellings."""
    user, at, _ = authority.rpartition("@")
    password = user.partition(":")[2]
    return frozenset([password, unquote(password)]) if at and password else frozenset()

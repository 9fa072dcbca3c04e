"""File URLs: from ``file:///path?option=value`` to what opens a store, and back. They open none."""

from typing import NamedTuple
from urllib.parse import quote

from unikv.backends.file_size import parse_size
from unikv.backends.url import StoreUrl
from unikv.errors import UrlError

_SIZES = ("max_bytes", "min_free")
_FLAGS = ("durable", "readonly", "direct")


class Options(NamedTuple):
    """What a file store is opened with, beside its root."""

    durable: bool = False
    readonly: bool = False
    direct: bool = False
    max_bytes: int | None = None
    min_free: int | None = None

    def __repr__(self) -> str:
        given = [
            f"{name}={value}"
            for name, value in self._asdict().items()
            if value or name == "durable"
        ]
        return ", ".join(given)


def parse_options(url: StoreUrl) -> Options:
    """Return the options of a file URL.

    Raises:
        UrlError: it names a host or no folder, or has an option that is unknown or wrong.
    """
    if url.authority or not url.path.strip("/"):
        raise UrlError(
            f"store URL {url.shown!r:.200}: want file:/// and the absolute path of a folder, "
            "as in file:///var/kv; hosts and relative paths are not for it"
        )
    url.refuse_options_except(*_FLAGS, *_SIZES)
    durable, readonly, direct = map(url.flag, _FLAGS)
    max_bytes, min_free = (_size(url, name) for name in _SIZES)
    return Options(durable, readonly, direct, max_bytes, min_free)


def url_of(root: str, options: Options) -> str:
    """Return the URL that opens a root with the same options."""
    given = {name: int(value) for name, value in options._asdict().items() if value}
    query = "&".join(f"{name}={value}" for name, value in given.items())
    return f"file://{quote(root)}{'?' if query else ''}{query}"


def _size(url: StoreUrl, name: str) -> int | None:
    text = url.options.get(name)
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UrlError(f"store URL {url.shown!r}: option {name}: {error}") from error

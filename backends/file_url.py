"""File URLs: from ``file:///path?option=value`` to what opens a store, and back. They open none."""

from typing import NamedTuple
from urllib.parse import quote

from unikv.arguments import is_switch, whole_number
from unikv.backends.file_size import LARGEST, parse_size
from unikv.backends.url import StoreUrl
from unikv.errors import SpecError, StoreError, UrlError

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

    def checked(self) -> "Options":
        """Return the same options with numbers of Python's own.

        Raises:
            SpecError: one of another type; a text, even "no", would be taken for on.
            StoreError: a size that no disk has.
        """
        for name in _FLAGS:
            if not is_switch(value := getattr(self, name)):
                raise SpecError(f"{name}={value!r:.80} of a file store: want True or False")
        max_bytes, min_free = (_bytes(name, getattr(self, name)) for name in _SIZES)
        return self._replace(max_bytes=max_bytes, min_free=min_free)


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


def _bytes(name: str, value: object) -> int | None:
    if value is None:
        return None
    size = whole_number(value)
    if size is None:
        raise SpecError(
            f"{name}={value!r:.80} of a file store: want a whole number of bytes, such as 10**10 "
            "(a text such as '10GB' is for URLs), or None"
        )
    if not 0 < size <= LARGEST:
        raise StoreError(f"{name} is {size}: want bytes, more than 0 and at most {LARGEST}")
    return size


def _size(url: StoreUrl, name: str) -> int | None:
    text = url.options.get(name)
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UrlError(f"store URL {url.shown!r}: option {name}: {error}") from error

"""StoreUrl: the parts of a store URL, decoded and checked. It knows no backend."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from unikv.errors import UrlError

_SHAPE = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?\Z"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FLAGS = {"1": True, "0": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store URL in parts. Its `shown` form and its repr never hold credentials or options.

    ``authority`` is what stands between ``//`` and the next slash, not decoded; ``path`` and the
    names and values of ``options`` are percent-decoded.
    """

    scheme: str
    authority: str
    path: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"StoreUrl({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URL without what may be secret, for messages."""
        return mask(f"{self.scheme}://{self.authority}{self.path}")

    def refuse_host(self) -> None:
        """Raise `UrlError` if the URL names a host."""
        if self.authority:
            raise UrlError(
                f"store URL {self.shown!r} names a host, and {self.scheme} has none: "
                f"want {self.scheme}://"
            )

    def refuse_path(self) -> None:
        """Raise `UrlError` if the URL has a path."""
        if self.path:
            raise UrlError(
                f"store URL {self.shown!r} has a path, and {self.scheme} has none: "
                f"want {self.scheme}://"
            )

    def refuse_options_except(self, *known: str) -> None:
        """Raise `UrlError` if the URL has an option that is not among ``known``."""
        for name in self.options:
            if name not in known:
                takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
                raise UrlError(f"store URL {self.shown!r}: unknown option {name!r:.80}; {takes}")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an option that is on or off."""
        text = self.options.get(name)
        if text is None:
            return default
        if text not in _FLAGS:
            raise UrlError(f"store URL {self.shown!r}: option {name}: want 1 or 0")
        return _FLAGS[text]


def is_host(text: str) -> bool:
    """Tell whether a text can name a host; a socket raises `ValueError` for one that cannot."""
    try:
        return bool(text.encode("idna")) and text.isprintable() and not set(text) & set("/?#@ ")
    except UnicodeError:
        return False


def mask(text: str) -> str:
    """Return ``text`` without user names, passwords, options and fragment.

    Of a text with an ``@`` behind a ``?`` or ``#`` only the scheme stays: it may end a password.
    """
    scheme = _SCHEME.match(text)
    front, *back = re.split(r"[?#]", text, maxsplit=1)
    _, at, shown = front.rpartition("@")
    if "@" in "".join(back):
        at, shown = "***", ""
    elif at:
        at = "***@"
    else:
        return front
    return f"{scheme[0] if scheme else ''}{at}{shown}"


def parse_url(text: str) -> StoreUrl:
    """Split and decode a store URL.

    Raises:
        UrlError: no ``scheme://``, a fragment, a broken escape, a control character, or an
            option without a value or given twice.
    """
    shown = mask(text)
    if not text.isprintable():
        raise UrlError(f"store URL {shown!r:.200}: write control characters as percent escapes")
    if "#" in text:
        raise UrlError(f"store URL {shown!r:.200}: a fragment means nothing here; write # as %23")
    parts = _SHAPE.match(text)
    if parts is None:
        raise UrlError(f"store URL {shown!r:.200}: want scheme://..., as in file:///var/kv")
    options: dict[str, str] = {}
    query = parts["query"] or ""
    if "@" in query:  # whoever has a ? in a password means no option
        raise UrlError(
            f"store URL {shown!r:.200}: @ behind ?; write ? in a password as %3F, "
            "and @ in an option as %40"
        )
    for place, pair in enumerate(filter(None, query.split("&")), 1):
        name, equals, value = pair.partition("=")
        name = _decode(name, shown)
        if not (name and equals):  # not shown: it may be the value alone
            raise UrlError(f"store URL {shown!r:.200}: option {place} of it: want name=value")
        if name in options:
            raise UrlError(f"store URL {shown!r:.200}: option {name!r:.80} is given twice")
        options[name] = _decode(value, shown)
    return StoreUrl(
        parts["scheme"].lower(), parts["authority"], _decode(parts["path"], shown), options
    )


def _decode(text: str, shown: str) -> str:
    """Decode percent escapes, which must be whole and give UTF-8 text without NUL."""
    broken = re.search(r"%(?![0-9A-Fa-f]{2})", text)
    if broken is None:
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError:
            decoded = "\0"
        if "\0" not in decoded:
            return decoded
    raise UrlError(
        f"store URL {shown!r:.200}: broken percent escape: want % and two hex digits that give "
        "UTF-8 text; write % itself as %25"
    )

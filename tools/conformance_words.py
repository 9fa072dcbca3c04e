"""Conformance words: how what a backend says is told: short, in one line, without secrets.

A backend under trial may raise anything and quote anything. Nothing here raises in turn.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from unikv.tools.wording import printable

QUOTED = 200
"""Characters of a backend's text that are shown."""

_SECRET = re.compile(r"auth|cred|key|pass|pw|secret|sig|token", re.IGNORECASE)
_PARTS = re.compile(r"\w[\w+.-]*://(?P<authority>[^/?#]*)[^?#]*(?:\?(?P<query>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Words:
    """How the texts of one backend are told."""

    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts that are not shown."""

    @classmethod
    def for_url(cls, url: str) -> "Words":
        """Return words that hide what may be secret in a URL."""
        return cls(frozenset(text for text in _secrets(url) if text))

    def quote(self, text: str, limit: int = QUOTED) -> str:
        """Return a text that a backend may have made, fit to be shown."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return printable(text if len(text) <= limit else f"{text[:limit]}...")

    def of(self, error: BaseException, limit: int = QUOTED) -> str:
        """Return what an exception says."""
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - the backend's own class
            text = "(it has no text)"
        return self.quote(text, limit)

    def named(self, error: BaseException) -> str:
        """Return an exception's type and what it says."""
        name, text = self.quote(type(error).__name__), self.of(error)
        return f"{name}: {text}" if text else name


def _secrets(url: str) -> Iterator[str]:
    """Yield user names that stand alone, passwords, and options that may be secret."""
    parts = _PARTS.match(url)
    if parts is None:
        return
    user, _, _ = parts["authority"].rpartition("@")
    name, colon, password = user.partition(":")
    yield from _both(password if colon else name)
    for pair in (parts["query"] or "").split("&"):
        name, _, value = pair.partition("=")
        if _SECRET.search(unquote(name)):
            yield from _both(value)
        yield from _secrets(unquote(value))  # an option may be a URL, as those of a tiered store


def _both(text: str) -> Iterator[str]:
    yield text
    yield unquote(text)

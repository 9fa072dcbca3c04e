"""Fsspec errors: what a file system raised, as a `StoreError` that shows no secret. No calls."""

import errno
from collections.abc import Iterable, Mapping
from ssl import SSLCertVerificationError

from unikv.errors import StoreError

_PASSING = frozenset(
    (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EREMOTEIO, errno.ECONNRESET, errno.ETIMEDOUT)
)
_PASSING_NAMES = ("Timeout", "Connection", "Disconnected", "Payload", "SlowDown", "Throttl")
"""Parts of class names: client libraries have trees of their own for what a network does."""

_UNTRUSTED = "certificate verify failed"
_DEEP = 8


def explain_error(doing: str, error: Exception, secrets: Iterable[str]) -> StoreError:
    """Return a `StoreError` that says what was tried and why it failed.

    It has no cause: what file systems raise may show a password, and its frames hold buffers.
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    told = StoreError(f"{doing}: {mask_texts(str(text), secrets)}")
    told.errno = getattr(error, "errno", None)
    told.retryable = may_pass(error)
    return told


def mask_texts(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with *** in the place of each secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _status(error: BaseException) -> int:
    """Return the HTTP status that an error of aiohttp, or of boto behind one, tells; 0 for none."""
    response = getattr(error.__cause__ or error, "response", None)
    told = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
    status = told.get("HTTPStatusCode", getattr(error, "status", 0))
    return status if isinstance(status, int) else 0


def _is_untrusted(error: BaseException) -> bool:
    """Tell whether TLS refused the server's certificate, which it will do again."""
    seen: BaseException | None = error
    for _ in range(_DEEP):  # causes may go round in circles
        if seen is None:
            return False
        if isinstance(seen, SSLCertVerificationError) or _UNTRUSTED in str(seen).casefold():
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def may_pass(error: Exception) -> bool:
    """Return whether the same call may succeed a moment later."""
    if isinstance(error, StoreError):
        return error.retryable
    if _is_untrusted(error):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING:
        return True
    if _status(error) in (408, 429) or _status(error) >= 500:
        return True
    names = [kind.__name__ for kind in type(error).__mro__]
    return any(part in name for name in names for part in _PASSING_NAMES)

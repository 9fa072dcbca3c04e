"""Faults: which errors of a file system may be over a moment later. They know no file."""

import errno

from unikv.errors import StoreError

_PASSING = frozenset(
    {
        errno.ESTALE,  # NFS: another host removed or replaced the file that was open
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ETXTBSY,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
    }
)


def said_right(error: Exception) -> Exception:
    """Return an error that says whether the same call may succeed later."""
    if isinstance(error, OSError) and error.errno in _PASSING and error.strerror:
        passing = StoreError(error.errno, error.strerror)
        passing.retryable = True
        return passing
    return error

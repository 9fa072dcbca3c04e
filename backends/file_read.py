"""Reading: fills views from the files of keys, one open file at a time. It writes nothing."""

import errno
import os
import stat
from collections.abc import Callable, Sequence

from unikv.backends.batch import Batch, short_object, span_bytes
from unikv.backends.file_direct import Direct
from unikv.backends.file_fault import said_right
from unikv.backends.file_open import files_of
from unikv.backends.vector import read_into
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Outcome, Span

NONE_THERE = (-errno.ENOENT, -errno.ENOTDIR)


def read_spans(
    root: str,
    spans: Sequence[Span],
    batch: Batch,
    *,
    size_of: Callable[[int], int] | None = None,
    direct: Direct | None = None,
    came: Callable[[int], None] | None = None,
) -> None:
    """Fill the views of spans, and note in ``batch`` what became of each.

    Spans of one key in a row share one open file, thus one version of it.

    Args:
        root: the folder that the keys' files lie beneath.
        spans: what to read.
        batch: takes the outcomes.
        size_of: tells the size of a file that is open, once for each that is opened.
        direct: how to read past the page cache, if so.
        came: called with the position of each span as soon as it is filled.
    """
    plain = direct is None
    files = files_of(root, spans, direct)
    held: str | None = None  # the key whose file is open
    fd, size = -1, 0
    try:
        for position, (key, start, stop, into) in enumerate(spans):
            try:
                if key != held:
                    last, fd, held = fd, -1, None
                    if last >= 0:
                        os.close(last)
                    fd = files.open(key)
                    if fd < 0:
                        batch.codes[position] = _miss(fd, spans[position])
                        continue
                    # Tells the size at a quarter of what fstat costs. A pipe has no end to seek, a
                    # folder no bytes to read, a device is empty: none of them passes for an object.
                    size = size_of(fd) if size_of else os.lseek(fd, 0, os.SEEK_END)
                    held = key
                # The common case, checked in line: calls would cost a tenth of a 64 KiB read.
                view_bytes = into[0].nbytes if len(into) == 1 else -1
                if not (
                    plain
                    and 0 <= start < stop <= size
                    and view_bytes == stop - start
                    and os.preadv(fd, into, start) == view_bytes
                ):
                    _read(fd, spans[position], size, direct)
                if came is not None:
                    came(position)
            except (OSError, KeyFormatError) as error:
                batch.fail(position, f"get {key!r:.200}", said_right(error))
            except (AttributeError, BufferError, TypeError, ValueError) as error:
                batch.fail(position, f"get {key!r}: want writable contiguous views", error)
    finally:
        files.close()
        if fd >= 0:
            os.close(fd)


def _miss(number: int, span: Span) -> Outcome:
    """Return MISS if minus the errno says that there is no file, else raise `OSError`."""
    span_bytes(span)
    if number in NONE_THERE:
        return Outcome.MISS
    raise OSError(-number, os.strerror(-number))


def _read(fd: int, span: Span, size: int, direct: Direct | None) -> None:
    """Fill the views of a span from an open file of ``size`` bytes, in as many calls as it takes.

    Raises:
        OSError: they cannot be filled, or it is no regular file.
    """
    _, start, stop, into = span
    want = span_bytes(span)
    if stop > size:
        raise short_object(size, start, stop)
    if not want:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StoreError("it is no regular file")
    elif (direct.read if direct else read_into)(
        fd, into, want, start
    ) != want:  # cut off since it was opened
        raise short_object(os.lseek(fd, 0, os.SEEK_END), start, stop)

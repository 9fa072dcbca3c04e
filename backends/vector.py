"""Vector I/O: whole transfers between one file and many views, neither joined nor copied."""

import os
from collections.abc import Sequence

from unikv.errors import StoreError
from unikv.store import Buffer

IOV_MAX = os.sysconf("SC_IOV_MAX")  # views that one call takes


def read_into(fd: int, views: Sequence[memoryview], size: int, start: int) -> int:
    """Fill views of ``size`` bytes together from ``start`` on; return how many bytes there were."""
    done = os.preadv(fd, views, start) if size and len(views) <= IOV_MAX else 0
    while done < size:
        read = os.preadv(fd, _rest(views, done), start + done)
        if read == 0:
            break
        done += read
    return done


def write_from(fd: int, buffers: Sequence[Buffer], size: int) -> None:
    """Write buffers of ``size`` bytes together to the start of a file, or raise `OSError`."""
    done = os.pwritev(fd, buffers, 0) if size and len(buffers) <= IOV_MAX else 0
    while done < size:
        wrote = os.pwritev(fd, _rest(buffers, done), done)
        if wrote == 0:
            raise StoreError(f"wrote {done} of {size} bytes, then no more")
        done += wrote


def _rest(views: Sequence[Buffer], done: int) -> list[memoryview]:
    """Return what lies behind the first ``done`` bytes of some views, as much as one call takes."""
    rest: list[memoryview] = []
    for buffer in views:
        view = memoryview(buffer)
        if done >= view.nbytes:
            done -= view.nbytes
            continue
        rest.append(view.cast("B")[done:])
        done = 0
        if len(rest) == IOV_MAX:
            break
    return rest

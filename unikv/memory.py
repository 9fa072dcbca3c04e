"""Memory: host memory that several processes map. It knows no slots, and needs no torch."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

from unikv.arguments import whole_number
from unikv.errors import PoolError

PAGE = 4096
"""Bytes that memory comes in; O_DIRECT can read into what begins at a multiple of it."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
"""Where a container finds its limit and use of memory: cgroup v2 and v1."""

_POPULATE_WRITE = 23  # madvise(2), since Linux 5.14
_MBIND = {"x86_64": 237, "aarch64": 235}  # its system call number, by machine
_BIND = 2  # MPOL_BIND, mbind(2)
_TOUCH_BYTES = 256 << 20  # a thread's share of first touch
_WANT = "want less (staging_bytes=), or more memory for this machine or container"
_libc = ctypes.CDLL(None, use_errno=True)


def reserve(size: int, *, numa_node: int | None = None) -> tuple[int, mmap.mmap]:
    """Reserve ``size`` bytes that other processes can map by the descriptor that is returned.

    All of it is there at once, so that a machine without the room says so now, not in mid-transfer.

    Raises:
        PoolError: there is not so much memory, or no such NUMA node.
    """
    node = None if numa_node is None else _check_node(numa_node)
    if size > (room := _room()):  # the kernel would end a process rather than refuse
        raise PoolError(f"an arena of {size} bytes of shared memory: {room} are free; {_WANT}")
    fd = os.memfd_create("unikv-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        view = mmap.mmap(fd, size)
        if node is not None:
            _bind(view, size, node)
        os.posix_fallocate(fd, 0, size)
        _touch(view, size)
    except OSError as error:
        os.close(fd)
        raise PoolError(
            f"an arena of {size} bytes of shared memory: {error.strerror}; {_WANT}"
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd, view


def attach(fd: int, size: int) -> mmap.mmap:
    """Map memory that another process reserved.

    Each process has a page table of its own: a thread fills it in, so that first reads need not.

    Raises:
        OSError: it is no memory, or could be cut short: whoever used it then would be killed.
        ValueError: it is shorter.
    """
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError(errno.EPERM, "memory that its owner may cut short")
    view = mmap.mmap(fd, size)
    Thread(target=_touch, args=(view, size), name="toucher", daemon=True).start()
    return view


def reserve_private(size: int) -> mmap.mmap:
    """Return ``size`` bytes of this process alone, which become real as they are touched.

    Raises:
        PoolError: there is no room for so many addresses.
    """
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "more than a machine can address"
        raise PoolError(f"an arena of {size} bytes: {reason}; {_WANT}") from error


def _room() -> int:
    """Return the bytes that may still be used, of the machine and of this container."""
    text = Path("/proc/meminfo").read_text()
    found = [int(line.split()[1]) << 10 for line in text.splitlines() if "MemAvailable" in line]
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):  # no such file; or "max", which is no limit
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(0, min(found, default=0))


def _check_node(value: object) -> int:
    """Return the number of a NUMA node; raise `PoolError` where memory cannot be bound to it."""
    node = whole_number(value)
    if node is None or not 0 <= node < 64 or platform.machine() not in _MBIND:
        raise PoolError(f"numa_node={value!r:.40} on {platform.machine()}: want None, or 0 to 63")
    return node


def _bind(view: mmap.mmap, size: int, node: int) -> None:
    number = _MBIND[platform.machine()]
    mask = ctypes.c_uint64(1 << node)
    if _libc.syscall(
        number, _address(view), ctypes.c_size_t(size), _BIND, ctypes.byref(mask), 65, 0
    ):
        reason = os.strerror(ctypes.get_errno())
        raise PoolError(f"numa_node={node}: {reason}; want a node of this machine, or None")


def _touch(view: mmap.mmap, size: int) -> None:
    """Enter all pages in the page table, several threads at once where there is much."""
    base, threads = _address(view).value or 0, min(os.cpu_count() or 1, -(-size // _TOUCH_BYTES))
    share = -(-size // threads // PAGE) * PAGE
    # Where an older kernel refuses, or no thread can be started, as when the interpreter exits,
    # pages come as they are used, which is all that is lost.
    with suppress(RuntimeError), ThreadPoolExecutor(threads) as pool:
        for start in range(0, size, share):
            length = ctypes.c_size_t(min(share, size - start))
            pool.submit(_libc.madvise, ctypes.c_void_p(base + start), length, _POPULATE_WRITE)


def _address(view: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))

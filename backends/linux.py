"""Linux: two system calls that Python lacks, each with a slower way where the kernel lacks it too.

Sources: openat2(2), renameat2(2). They know no store.
"""

import ctypes
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
# No argtypes: they cost 0.4 us a call, and each argument is a small int, bytes or a pointer.
_syscall = _libc.syscall
_renameat2 = getattr(_libc, "renameat2", None)  # glibc has it since 2.28

AT_FDCWD = -100
"""In place of a folder's descriptor: the working folder, which no absolute path asks for."""

_OPENAT2 = 437  # one number on all architectures but Alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RENAME_NOREPLACE = 1
_NO_SUCH_CALL = (errno.ENOSYS, errno.EPERM)  # EPERM: what old seccomp filters say


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_SIZE_OF_HOW = ctypes.sizeof(_OpenHow)


class How:
    """How to open a file: `os.open` flags, laid out once for the kernel."""

    __slots__ = ("flags", "pointer")

    def __init__(self, flags: int) -> None:
        self.flags = flags | os.O_NOFOLLOW
        self.pointer = ctypes.byref(
            _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
        )


# Not to wait for the other end of a FIFO; regular files do not know the flag.
READ = How(os.O_RDONLY | os.O_NONBLOCK)
FOLDER = How(os.O_RDONLY | os.O_DIRECTORY)
WAY = How(os.O_PATH | os.O_DIRECTORY)  # for names in it: whoever may pass need not read it
LOOK = How(os.O_PATH | os.O_NOFOLLOW)  # for fstat alone, of a link itself if it is one


def try_open(path: bytes, how: How, at: int = AT_FDCWD) -> int:
    """Open a path if no link lies on it; return a descriptor, or minus the errno.

    The path is absolute, or begins with ``./`` for the folder that is open as ``at``.

    Not an exception, since one costs as much as the call and a miss is no fault. A link gives
    ELOOP, but `LOOK` opens the last one itself.
    """
    fd: int = _syscall(_OPENAT2, at, path, how.pointer, _SIZE_OF_HOW)
    if fd >= 0:
        return fd
    number = ctypes.get_errno()
    if number == errno.EINTR:
        return try_open(path, how, at)
    return _open_by_steps(path, how, at) if number in _NO_SUCH_CALL else -number


def open_path(path: bytes, how: How) -> int:
    """Do as `try_open`, but raise `OSError`."""
    fd = try_open(path, how)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), path)
    return fd


def try_open_in(parent: int, name: str, how: How) -> int:
    """Open a name in a folder that is open, no link; return a descriptor, or minus the errno."""
    try:
        return os.open(name, how.flags, dir_fd=parent)
    except OSError as error:
        return -(error.errno or errno.EIO)


def open_in(parent: int, name: str, how: How) -> int:
    """Open a name in a folder that is open; a link gives ELOOP where a folder is wanted, too."""
    try:
        return os.open(name, how.flags, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


def rename_new(source: bytes, target: bytes) -> None:
    """Give a file its name in one step, unless that is taken: then raise `FileExistsError`."""
    number = errno.ENOSYS
    if _renameat2 is not None:
        if _renameat2(AT_FDCWD, source, AT_FDCWD, target, _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
    if number not in (*_NO_SUCH_CALL, errno.EINVAL):  # EINVAL: the file system's way, as of NFS
        raise OSError(number, os.strerror(number), source, None, target)
    os.link(source, target)
    with suppress(OSError):  # it is stored; the second name is a temporary file like any other
        Path(os.fsdecode(source)).unlink()


def _open_by_steps(path: bytes, how: How, at: int) -> int:
    """Open one name after the other, each beneath the one before and none through a link."""
    first, *names = os.fsdecode(path).split("/")
    try:
        fd = os.open(first or "/", WAY.flags, dir_fd=at)
        for step, name in enumerate(names, start=1):
            parent = fd
            try:
                fd = open_in(parent, name, how if step == len(names) else WAY)
            finally:
                os.close(parent)
    except OSError as error:
        return -(error.errno or errno.EIO)
    return fd

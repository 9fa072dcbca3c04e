"""Library: Mooncake's own client class, loaded, and made to survive a fork. It opens nothing.

Importing this module loads the library: only who opens a client does.
"""

import ctypes
import os
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from unikv.backends.mooncake_native import Native


class Client(Native, Protocol):
    """A client that is not set up yet."""

    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        /,
    ) -> int:
        """Connect to a master, and lend it memory; holds the interpreter as long as it takes."""
        ...


new_client: Callable[[], Client] = import_module("mooncake.store").MooncakeDistributedStore

LOADED_IN = os.getpid()
"""The process that loaded the library: in a forked child of it no client can be set up."""

_libc = ctypes.CDLL(None)


def keep(client: Native) -> None:
    """Keep a client's destructor from running: in a forked child it crashes, or waits for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def let_go(client: Native) -> None:
    """Let a client that was kept, and is closed, be destroyed; in the process that kept it."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(client))


def _end_plainly() -> None:
    """Let a forked child end without the library's exit handlers, which crash it.

    Handlers run from the last to the first, so that this one, which takes the exit status, is the
    only one: Python itself and its own handlers are done by then.
    """
    _libc.on_exit(_libc._exit, None)  # noqa: SLF001 - the C function of this name


os.register_at_fork(after_in_child=_end_plainly)

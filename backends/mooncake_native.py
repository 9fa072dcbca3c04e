"""Native: the calls of Mooncake's own client that a store makes. They know no `Store`.

Keys, addresses and sizes go in; numbers come out: sizes or zero, or a code below zero.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Numbers: TypeAlias = Sequence[int]
Rows: TypeAlias = Sequence[Sequence[int]]


class MemoryAt(Protocol):
    """Where in an owner's memory a replica lies."""

    @property
    def size(self) -> int:
        """Bytes of the object."""
        ...

    @property
    def transport_endpoint(self) -> str:
        """Whose memory it is."""
        ...


class MemoryReplica(Protocol):
    """A replica in memory."""

    @property
    def buffer_descriptor(self) -> MemoryAt:
        """Where it is."""
        ...


class DiskReplica(Protocol):
    """A replica in a file that all clients share."""

    @property
    def object_size(self) -> int:
        """Bytes of the object."""
        ...


class Replica(Protocol):
    """One replica of an object."""

    def is_memory_replica(self) -> bool:
        """Tell whether it is in memory."""
        ...

    def is_disk_replica(self) -> bool:
        """Tell whether it is in a file that all clients share."""
        ...

    def get_memory_descriptor(self) -> MemoryReplica:
        """Return where in memory it is."""
        ...

    def get_disk_descriptor(self) -> DiskReplica:
        """Return what file it is."""
        ...


class Native(Protocol):
    """``mooncake.store.MooncakeDistributedStore``, the calls of it that we make."""

    def register_buffer(self, buffer_ptr: int, size: int, /) -> int:
        """Make memory known to the transport."""
        ...

    def unregister_buffer(self, buffer_ptr: int, /) -> int:
        """Make the transport forget memory."""
        ...

    def batch_get_replica_desc(self, keys: Sequence[str], /) -> Mapping[str, Sequence[Replica]]:
        """Return the replicas of what exists, and take a lease on each."""
        ...

    def batch_is_exist(self, keys: Sequence[str], /) -> list[int]:
        """Return 1 or 0 of each key, and take a lease on each that exists."""
        ...

    def get_size(self, key: str, /) -> int:
        """Return the bytes of one object, and take a lease on it."""
        ...

    def batch_get_session_start(self, keys: Sequence[str], /) -> list[int]:
        """Ask the master where objects are, and take a lease on each."""
        ...

    def batch_get_into_multi_buffer_ranges(
        self, keys: Sequence[str], pointers: Rows, sizes: Rows, offsets: Rows, /
    ) -> list[int]:
        """Read ranges of objects that a session is open on, without asking the master."""
        ...

    def batch_get_session_end(self, keys: Sequence[str], /) -> int:
        """Forget where objects are."""
        ...

    def batch_get_into(
        self, keys: Sequence[str], pointers: Numbers, sizes: Numbers, /
    ) -> list[int]:
        """Read whole objects, from disk too."""
        ...

    def batch_put_session_start(self, keys: Sequence[str], sizes: Numbers, /) -> list[int]:
        """Reserve objects that are not there, for this client alone."""
        ...

    def batch_put_from_multi_buffer_ranges(
        self, keys: Sequence[str], pointers: Rows, sizes: Rows, offsets: Rows, /
    ) -> list[int]:
        """Write ranges of reserved objects."""
        ...

    def batch_put_session_end(self, keys: Sequence[str], /) -> list[int]:
        """Make reserved objects readable."""
        ...

    def batch_put_session_revoke(self, keys: Sequence[str], /) -> list[int]:
        """Give reserved objects up."""
        ...

    def batch_upsert_from(
        self, keys: Sequence[str], pointers: Numbers, sizes: Numbers, /
    ) -> list[int]:
        """Store whole objects, in place of what is there or is being written."""
        ...

    def batch_remove(self, keys: Sequence[str], force: bool = False, /) -> list[int]:  # noqa: FBT001, FBT002 - the library's order
        """Remove objects that nobody holds a lease on."""
        ...

    def close(self) -> int:
        """Release everything. Any later call crashes the process."""
        ...

"""Sizes: how large objects are, from the client or from the master's HTTP server. No `Outcome`.

The client's questions take a lease on each object that exists, so that nothing asked for can be
evicted or removed for a while. The HTTP server's take none.
"""

from collections.abc import Sequence

from unikv.backends.mooncake_admin import Admin
from unikv.backends.mooncake_codes import ABSENT, INVALID, NOT_READY, passing, refusal
from unikv.backends.mooncake_marks import MARK_BYTES, size_meant
from unikv.backends.mooncake_memory import Memory
from unikv.backends.mooncake_native import Native, Replica

TRIES = 5
"""How often an object is looked at that changes between two looks."""


class Sizes:
    """Tells sizes, as users know them: a mark has that of what it stands for."""

    def __init__(self, native: Native, memory: Memory, admin: Admin | None) -> None:
        self._native = native
        self._memory = memory
        self._admin = admin

    def ask(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the sizes of the keys that exist.

        Raises:
            StoreError: the master does not answer, or one object's size cannot be told.
        """
        if not keys:
            return {}
        found = self._admin.sizes(keys) if self._admin else self._ask_client(keys)
        for key in [key for key, size in found.items() if size == MARK_BYTES]:
            size = self._meant(key)
            if size is None:
                del found[key]
            else:
                found[key] = size
        return found

    def whole(self, key: str, size: int) -> bytes | None:
        """Return an object of at most `MARK_BYTES`, None where there is none by now.

        Raises:
            StoreError: it is another by now, or cannot be read.
        """
        with self._memory.look() as room:
            [code] = self._native.batch_get_into([key], [room.address], [size])
            data = bytes(room.view[:size])
        if code in ABSENT:
            return None
        if code < 0 and code != INVALID:
            raise refusal(code)
        meant = size_meant(data) if size == MARK_BYTES else size
        if code != size or meant not in (size, None):
            raise passing("another object came meanwhile")
        return None if meant is None else data

    def awaited(self, key: str) -> bool:
        """Tell whether somebody has begun an object and not ended."""
        return self._native.get_size(key) == NOT_READY

    def _ask_client(self, keys: Sequence[str]) -> dict[str, int]:
        replicas = self._native.batch_get_replica_desc(keys)
        if not replicas:  # nothing there, or no answer: the library says the same of both
            [code] = self._native.batch_is_exist(keys[:1])
            if code < 0:
                raise refusal(code)
        found: dict[str, int] = {}
        for key, of in replicas.items():
            size = _size(of) or self._ask_alone(key)
            if size is not None:
                found[key] = size
        return found

    def _ask_alone(self, key: str) -> int | None:
        """Return the size of one object wherever it lies, None if there is none."""
        return _checked(self._native.get_size(key))

    def _meant(self, key: str) -> int | None:
        """Return the size of an object of MARK_BYTES, which may be a mark, or another by now."""
        with self._memory.look() as room:
            for _ in range(TRIES):
                # Whole, so that it fails if the object is larger by now: the bytes are of a mark.
                [code] = self._native.batch_get_into([key], [room.address], [MARK_BYTES])
                if code == MARK_BYTES:
                    return size_meant(bytes(room.view[:MARK_BYTES]))
                if code < 0 and code != INVALID:
                    return _checked(code)
                size = self._ask_alone(key)
                if size != MARK_BYTES:
                    return size
        raise passing(f"{key!r} was another object at each of {TRIES} looks")


def _checked(size: int) -> int | None:
    """Return a size, None where the code says that there is no object, or raise for any other."""
    if size in ABSENT:
        return None
    if size < 0:
        raise refusal(size)
    return size


def _size(replicas: Sequence[Replica]) -> int:
    """Return the size that the first replica tells; 0 where the library does not say."""
    for replica in replicas:
        if replica.is_memory_replica():
            return replica.get_memory_descriptor().buffer_descriptor.size
        if replica.is_disk_replica():
            return replica.get_disk_descriptor().object_size
    return 0

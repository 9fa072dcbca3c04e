"""RecentKeys: a bounded set of texts that forgets its oldest. It knows not what they name."""

from threading import Lock

CAPACITY = 65_536


class RecentKeys:
    """A set in order of remembering; beyond ``capacity`` the oldest member is forgotten.

    A client keeps two: keys whose bytes a load found bad, so that the next save replaces them, and
    pages that it left to another replica, so that the next save fills what is still missing.
    Forgetting costs one more load or save, never a wrong byte.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._keys: dict[str, None] = {}
        self._lock = Lock()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def remember(self, key: str) -> None:
        """Add ``key``, or make it the newest."""
        with self._lock:
            self._keys.pop(key, None)
            self._keys[key] = None
            if len(self._keys) > self._capacity:
                del self._keys[next(iter(self._keys))]

    def forget(self, key: str) -> None:
        """Drop ``key`` if it is there."""
        self._keys.pop(key, None)

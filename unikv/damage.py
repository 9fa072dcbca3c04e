"""DamageLog: the keys whose bytes a load found bad, until a save has replaced them.

It knows no store: it is what lets a store that keeps existing objects heal.
"""

CAPACITY = 65_536
"""Keys remembered; beyond it the oldest is forgotten, and found again by the next load of it."""


class DamageLog:
    """A bounded, insertion-ordered set of keys."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._keys: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def remember(self, key: str) -> None:
        """Note that the object under ``key`` holds bad bytes."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > self._capacity:
            del self._keys[next(iter(self._keys))]

    def forget(self, key: str) -> None:
        """Note that the object under ``key`` was replaced or read well."""
        self._keys.pop(key, None)

"""File systems of fsspec with the quirks that real ones have, over fsspec's own in memory."""

from collections.abc import Callable
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]


class Quirky(MemoryFileSystem):  # type: ignore[misc]
    """One that does what a test tells it; files are shared by all of its kind."""

    protocol = "quirky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    quirks: ClassVar[dict[str, Callable[..., Any]]] = {}
    calls: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("quirky://"))

    def mv(self, path1: str, path2: str, **_: object) -> None:
        if not self._quirk("mv", path1, path2):
            self._rename(path1, path2)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: object
    ) -> Any:
        said = self._quirk("cat_file", path, start, end)
        return super().cat_file(path, start, end) if said is None else said

    def info(self, path: str, **_: object) -> Any:
        said = self._quirk("info", path)
        return super().info(path) if said is None else said

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        if not self._quirk("pipe_file", path, value, mode):
            super().pipe_file(path, value, mode=mode)

    def _rename(self, path1: str, path2: str) -> None:
        one, two = self._strip_protocol(path1), self._strip_protocol(path2)
        if not self.exists(self._parent(two)):
            raise FileNotFoundError(two)
        self.store[two] = self.store.pop(one)

    def _quirk(self, name: str, *args: object) -> Any:
        self.calls.append(name)
        quirk = self.quirks.get(name)
        return quirk(self, *args) if quirk else None


def install() -> type[Quirky]:
    """Make it known to fsspec, empty and without quirks."""
    fsspec.register_implementation("quirky", Quirky, clobber=True)
    Quirky.store.clear()
    Quirky.pseudo_dirs[:] = [""]
    Quirky.quirks.clear()
    Quirky.calls.clear()
    return Quirky

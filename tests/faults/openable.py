"""A file store that another process can open, whatever options it has."""

from unikv.backends.file import FileStore
from unikv.store import Opener


class OpenableFileStore(FileStore):
    @property
    def opener(self) -> Opener:
        return Opener("unikv.backends.file", "FileStore", [self.root])

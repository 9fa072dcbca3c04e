"""Cells: the 257 parts of a root whose bytes are counted apart. They know no file.

Keys begin with a hash, so the 256 first-level folders hold equal shares of what is stored, but for
chance; the last cell is the folder of all other keys.
"""

from unikv.backends.file_names import OTHERS

FANNED = 256
CELLS = FANNED + 1

_NAMES = [f"{number:02x}" for number in range(FANNED)] + [OTHERS]
_NUMBERS = {name.encode(): number for number, name in enumerate(_NAMES[:FANNED])}


def cell_name(cell: int) -> str:
    """Return the name of a cell's folder in the root."""
    return _NAMES[cell]


def cell_of(path: bytes, root_bytes: int) -> int:
    """Return the cell of a file from its path, whose root is ``root_bytes`` long."""
    return _NUMBERS.get(path[root_bytes + 1 : root_bytes + 3], FANNED)

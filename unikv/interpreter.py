"""Interpreter: what another process needs to run this same code. It starts none."""

import errno
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from unikv.errors import SpecError


def find_interpreter() -> str:
    """Return the path of the Python interpreter that a new process is to run.

    Raises:
        SpecError: there is none: Python is embedded in a program that has not told, or frozen.
    """
    python = _told()
    frozen = getattr(sys, "frozen", False) and python == sys.executable
    found = None if frozen or not python else shutil.which(python)
    if found is not None:
        return str(Path(found).absolute())
    reason = os.strerror(errno.EACCES if Path(python).exists() else errno.ENOENT)
    what = f"the Python interpreter {python!r:.200} cannot be run: {reason}"
    if not python:
        what = "this process knows no Python interpreter to start"
    elif frozen:
        what = f"{python!r:.200} is a frozen program, and no Python interpreter to start"
    raise SpecError(f"{what}; want multiprocessing.set_executable(path) to name one")


def search_path() -> list[str]:
    """Return where this process finds modules, as it is for one in another folder, too."""
    found: list[str] = []
    for place in sys.path:
        # Python passes over what is no text, and over folders in one that was removed.
        with suppress(FileNotFoundError):
            if isinstance(place, str):
                found.append(str(Path(place).absolute()))
    return found


def _told() -> str:
    """Return what Python, or who embeds it, told of where the interpreter is; else ""."""
    try:
        from multiprocessing.spawn import get_executable
    except TypeError:  # some versions of Python 3.11, where they know of none
        return ""
    return os.fsdecode(get_executable() or "")

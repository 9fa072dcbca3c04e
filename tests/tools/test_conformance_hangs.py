"""The process of `unikv conformance` ends, whatever call hangs, and so do those that it started."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

HANGS = """
import sys, time, unikv.testing_elsewhere as elsewhere
from concurrent.futures import ThreadPoolExecutor
from unikv.backends.memory import MemoryStore
from unikv.tools.cli import main
pool = ThreadPoolExecutor(1)  # whose threads the interpreter waits for
def hang(*_, **__):
    return pool.submit(time.sleep, 600).result()
setattr(MemoryStore, sys.argv[1], hang)
sys.exit(main(["conformance", "memory://", "--limit", "0.5", "--only", sys.argv[2]]))
"""


@pytest.mark.parametrize(
    ("call", "only", "status"),
    [
        ("__init__", "half open", 2),
        ("put", "half open", 2),
        ("get", "half open", 1),
        ("delete", "half open", 1),
        ("close", "half open", 1),
        ("list", "may be left", 1),
    ],
)
def test_the_process_ends_when_the_last_promise_hangs(call: str, only: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS, call, only],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == status
    assert "no end after 0.5 s" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_other_processes_end_with_it(tmp_path: Path) -> None:
    """One that carries out a promise, and hangs in the backend, is not left behind."""
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "from unikv.backends.file import FileStore\n"
        "def open_it(path, marker):\n"
        "    open(marker, 'a').write(str(__import__('os').getpid()) + '\\n')\n"
        "    time.sleep(600)\n"
    )
    marker = tmp_path / "pids"
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from unikv.backends.memory import MemoryStore\n"
        "from unikv.store import Opener\n"
        f"MemoryStore.opener = Opener('slow', 'open_it', ['', {str(marker)!r}])\n"
        "from unikv.tools.cli import main\n"
        "words = ['--limit', '5', '--only', 'a forked child answers']\n"
        "sys.exit(main(['conformance', 'memory://', *words]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 1
    (pid,) = marker.read_text().split()
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()

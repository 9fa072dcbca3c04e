"""README: its first program runs as it stands, twice."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_program_runs_twice(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    program = found[1].replace("file:///tmp/unikv-example", tmp_path.as_uri())
    for stored in (8, 0):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"SaveReport(stored={stored}," in done.stdout

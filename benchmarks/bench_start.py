"""Start: how long `import unikv` and `unikv --help` take, beside an empty interpreter.

python benchmarks/bench_start.py [--rounds 15]
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import unikv'": [sys.executable, "-c", "import unikv"],
    "... and all of identity": [sys.executable, "-c", "from unikv import Namespace, page_hashes"],
    "unikv --help": [sys.executable, "-m", "unikv.tools.cli", "--help"],
}


def run(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}; ms, median (best) of {rounds}, whole processes"
    )
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):  # interleaved, so that drift hits all alike; the first warms up
        for name, command in COMMANDS.items():
            times[name].append(run(command))
    for name, taken in times.items():
        warm = taken[1:]
        print(f"{name:28} {statistics.median(warm):7.1f} ({min(warm):.1f})")


if __name__ == "__main__":
    main()

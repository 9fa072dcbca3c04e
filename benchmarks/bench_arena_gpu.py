"""Arena on a GPU machine: registered with CUDA, its copies beside those of memory that is not.

Run on a machine with a GPU: python benchmarks/bench_arena_gpu.py RESULT.json COMMIT
"""

import json
import platform
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from unikv.arena import Arena

SIZE = 1 << 30
ROUNDS = 9


def copy(target: torch.Tensor, source: torch.Tensor) -> float:
    """Return the median GB/s of copies from ``source`` to ``target``."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun = perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(perf_counter() - begun)
    return round(source.nbytes / median(times) / 1e9, 2)


def main(result: str, commit: str) -> None:
    device = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    rows = {}
    for name in ("torch pinned", "arena, registered", "arena, not registered"):
        seconds = {}
        begun = perf_counter()
        if name == "torch pinned":
            host = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        else:
            arena = Arena(SIZE, shared=True)
            host = arena.tensor
            seconds["reserve_s"] = round(perf_counter() - begun, 3)
            if name == "arena, registered":
                begun = perf_counter()
                arena.pin()
                seconds["register_s"] = round(perf_counter() - begun, 3)
                assert host.is_pinned()
        rows[name] = {"to_device": copy(device, host), "to_host": copy(host, device), **seconds}
        device.random_(0, 256)
        copy(host, device)
        assert torch.equal(host, device.cpu()), name
    report = {
        "command": "python benchmarks/bench_arena_gpu.py RESULT.json COMMIT",
        "commit": commit,
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "bytes": SIZE,
        "GB/s": rows,
    }
    Path(result).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])

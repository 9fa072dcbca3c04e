"""A save that comes after a CUDA event: the bytes it stores, and how late the event is noticed.

A pool in pinned memory is being filled by copies from the device, behind a kernel that runs for
0.3 s, when the save is asked for. What is loaded then must be what the device holds.

Run on a machine with a GPU: python benchmarks/bench_after_gpu.py RESULT.json COMMIT
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from unikv import Client, KVSpec, Namespace, PagedCache, Topology, open_store, page_hashes

PAGES, TOKENS, LAYERS = 64, 16, 8
SHAPE = (PAGES * TOKENS, 4, 64)
SPEC = KVSpec.mha(layers=LAYERS, kv_heads=4, head_dim=64, dtype="bfloat16", page_tokens=TOKENS)
ROUNDS = 9
LATE_S = 0.3
CYCLES_S = 1.7e9  # of `torch.cuda._sleep`, about


def client_of(store_url: str, pool: list[torch.Tensor], io: str) -> Client:
    """Return a client of a pool of K and V."""
    namespace = Namespace(spec=SPEC, model="bench", weights="unversioned", rope="none")
    cache = PagedCache.slots(pool[:LAYERS], pool[LAYERS:])
    return Client(open_store(store_url), namespace, Topology().rank(), cache, io=io, deadline_s=20)


def measure(io: str, root: str) -> dict[str, object]:
    """Return what came of saves behind events, by one io mode."""
    source = [torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(2 * LAYERS)]
    pool = [torch.zeros(SHAPE, dtype=torch.bfloat16).pin_memory() for _ in source]
    other = [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in source]
    slots = torch.arange(PAGES * TOKENS).view(PAGES, TOKENS)
    url = Path(root, io).as_uri()
    noticed, right, called = [], 0, []
    with client_of(url, pool, io) as client, client_of(url, other, "threads") as reader:
        client.match(page_hashes(range(TOKENS), TOKENS))  # its I/O process is there
        for n in range(ROUNDS):
            pages = page_hashes(range(n, n + PAGES * TOKENS), TOKENS)
            for part, now in zip(pool, source, strict=True):
                now.add_(1)
                part.zero_()
            torch.cuda._sleep(int(LATE_S * CYCLES_S))  # type: ignore[no-untyped-call] # noqa: SLF001
            for part, now in zip(pool, source, strict=True):
                part.copy_(now, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no type for it
            event.record()
            begun = perf_counter()
            ticket = client.save_async(pages, slots, after=event)
            called.append(perf_counter() - begun)
            event.synchronize()
            happened = perf_counter()
            assert ticket.wait_source_free(10)
            noticed.append(perf_counter() - happened)
            assert ticket.result(20).ok
            assert reader.load(pages, slots).pages == PAGES
            right += all(map(torch.equal, other, (now.cpu() for now in source)))
    return {
        "io": io,
        "saves": ROUNDS,
        "saves whose bytes are those of the device": right,
        "call_ms": round(median(called) * 1e3, 3),
        "source_free_after_event_ms": round(median(noticed) * 1e3, 2),
    }


def main() -> None:
    """Measure, print and write what came of it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        rows = [measure(io, root) for io in ("threads", "process")]
    result = {
        "command": "python benchmarks/bench_after_gpu.py RESULT.json COMMIT",
        "commit": sys.argv[2],
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()

"""Bench: codec zstd on the demo model's real KV and on noise: what it saves, and what that costs.

Usage: python benchmarks/bench_codec.py [--tokens 512] [--rounds 5]
MB are 10**6 bytes of slabs, before the codec. Speeds are by the CPU time of one thread, medians of
the rounds, each of all slabs of the cache in turn; ratios are payload bytes before over after, slab
lengths included. The last columns are links, in MB/s: on slower ones that time is won back by what
is not sent. Without the demo's packages the real KV is left out, and that is said.
"""

import argparse
import platform
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import version
from os import cpu_count, getloadavg
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

import unikv.codec
from unikv.codec import Codec
from unikv.errors import MissingExtraError
from unikv.namespace import Namespace
from unikv.objects import Damage, ObjectFormat
from unikv.pages import page_hashes
from unikv.spec import KVSpec

PAGE_TOKENS = 64
LAYERS = 15  # of what is made up
PROMPT = Path(__file__).parents[1] / "tools" / "demo_prompt.txt"
Cache = NDArray[np.uint16]  # bfloat16 [layers, 2, heads, tokens, dim]


class Row(NamedTuple):
    """Ratio, and MB/s packing and unpacking."""

    ratio: float
    pack: float
    unpack: float

    def __str__(self) -> str:
        spared = 1 - 1 / self.ratio
        links = f"{self.pack * spared:8.0f} {self.unpack * spared:8.0f}" if spared > 0 else ""
        return f"{self.ratio:6.3f} {self.pack:8.0f} {self.unpack:8.0f}   {links}"


def real_cache(tokens: int) -> Cache:
    """Compute the cache of the demo's prompt."""
    import torch

    from unikv.tools.demo_model import Model, find_model

    model = Model.load(find_model())
    ids = model.ask(PROMPT.read_text(), "What is this about?")
    while len(ids) < tokens:
        ids += ids
    kv = model.prefill(ids[:tokens]).kv
    found: Cache = kv.view(torch.int16).numpy().view(np.uint16)
    return found


def normal_cache(tokens: int) -> Cache:
    """Make a cache of normally distributed bfloat16 numbers."""
    shape = (LAYERS, 2, 3, tokens, 64)
    numbers = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def noise_cache(tokens: int) -> Cache:
    """Make a cache of random bytes, which nothing compresses."""
    return np.random.default_rng(2).integers(0, 2**16, (LAYERS, 2, 3, tokens, 64), np.uint16)


def slabs_of(cache: Cache, heads: int) -> tuple[ObjectFormat, list[bytes]]:
    """Return the format of a grid with so many heads a chunk, and payloads of its objects."""
    layers, _, kv_heads, tokens, dim = cache.shape
    spec = KVSpec.mha(
        layers=layers, kv_heads=kv_heads, head_dim=dim, dtype="bfloat16", page_tokens=PAGE_TOKENS
    )
    form = ObjectFormat.of(
        Namespace(
            spec=spec,
            weights="unversioned",
            model="bench",
            rope="none",
            heads_per_chunk=heads,
            layers_per_chunk=15,
            codec="zstd",
        )
    )
    payloads = []
    for page in range(tokens // PAGE_TOKENS):
        rows = cache[:, :, :, page * PAGE_TOKENS :][:, :, :, :PAGE_TOKENS]
        for chunk in form.grid.chunks:
            part = rows[chunk.layers.start : chunk.layers.stop, :, chunk.heads.start :]
            cell = part[:, :, :heads].transpose(0, 1, 3, 2, 4)  # layer, part, token, head, dim
            payloads.append(np.ascontiguousarray(cell).tobytes())
    return form, payloads


def median_s(call: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of a call; one call more warms it."""
    times = []
    for _ in range(rounds + 1):
        begun = thread_time()
        call()
        times.append(thread_time() - begun)
    return statistics.median(times[1:])


def measure(codec: Codec, payloads: list[bytes], rounds: int) -> Row:
    """Pack all payloads and unpack them again."""
    views = [memoryview(payload) for payload in payloads]
    forms = [codec.pack(view) for view in views]
    stored = [b"".join(some) for some in forms]
    lengths = [[len(form) for form in some] for some in forms]
    into = memoryview(bytearray(len(payloads[0])))

    def unpack() -> Iterator[bool]:
        for one, some, payload in zip(stored, lengths, payloads, strict=True):
            if codec.unpack(memoryview(one), some, into) is not None:
                raise SystemExit("what was packed does not unpack")
            yield into == payload

    if not all(unpack()):
        raise SystemExit("what was unpacked is not what was packed")
    size = sum(map(len, payloads)) / 1e6
    return Row(
        size * 1e6 / sum(map(len, stored)),
        size / median_s(lambda: [codec.pack(view) for view in views], rounds),
        size
        / median_s(
            lambda: [
                codec.unpack(memoryview(a), b, into) for a, b in zip(stored, lengths, strict=True)
            ],
            rounds,
        ),
    )


def compare(name: str, cache: Cache, rounds: int) -> None:
    """Print the rows of one cache: by planes and plain, at three levels, in two grids."""
    for heads in (1, 3):
        form, payloads = slabs_of(cache, heads)
        codec = form.codec
        assert codec is not None
        plain = Codec(codec.slab_bytes, (slice(0, codec.slab_bytes, 1),))
        for how, one in (("planes", codec), ("plain", plain)):
            for level in (1, 3, 6) if how == "planes" else (1,):
                unikv.codec.LEVEL = level
                row = measure(one, payloads, rounds if level == 1 else 1)
                print(f"{name:12} {codec.slab_bytes // 1024:4} KiB {how:6} level {level}  {row}")
        unikv.codec.LEVEL = 1


def objects(name: str, cache: Cache, rounds: int) -> None:
    """Print what whole objects cost, tags included, beside those of codec none."""
    coded, payloads = slabs_of(cache, 3)
    facts = coded.namespace
    plain = ObjectFormat.of(
        Namespace(
            spec=facts.spec,
            weights="unversioned",
            model="bench",
            rope="none",
            layer_cuts=facts.layer_cuts,
            heads_per_chunk=facts.heads_per_chunk,
        )
    )
    [page] = page_hashes(range(PAGE_TOKENS), PAGE_TOKENS)
    size = sum(map(len, payloads)) / 1e6
    chunk = coded.grid.chunks[0]
    for form in (plain, coded):

        def make(form: ObjectFormat = form) -> list[list[memoryview]]:
            made = [form.compose(page, chunk, payload) for payload in payloads]
            return [[memoryview(buffer) for buffer in buffers] for buffers in made]

        made, into = make(), memoryview(bytearray(len(payloads[0])))

        def take(
            form: ObjectFormat = form,
            made: list[list[memoryview]] = made,
            into: memoryview = into,
        ) -> None:
            for header, stored, _ in made:
                lengths = form.read_lengths(page, chunk, header)
                damage = form.check_apart(page, chunk, header, stored, 0, chunk.slabs)
                if damage is not None or isinstance(lengths, Damage):
                    raise SystemExit("what was made does not fit its tags")
                if form.codec is not None and form.codec.unpack(stored, lengths, into):
                    raise SystemExit("what was packed does not unpack")

        ways = size / median_s(make, rounds), size / median_s(take, rounds)
        words = f"{name:12} objects, codec {form.namespace.codec:5}"
        print(f"{words} made {ways[0]:8.0f} MB/s, checked and unpacked {ways[1]:8.0f} MB/s")


def main() -> None:
    """Print the environment and the figures."""
    parser = argparse.ArgumentParser(description="codec zstd on real KV and on noise")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {cpu_count()} cores, {platform.system()} {platform.release()}")
    print(
        f"Python {platform.python_version()}, zstandard {version('zstandard')} "
        f"({'.'.join(map(str, zstandard.ZSTD_VERSION))}), numpy {np.__version__}"
    )
    print(f"{options.tokens} tokens, pages of {PAGE_TOKENS}, load {getloadavg()[0]:.1f}")
    caches: dict[str, Cache] = {}
    try:
        caches["SmolLM2-135M"] = real_cache(options.tokens)
    except MissingExtraError as error:
        print(f"no real KV: {error}")
    caches |= {"normal": normal_cache(options.tokens), "noise": noise_cache(options.tokens)}
    titles = f"{'ratio':>6} {'pack':>8} {'unpack':>8}   {'links: put':>8}      get"
    print(f"{'':12} {'slab':>8} {'':14}  {titles}")
    for name, cache in caches.items():
        compare(name, cache, options.rounds)
    for name, cache in caches.items():
        objects(name, cache, options.rounds)


if __name__ == "__main__":
    main()

"""Match bench: how long `match` of a million tokens takes, and how often it asks the store.

15,625 pages of 64 tokens, 8 and 16 chunks a page, in files on tmpfs, a dict, Valkey and an S3
server; all pages are stored, half of them, or none. Each row is beside the bare calls for the very
keys that were asked for: ``dict.get``, a loop of ``os.stat``, redis-py's pipelines of 10,000
STRLEN, and HEADs by obstore from as many threads as the store has. Seconds are medians, on the
clock and of this process's CPU, which says more where a server shares the cores. A client's row
has what is spent in this process, not in its I/O process.

What is real: every server; every object in the dict, in files (sparse ones, of zeros) and on Valkey
(set by a script, of zeros). Sizes are those of real objects of a model with one head of one
element; a match looks at nothing else. On S3 only those objects are there that a match asks for,
as a dry run over a store that claims them all tells. The part "worst" is such a dry run alone: the
most rounds and stats over the ends of a prefix-closed store, of which it tries one in ``--stride``.

Run: OMP_NUM_THREADS=1 python benchmarks/bench_match.py [--pages 15625] [--only file redis ...]
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple, cast

import torch

from unikv import Catalog, Client, KVSpec, Namespace, PagedCache, Topology, open_store
from unikv import page_hashes as hashes_of
from unikv.backends.file_names import path_of
from unikv.backends.redis_url import PREFIX
from unikv.coverage import EveryPage
from unikv.matching import Want, gallop
from unikv.objects import ObjectFormat
from unikv.reports import Match
from unikv.store import Item, Records, Store

sys.path.insert(0, str(Path(__file__).parents[1]))

PAGE_TOKENS = 64
MEMORY = Path("/dev/shm")  # noqa: S108 - on purpose
CHUNKS = (8, 16)
PIPELINE = 10_000
DEADLINE_S = 60.0
DEFAULT_DEADLINE_S = 5.0  # of a Catalog
ROUNDS, STATS = 4, 128
ROW_S = 1.0  # what a row may spend on more turns
SET_ALL = """
local value = string.rep('\\0', tonumber(ARGV[1]))
local count = tonumber(ARGV[2])
for page = count + 3, #ARGV do
    for ending = 3, count + 2 do redis.call('SET', ARGV[page] .. ARGV[ending], value) end
end
"""


class Question(NamedTuple):
    """Pages to match, and how many of them are stored."""

    name: str
    pages: Sequence[str]
    stored: int


class Model:
    """A namespace of ``chunks`` chunks a page, and what is asked of it."""

    def __init__(self, chunks: int, pages: int) -> None:
        spec = KVSpec.mha(
            layers=chunks, kv_heads=1, head_dim=1, dtype="bfloat16", page_tokens=PAGE_TOKENS
        )
        identity: Any = {"model": "bench", "weights": "unversioned", "rope": "none"}
        self.namespace = Namespace(spec=spec, layers_per_chunk=1, heads_per_chunk=1, **identity)
        form = ObjectFormat.keyless(self.namespace)
        self.want = Want("kv", form, form.grid.chunks, EveryPage(), required=True)
        (self.size,) = {form.object_bytes(chunk) for chunk in form.grid.chunks}
        self.endings = [form.key("", chunk) for chunk in form.grid.chunks]
        tokens = pages * PAGE_TOKENS
        self.pages = hashes_of(range(tokens), PAGE_TOKENS)
        others = hashes_of(range(1, tokens + 1), PAGE_TOKENS)
        half = pages // 2
        self.questions = (
            Question("full", self.pages, pages),
            Question("half", [*self.pages[:half], *others[half:]], half),
            Question("miss", others, 0),
        )

    def all_keys(self) -> Iterator[str]:
        """Yield the keys of all objects that are stored."""
        return (page + ending for page in self.pages for ending in self.endings)

    def client(self, store: Store, io: str) -> Client:
        """Return a client with a pool of one page."""
        layer = torch.zeros((PAGE_TOKENS, 1, 1), dtype=torch.bfloat16)
        k, v = ([layer.clone() for _ in self.endings] for _ in range(2))
        options: Any = {"io": io, "siblings": False, "deadline_s": DEADLINE_S}
        pool, rank = PagedCache.slots(k, v), Topology().rank()
        return Client(store, self.namespace, rank, pool, staging_bytes=1 << 20, **options)


class Ledger:
    """A store that notes what it is asked for; all else is the store's own."""

    def __init__(self, store: Records) -> None:
        self._store = store
        self.rounds: list[Sequence[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Note the keys and ask for their sizes."""
        self.rounds.append(keys)
        return self._store.stat(keys)

    def take(self) -> list[Sequence[str]]:
        """Return the rounds since the last call."""
        rounds, self.rounds = self.rounds, []
        return rounds


class Claims:
    """Says that all objects of the first ``end`` pages are there; costly to ask, as it claims."""

    costly_stat = True

    def __init__(self, pages: Sequence[str], size: int) -> None:
        self._rows = {page: row for row, page in enumerate(pages)}
        self._size = size
        self.end = len(pages)

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return the size for keys that begin with one of these pages."""
        end, rows = self.end, self._rows
        return [self._size if rows.get(key[:64], end) < end else None for key in keys]


class Side(NamedTuple):
    """A store with all objects of a model."""

    name: str
    store: Store
    look: Callable[[Sequence[str]], object]  # the bare calls for some keys
    io: str  # of the client


class Times(NamedTuple):
    """What one call took, in seconds: on the clock, and of this process on all cores."""

    wall: float
    cpu: float


def time_of(call: Callable[[], object]) -> Times:
    """Time one call."""
    start, before = perf_counter(), process_time()
    call()
    return Times(perf_counter() - start, process_time() - before)


def medians(times: Sequence[Times]) -> Times:
    """Return the median of each."""
    return Times(*map(median, zip(*times, strict=True)))


def show(side: Side, model: Model, most: int) -> None:
    """Print the rows of one store."""
    *_, none = model.questions
    ledger = Ledger(side.store)
    catalog = Catalog(cast("Store", ledger), model.namespace, deadline_s=DEADLINE_S)
    check(catalog.match(none.pages), none)  # its thread and the connection are there then
    for question in model.questions:
        ledger.take()
        begun = perf_counter()
        ours: list[Times] = []
        bare: list[Times] = []
        while not ours or (len(ours) < most and perf_counter() - begun < ROW_S):
            ours.append(time_of(partial(match, catalog, question)))
            rounds = ledger.take()
            keys = [key for some in rounds for key in some]
            bare.append(time_of(partial(side.look, keys)))
        wall, cpu = medians(ours)
        own, own_cpu = medians(bare)
        late = "" if wall < DEFAULT_DEADLINE_S else f"  OVER the default {DEFAULT_DEADLINE_S:.0f} s"
        if getattr(side.store, "costly_stat", False):
            late += f"  want <= {ROUNDS} and {STATS}: {_met(len(rounds), len(keys))}"
        print(
            f"{side.name:<8}{len(model.endings):>3}  {question.name:<5}{len(rounds):>2} rounds "
            f"{len(keys):>7} stats  {wall:8.4f} s {cpu:8.4f} CPU {len(keys) / wall:>9,.0f}/s"
            f"  bare {own:8.4f} s {own_cpu:8.4f} CPU {len(keys) / own:>9,.0f}/s"
            f"  x{wall / own:.2f} CPU x{cpu / own_cpu:.2f}{late}",
            flush=True,
        )
    catalog.close()
    show_client(side, model)


def show_client(side: Side, model: Model) -> None:
    """Print what a client takes for the same, where all is stored."""
    full, _, none = model.questions
    with model.client(side.store, side.io) as client:
        check(client.match(none.pages), none)
        wall, cpu = time_of(partial(match, client, full))
    print(
        f"{side.name:<8}{len(model.endings):>3}  full  Client, io={side.io:<11}"
        f"{wall:8.4f} s {cpu:8.4f} CPU",
        flush=True,
    )


def match(of: Catalog | Client, question: Question) -> None:
    """Match, and stop unless what is found is what is stored."""
    check(of.match(question.pages), question)


def check(found: Match, question: Question) -> None:
    """Stop unless a match found what is stored."""
    if found.pages != question.stored:
        raise SystemExit(f"{question.name}: {found}, want {question.stored} pages")


@contextmanager
def in_memory(model: Model, _: Path) -> Iterator[Side]:
    """Fill a dict."""
    store = open_store("memory://")
    value = bytes(model.size)
    if not store.put([Item(key, [value]) for key in model.all_keys()]).ok:
        raise SystemExit("memory: put failed")
    objects: dict[str, tuple[bytes, float]] = cast("Any", store)._objects  # noqa: SLF001

    def look(keys: Sequence[str]) -> object:
        return [objects.get(key) for key in keys]

    yield Side("memory", store, look, "threads")


@contextmanager
def in_files(model: Model, folder: Path) -> Iterator[Side]:
    """Make sparse files where a file store has them."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = open_store(Path(name).as_uri())
        made = set()
        for key in model.all_keys():
            path = path_of(name, key)
            parent = path.rpartition(b"/")[0].decode()
            if parent not in made:
                Path(parent).mkdir(parents=True, exist_ok=True)
                made.add(parent)
            fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.ftruncate(fd, model.size)
            os.close(fd)

        def look(keys: Sequence[str]) -> object:
            return [_size(path_of(name, key)) for key in keys]

        yield Side("file", store, look, "process")
        store.close()


def _size(path: bytes) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - the bare call
    except FileNotFoundError:
        return None


@contextmanager
def on_valkey(model: Model, folder: Path) -> Iterator[Side]:
    """Start a server and fill it by a script of its own."""
    import redis

    servers = import_module("tests.servers.redis_server")
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        servers.RedisServer(servers.valkey_binary(), Path(name)) as server,
    ):
        plain = redis.Redis.from_url(server.url)
        for at in range(0, len(model.pages), 1000):
            some = [PREFIX + page for page in model.pages[at : at + 1000]]
            plain.eval(SET_ALL, 0, model.size, len(model.endings), *model.endings, *some)
        store = open_store(server.url)

        def look(keys: Sequence[str]) -> object:
            sizes: list[int] = []
            for at in range(0, len(keys), PIPELINE):
                pipe = plain.pipeline(transaction=False)
                for key in keys[at : at + PIPELINE]:
                    pipe.strlen(PREFIX + key)
                sizes += pipe.execute()
            return sizes

        yield Side("redis", store, look, "process")
        store.close()
        plain.close()


@contextmanager
def on_s3(kind: str, model: Model, folder: Path) -> Iterator[Side]:
    """Start a server and put what matches will ask for."""
    import obstore
    from obstore.exceptions import BaseError

    start = getattr(import_module(f"tests.servers.s3_{kind}"), kind)
    wanted: dict[str, None] = {}
    claims = Claims(model.pages, model.size)
    for question in model.questions:
        ledger = Ledger(cast("Records", claims))
        check(gallop(cast("Records", ledger), [model.want], question.pages), question)
        asked = [key for some in ledger.take() for key in some]
        there = zip(asked, claims.stat(asked), strict=True)
        wanted |= dict.fromkeys(key for key, size in there if size)
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        start(Path(name) / kind) as server,
    ):
        os.environ.update(server.address.environment)
        store: Any = open_store(server.address.url("bench"))
        value = bytes(model.size)
        begun = perf_counter()
        if not store.put([Item(key, [value]) for key in wanted]).ok:
            raise SystemExit("s3: put failed")
        print(f"{kind}: put {len(wanted)} objects in {perf_counter() - begun:.1f} s")
        client = store._bucket.client()  # noqa: SLF001 - the same connections for both sides

        def head(key: str) -> int | None:
            try:
                return int(obstore.head(client, store.place.path(key))["size"])
            except (BaseError, FileNotFoundError):
                return None

        with ThreadPoolExecutor(store.place.threads) as pool:
            yield Side("s3", store, lambda keys: list(pool.map(head, keys)), "threads")
        store.close()


def show_worst(models: Sequence[Model], stride: int) -> None:
    """Print what the worst of many ends costs where sizes are costly to ask for."""
    cases = [(models[0], 1), (models[0], 2), *((model, len(model.endings)) for model in models)]
    for model, chunks in cases:
        pages, want = model.pages, model.want._replace(chunks=model.want.chunks[:chunks])
        claims = Claims(pages, model.size)
        ledger = Ledger(cast("Records", claims))
        rounds, stats, ends = 0, 0, {*range(0, len(pages), stride), len(pages)}
        for end in ends:
            claims.end = end
            check(gallop(cast("Records", ledger), [want], pages), Question("dry", pages, end))
            asked = ledger.take()
            rounds, stats = max(rounds, len(asked)), max(stats, sum(map(len, asked)))
        print(
            f"gallop, {chunks:>2} chunks, worst of {len(ends)} ends: {rounds} rounds, {stats} stats"
            f"; want <= {ROUNDS} and {STATS}: {_met(rounds, stats)}",
            flush=True,
        )


def _met(rounds: int, stats: int) -> str:
    return "yes" if rounds <= ROUNDS and stats <= STATS else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=15_625)
    parser.add_argument("--turns", type=int, default=3, help=f"most for a row, if {ROW_S} s allow")
    parser.add_argument("--only", nargs="+", choices=["memory", "file", "redis", "s3", "worst"])
    parser.add_argument("--s3", choices=["juicefs", "moto", "ceph"], default="juicefs")
    parser.add_argument("--stride", type=int, default=13, help="ends of the dry run")
    parser.add_argument("--seconds", type=float, default=60, help="after these no part begins")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    begun = perf_counter()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux "
        f"{platform.release()}, Python {platform.python_version()}, {options.pages} pages"
    )
    models = [Model(chunks, options.pages) for chunks in CHUNKS]
    if "worst" in (options.only or ["worst"]):
        show_worst(models, options.stride)
    sides: dict[str, Any] = {"s3": partial(on_s3, options.s3), "memory": in_memory}
    sides |= {"file": in_files, "redis": on_valkey}
    for model, name in product(models, options.only or sides):
        if perf_counter() - begun > options.seconds:
            print(f"{name}, {len(model.endings)} chunks: left out, {options.seconds:g} s are over")
        elif name in sides:
            with sides[name](model, MEMORY) as side:
                show(side, model, options.turns)


if __name__ == "__main__":
    main()

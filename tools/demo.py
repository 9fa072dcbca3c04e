"""Demo: `unikv demo`, the whole straight line on a real model. It knows the order, not the how."""

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from unikv.errors import SpecError, TopologyError, UrlError
from unikv.tools.output import printing

if TYPE_CHECKING:
    from unikv.namespace import Namespace
    from unikv.tools.demo_grid import GridChoice
    from unikv.topology import Topology

PROMPT = Path(__file__).with_name("demo_prompt.txt")
SCRATCH = "unikv-demo-kv-"
RANKS = 64
"""Ranks of a side at most."""

QUESTION = "In one sentence: what is a cache?"

DESCRIPTION = """\
Store a real model's KV cache as one topology and load it as another.

Loads SmolLM2-135M offline and prefills a question about a text of more than 4,096 tokens. Saves the
KV as the ranks of --write and loads it as the ranks of --read, every rank a process of its own.
Then compares what was loaded with what is in memory, bit for bit, and what is generated from each.
The model caches K and V alone: one component (docs/components.md is on several).

The store stays, and the last line tells how to look into it. Topologies: tp3,pp2 is 3 tensor ranks
in each of 2 pipeline stages; tp3,pp3:11-10-9 tells the layers of uneven stages.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``unikv demo``."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--write", metavar="TOPOLOGY", default="tp3,pp2", help="ranks that save (%(default)s)")
    add("--read", metavar="TOPOLOGY", default="tp1,pp1", help="ranks that load (%(default)s)")
    add("--store", metavar="URL", help="where objects go (default: a new temporary folder)")
    add(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave the temporary folder; a store given by --store always stays",
    )
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--tokens", metavar="N", type=count, default=64, help="tokens to generate (%(default)s)")
    add("--page-tokens", metavar="N", type=count, default=64, help="of a page (%(default)s)")
    grid = "of a chunk (default: the most by which both sides own whole chunks)"
    add("--layers-per-chunk", metavar="N", type=count, help=f"layers {grid}")
    add("--heads-per-chunk", metavar="N", type=count, help=f"KV heads {grid}")


def run(args: argparse.Namespace) -> int:
    """Run the demo and return its exit status: 1 when anything differs.

    Raises:
        MissingExtraError: a package of the demo is not installed.
        TopologyError: a topology is misspelled or does not fit the model.
        GridError: a writer would own a part of a chunk.
        SpecError: sizes that do not fit the prompt or the model.
        UrlError: a store that other processes cannot see.
        UnikvError: a rank failed.
    """
    # Cheap checks before costly steps: whoever mistyped a topology learns it at once.
    write, read = read_topology(args.write), read_topology(args.read)
    check_url(args.store)
    from unikv.tools.demo_model import Model, find_model, read_config

    path = find_model()
    from unikv.tools import demo_phases as phases
    from unikv.tools.demo_render import Steps, print_report

    with unwind_on_sigterm(), Steps() as steps, TemporaryDirectory(prefix=SCRATCH) as scratch:
        with steps.step("Read the model's config"):
            config = read_config(path)
            namespace, grid = choose_namespace(args, write, read, config, path)
            check_writers(namespace, write)
        with steps.step("Load the model"):
            model = Model.load(path)
        tokens = model.ask(PROMPT.read_text().rstrip(), QUESTION)
        check_lengths(len(tokens), args, int(config["max_position_embeddings"]))
        with steps.step(f"Prefill {len(tokens):,} tokens"):
            prefill = model.prefill(tokens)
        sample = phases.Sample.of(model, tokens, prefill, args.page_tokens, Path(scratch))
        with store_url(args.store, keep=args.keep) as url:
            with steps.step(f"Write as {write}", len(write.ranks())) as advance:
                written = phases.write_phase(sample, namespace, write, url, advance)
            with steps.step(f"Read as {read}", len(read.ranks())) as advance:
                loaded = phases.read_phase(sample, namespace, read, url, advance)
            with steps.step("Generate from both caches", 2 * args.tokens) as advance:
                report = phases.compare_phase(
                    sample,
                    namespace,
                    grid,
                    written=written,
                    loaded=loaded,
                    count=args.tokens,
                    url=url,
                    kept=args.keep or args.store is not None,
                    advance=advance,
                )
    with printing():
        if args.json:
            print(json.dumps(report.to_json(), indent=2))
        else:
            print_report(report)
    return report.exit_status


def count(text: str) -> int:
    """Return a whole number above zero; what argparse calls a type."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.60}: want a whole number from 1")
    return number


def read_topology(text: str) -> "Topology":
    """Return a topology that the demo can run.

    Raises:
        TopologyError: it is misspelled, deals out pages or tokens, or has more than `RANKS` ranks.
    """
    from unikv.topology import Topology

    topology = Topology.parse(text)
    if (topology.cp, topology.dcp) != (1, 1):
        raise TopologyError(f"topology {topology}: the demo runs tp and pp; want no cp or dcp")
    if topology.tp * topology.pp > RANKS:
        raise TopologyError(
            f"topology {topology} has {topology.tp * topology.pp:,} ranks, each a process of its "
            f"own: want at most {RANKS} a side"
        )
    return topology


def check_url(url: str | None) -> None:
    """Refuse a store that ends with the process which opened it."""
    from unikv.backends.url import mask

    if url is not None and url.startswith("memory:"):
        raise UrlError(
            f"--store {mask(url):.200}: every rank is a process of its own and would see an empty "
            "store; want one that they share, such as file:///tmp/kv"
        )


def choose_namespace(
    args: argparse.Namespace, write: "Topology", read: "Topology", config: object, path: Path
) -> "tuple[Namespace, GridChoice]":
    """Return the identity of the model's KV, cut so that both sides own whole chunks."""
    from unikv.namespace import Namespace, weights_from_files
    from unikv.tools.demo_grid import choose_grid
    from unikv.tools.demo_model import DTYPE, NAME

    weights = weights_from_files([path])
    facts = {"weights": weights, "page_tokens": args.page_tokens, "dtype": DTYPE, "model": NAME}
    spec = Namespace.from_hf_config(config, **facts).spec
    grid = choose_grid(spec, write, read, args.layers_per_chunk, args.heads_per_chunk)
    namespace = Namespace.from_hf_config(
        config, **facts, layer_cuts=grid.layer_cuts, heads_per_chunk=grid.heads_per_chunk
    )
    return namespace, grid


def check_writers(namespace: "Namespace", topology: "Topology") -> None:
    """Raise `GridError` unless every writer owns whole chunks, before anything is computed."""
    from unikv.objects import ObjectFormat
    from unikv.planner import plan_write

    form = ObjectFormat.of(namespace)
    for rank in topology.ranks():
        plan_write(form, rank.box(namespace.spec))


def check_lengths(prompt: int, args: argparse.Namespace, context: int) -> None:
    """Raise `SpecError` unless the prompt holds a page and what is generated fits the model."""
    if args.page_tokens > prompt:
        raise SpecError(
            f"--page-tokens {args.page_tokens}: the prompt has {prompt} tokens and only whole "
            f"pages are stored; want {prompt} or fewer, such as 64"
        )
    if prompt + args.tokens > context:
        raise SpecError(
            f"--tokens {args.tokens} behind a prompt of {prompt} passes the model's context of "
            f"{context}: want {context - prompt} or fewer"
        )


@contextmanager
def store_url(given: str | None, *, keep: bool) -> Iterator[str]:
    """Yield the store's URL; without one make a folder.

    The folder stays if ``keep``, unless the demo could not run to its end.
    """
    if given is not None:
        yield given
        return
    folder = Path(mkdtemp(prefix="unikv-demo-"))
    try:
        yield folder.as_uri()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(folder)


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, which `timeout` sends, end the block as an error does: folders go again."""

    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

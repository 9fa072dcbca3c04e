"""Plan: the `unikv plan` command. It knows its words; others choose, work out and print.

What is heavy is imported when the command runs, so that ``unikv --help`` answers at once.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from unikv.errors import TopologyError

if TYPE_CHECKING:
    from unikv.fleet import Deployment
    from unikv.topology import Topology

DESCRIPTION = """\
Find the coarsest grid by which all deployments of a model share its KV cache, and what it costs.

Topologies: tp4,pp2 is 4 tensor ranks in each of 2 pipeline stages; pp3:27-27-26 tells the layers
of uneven stages; tp4,dcp2:16 deals the tokens of a page out to 2 decode context ranks, 16 at a
time; cp2 deals whole pages out. Both multiply the ranks: vLLM's tp 8 with dcp 2 is tp4,dcp2 here.
"""

EXIT_STATUS = """\
exit status:
  0  there is a common grid
  1  there is none: why, and the nearest fleet that has one
  2  wrong usage or input; one line on stderr says what, and what would be right
"""

DEPLOYMENTS = 26
"""Deployments of a fleet at most: each is drawn with a letter."""

RANKS = 4096
"""Ranks of a deployment at most: each has its figures."""

PRICE_LIMIT = 1e15
"""A price at most, so that no sum of costs leaves the finite numbers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the words and options of ``unikv plan``."""
    parser.description, parser.epilog = DESCRIPTION, EXIT_STATUS
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help="the config.json of a Hugging Face model, or its folder; or numbers instead",
    )
    fleet = parser.add_argument_group("fleet").add_argument
    fleet(
        "--deploy",
        metavar="TOPOLOGY",
        action="append",
        default=[],
        help="a deployment that saves and loads; once for each",
    )
    fleet(
        "--read-only",
        metavar="TOPOLOGY",
        action="append",
        default=[],
        help="one that only loads: only its dcp shapes the grid",
    )
    add("--page-tokens", metavar="N", type=count, default=64, help="of a page (%(default)s)")
    add("--dtype", help="of the cache (default: the config's; of numbers bfloat16)")
    add("--tokens", metavar="N", type=count, default=100_000, help="of a prompt (%(default)s)")
    add("--json", action="store_true", help="print JSON; docs/plan.md names it")
    facts = parser.add_argument_group("model by numbers").add_argument
    for name in ("layers", "kv-heads", "head-dim", "v-head-dim"):
        facts(f"--{name}", metavar="N", type=count)
    facts("--mla-dim", metavar="N", type=count, help="latent and RoPE part together")
    facts("--row-bytes", metavar="N", type=count, help="of opaque rows, as an indexer's")
    facts("--rows-per-page", metavar="N", type=count)
    identity = parser.add_argument_group("identity").add_argument
    identity("--layer-ids", metavar="N,N", type=counts, help="model layers that have this cache")
    identity("--layer-types", metavar="T,T", type=words, help="or those of the config's types")
    identity("--component", metavar="NAME", default="target", help="(%(default)s)")
    identity("--label", metavar="TEXT", help="name of the model (default: the config's folder)")
    identity("--weights", metavar="ID", help="hf:COMMIT or files:DIGEST (default: a placeholder)")
    identity("--rope", metavar="JSON", help='RoPE settings, or "none" (default: the config\'s)')
    identity(
        "--codec",
        choices=("none", "zstd"),
        default="none",
        help="with zstd all sizes and costs are upper bounds (%(default)s)",
    )
    prices = parser.add_argument_group("prices, in any currency; the defaults are mere examples")
    for name, default, of in (
        ("put", 0.005, "1,000 puts"),
        ("get", 0.0004, "1,000 gets"),
        ("storage", 0.023, "10^9 bytes and a month"),
    ):
        prices.add_argument(
            f"--{name}-price",
            metavar="X",
            type=price,
            default=default,
            help=f"of {of} (%(default)s)",
        )


def run(args: argparse.Namespace) -> int:
    """Plan for the fleet that ``args`` tell and print it; return the exit status.

    Returns:
        0, or 1 where the fleet has no common grid.

    Raises:
        SpecError: the model or its identity is wrong.
        TopologyError: a topology is misspelled or too large, or none writes.
    """
    from unikv.tools.output import printing
    from unikv.tools.plan_choice import make_plan
    from unikv.tools.plan_figures import Prices
    from unikv.tools.plan_model import read_model
    from unikv.tools.plan_render import print_json, print_plan

    fleet = read_fleet(args.deploy, args.read_only)
    prices = Prices(args.put_price, args.get_price, args.storage_price)
    found = make_plan(read_model(args), fleet, args.tokens, prices)
    with printing():
        (print_json if args.json else print_plan)(found)
    return 0 if found.as_json()["ok"] else 1


def read_fleet(writers: list[str], readers: list[str]) -> list[Deployment]:
    """Return the deployments that the command line spells.

    Raises:
        TopologyError: one is misspelled or too large, there are too many, or none writes.
    """
    from unikv.fleet import Deployment

    if not writers:
        raise TopologyError("no deployment that writes: want --deploy TOPOLOGY, as tp4,pp2")
    if len(writers) + len(readers) > DEPLOYMENTS:
        raise TopologyError(
            f"{len(writers) + len(readers)} deployments: want at most {DEPLOYMENTS}; those of "
            "equal sizes count once"
        )
    fleet = [Deployment(read_topology(text)) for text in writers]
    return fleet + [Deployment(read_topology(text), writes=False) for text in readers]


def read_topology(text: str) -> Topology:
    """Return a topology of a size whose ranks can be told one by one.

    Raises:
        TopologyError: it is misspelled, or has more than 4,096 ranks.
    """
    from unikv.topology import Topology

    topology = Topology.parse(text)
    ranks = topology.tp * topology.pp * topology.cp * topology.dcp
    if ranks > RANKS:
        raise TopologyError(f"topology {topology} has {ranks:,} ranks: want at most {RANKS:,}")
    return topology


def count(text: str) -> int:
    """Return a whole number above zero; what argparse calls a type."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.60}: want a whole number from 1")
    return number


def counts(text: str) -> list[int]:
    """Return whole numbers from 0 between commas."""
    found = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 8 for word in found):
        raise argparse.ArgumentTypeError(f"{text!r:.60}: want whole numbers, such as 3,7,11")
    return [int(word) for word in found]


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return text.split(",")


def price(text: str) -> float:
    """Return a number from 0 to `PRICE_LIMIT`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= PRICE_LIMIT:
        raise argparse.ArgumentTypeError(
            f"{text!r:.60}: want a number from 0 to {PRICE_LIMIT:.0e}, such as 0.005"
        )
    return value

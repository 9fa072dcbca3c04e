"""CLI: the `unikv` command. It finds the subcommand and tells errors; it knows no store, no model.

A subcommand is a module of this folder with ``add_arguments(parser)`` and ``run(args) -> int``.
It imports what is heavy inside ``run``, so that ``unikv --help`` answers at once.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import unikv
from unikv.errors import UnikvError
from unikv.tools.output import printing

COMMANDS = {
    "conformance": "try on a live store what every store promises",
    "demo": "store a real model's KV cache as one topology and load it as another",
    "inspect": "show what a store holds",
    "plan": "find the grid by which deployments share a cache, and what it costs",
}
"""The subcommands: module name and what it does."""

EXIT_STATUS = """\
exit status:
  0  all is well
  1  something differs or is damaged
  2  wrong usage or input; one line on stderr says what, and what would be right
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="unikv",
        description="KV cache of large language models, stored as objects "
        "that any deployment of the same model can read.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"unikv {unikv.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        module = import_module(f"unikv.tools.{name}")
        command = commands.add_parser(
            name,
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            epilog=EXIT_STATUS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        arguments: the words behind ``unikv``; by default those of this process.
    """
    try:
        return _run(arguments)
    except UnikvError as error:
        if sys.stderr is not None:  # print would choose standard output
            with suppress(OSError):
                print(f"unikv: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141  # what a shell shows for a process that SIGPIPE ended
    except KeyboardInterrupt:
        return 130  # likewise for SIGINT


def _run(arguments: Sequence[str] | None) -> int:
    with printing():
        try:
            args = build_parser().parse_args(arguments)
        finally:  # --help prints, then leaves
            sys.stdout.flush()
    status: int = args.run(args)
    with printing():
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())

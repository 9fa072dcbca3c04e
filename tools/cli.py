"""CLI: the `unikv` command. It finds the subcommand and tells errors; it knows no store, no model.

A subcommand is a module of this folder with ``add_arguments(parser)`` and ``run(args) -> int``.
It imports what is heavy inside ``run``, so that ``unikv --help`` answers at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import unikv
from unikv.errors import UnikvError

COMMANDS = {
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
    args = build_parser().parse_args(arguments)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except UnikvError as error:
        print(f"unikv: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (`| head`) has gone; without this the interpreter complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell shows for a process that SIGPIPE ended
    except KeyboardInterrupt:
        return 130  # likewise for SIGINT
    return status


if __name__ == "__main__":
    sys.exit(main())

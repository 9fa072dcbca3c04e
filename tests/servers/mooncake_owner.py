"""Owner: a process that lends memory to a Mooncake master until its standard input ends.

python -m tests.servers.mooncake_owner MASTER BYTES [FOLDER]. It says "ready" once the master has
the memory, moves objects to the folder if the master says so, and ends with whoever started it.
"""

import sys
from importlib import import_module


def main() -> None:
    master, size, *folder = sys.argv[1:]
    client = import_module("mooncake.store").MooncakeDistributedStore()
    disk = (None, True, *folder) if folder else ()
    code = client.setup("127.0.0.1", "P2PHANDSHAKE", int(size), 16 << 20, "tcp", "", master, *disk)
    if code:
        raise SystemExit(f"setup: {code}")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    client.close()


if __name__ == "__main__":
    main()

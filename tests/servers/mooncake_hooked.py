"""HookedNative: a real client before whose calls a test may do something. It answers nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from tests.servers.mooncake_cluster import MooncakeCluster
from unikv.backends.mooncake import MooncakeStore
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_open import close_client, open_client
from unikv.backends.mooncake_url import settings_of
from unikv.backends.url import parse_url


class HookedNative:
    """Calls ``before[name]`` once before the next call of that name."""

    def __init__(self, native: Native) -> None:
        self.native = native
        self.before: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.native, name)

        def call(*arguments: object) -> object:
            self.calls.append(name)
            if hook := self.before.pop(name, None):
                hook()
            return real(*arguments)

        return call


@contextmanager
def hooked_store(
    cluster: MooncakeCluster, **options: object
) -> Iterator[tuple[MooncakeStore, HookedNative]]:
    """Open a store on a cluster, and give its client, too."""
    url = cluster.url(**options)
    settings = settings_of(parse_url(url))
    hooked = HookedNative(open_client(settings))
    close = partial(close_client, hooked.native)
    store = MooncakeStore(cast("Native", hooked), settings, url, close)
    yield store, hooked
    store.close()

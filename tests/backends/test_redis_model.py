"""RedisStore behaves as a plain dict does, whatever is asked of it in whatever order."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule
from hypothesis.strategies import integers

from tests.backends.test_store_model import Model
from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.registry import open_store
from unikv.store import Item, Outcome

pytestmark = pytest.mark.redis


class RedisModel(Model):
    """Each run has a prefix of its own on the module's server."""

    server: RedisServer
    turns = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"run:{next(self.turns)}:"
        self.url = f"{self.server.url}?prefix={self.prefix}"
        self.store = open_store(self.url)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.url)

    @precondition(lambda self: self.objects)
    @rule(choice=integers(0, 10))
    def lose_an_object(self, choice: int) -> None:
        key = sorted(self.objects)[choice % len(self.objects)]
        del self.objects[key]
        assert self.server.number("DEL", self.prefix + key) == 1

    @precondition(lambda self: self.objects)
    @rule(choice=integers(0, 10))
    def another_kind_takes_its_place(self, choice: int) -> None:
        """What is no string is no object: no call shows it, and a put replaces it."""
        key = sorted(self.objects)[choice % len(self.objects)]
        self.server.ask("DEL", self.prefix + key)
        self.server.ask("RPUSH", self.prefix + key, "x")
        assert self.store.stat([key]) == [None]
        assert key not in {entry.key for entry in self.store.list()}
        outcomes = self.store.put([Item(key, [self.objects[key]])])
        assert list(outcomes.codes) == [Outcome.OK]

    def teardown(self) -> None:
        self.store.close()


TestRedisModel = RedisModel.TestCase
TestRedisModel.settings = settings(stateful_step_count=30)


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with RedisServer(valkey_binary(), tmp_path_factory.mktemp("valkey")) as RedisModel.server:
        yield

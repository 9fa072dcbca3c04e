"""Gallop: how a match asks where each question is a request over a network."""

import random
from collections.abc import Sequence

import pytest

from tests.client.world import World
from unikv import Catalog, KVSpec, Namespace, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.coverage import EveryPage
from unikv.matching import Want, match_prefix
from unikv.objects import ObjectFormat

PAGES = page_hashes(range(4 * 15_625), 4)


def want_of(heads: int) -> Want:
    spec = KVSpec.mha(layers=16, kv_heads=4, head_dim=8, dtype="bfloat16", page_tokens=4)
    namespace = Namespace(
        spec=spec,
        model="m",
        weights="unversioned",
        rope="none",
        layers_per_chunk=4,
        heads_per_chunk=heads,
    )
    form = ObjectFormat.keyless(namespace)
    return Want("target", form, form.grid.chunks, EveryPage(), required=True)


class Asked(MemoryStore):
    """Holds the first ``pages`` pages, and one chunk of ``begun`` more; counts what is asked."""

    costly_stat = True

    def __init__(self, want: Want, pages: int, begun: int = 0) -> None:
        super().__init__()
        self.rounds = self.questions = 0
        self._size = want.format.object_bytes(want.chunks[0])
        self._first = want.chunks[0].suffix
        self._whole = frozenset(PAGES[:pages])
        self._begun = frozenset(PAGES[pages : pages + begun])

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        self.rounds += 1
        self.questions += len(keys)
        return [self._size if self._has(key) else None for key in keys]

    def _has(self, key: str) -> bool:
        page = key[:64]
        return page in self._whole or (page in self._begun and key.endswith(self._first))


@pytest.mark.parametrize("begun", [0, 1, 2])
@pytest.mark.parametrize("heads", [1, 2, 4], ids=["16 chunks", "8 chunks", "4 chunks"])
def test_four_rounds_of_128_questions_find_the_end_of_15_625_pages(heads: int, begun: int) -> None:
    want, chance = want_of(heads), random.Random(7)
    ends = [0, 1, 2, 25, 26, 27, 601, 602, 603, 15_623, 15_624, 15_625]
    for end in [*ends, *(chance.randrange(15_626) for _ in range(30))]:
        store = Asked(want, end, begun)
        match = match_prefix(store, [want], PAGES)
        assert match.pages == end
        assert match.exact is False
        assert store.rounds <= 4
        assert store.questions <= 128


def test_a_match_that_is_too_long_is_followed_by_a_right_load(world: World) -> None:
    store = MemoryStore()
    store.costly_stat = True  # type: ignore[attr-defined]
    world.save(store, Topology())
    store.delete([e.key for e in store.list(world.pages[1])])  # a hole far from the end
    side = world.side(store, Topology().rank())
    match = side.client.match(world.pages)
    assert (match.exact, match.pages >= 1) == (False, True)
    report = side.client.load(world.pages, side.slots)
    assert report.pages == 1
    assert world.holds(side, 1)


def test_a_catalog_gallops_too(world: World) -> None:
    store = MemoryStore()
    store.costly_stat = True  # type: ignore[attr-defined]
    world.save(store, Topology())
    with_all = Catalog(store, world.namespace).match(world.pages)
    assert with_all.pages == len(world.pages)
    assert not with_all.exact

"""A tiered store behaves as a plain dict does, whatever its tiers lose, fail and copy meanwhile."""

from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.backends.tier_faults import Moody
from unikv.backends.tiered import tiered
from unikv.store import Item, Outcome
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEYS = st.sampled_from([page_key(0), page_key(1), "ab", "ab12"])
SIZES = st.sampled_from([0, 1, 5, 300])


class Model(RuleBasedStateMachine):
    """A tiered store beside the dict that it should equal."""

    mode: Literal["write-through", "write-back"]

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = Moody(), Moody()
        self.store = tiered(self.fast, self.slow, mode=self.mode, wait_s=10)
        self.objects: dict[str, bytes] = {}
        self.version = 0

    @rule(items=st.lists(st.tuples(KEYS, SIZES), max_size=4), replace=st.booleans())
    def put(self, items: list[tuple[str, int]], *, replace: bool) -> None:
        self.version += 1
        objects = [(key, content(key, size, self.version)) for key, size in items]
        expected = []
        for place, (key, data) in enumerate(objects):
            there = self.objects.get(key)
            if replace or there is None or len(there) != len(data):
                expected.append({OK})
                self.objects[key] = data
            elif self.mode == "write-through":
                expected.append({EXISTED})
            else:  # the fast tier alone is asked: equal keys and sizes stand for equal bytes
                expected.append({OK, EXISTED})
                objects[place] = (key, there)
        outcomes = self.store.put([Item(key, [data]) for key, data in objects], replace=replace)
        for code, allowed in zip(outcomes.codes, expected, strict=True):
            assert code in allowed

    @rule(key=KEYS, start=st.integers(0, 310), size=st.integers(0, 310))
    def get(self, key: str, start: int, size: int) -> None:
        there = self.objects.get(key)
        if there is None:
            expected: bytes | Outcome = MISS
        elif start + size > len(there):
            expected = FAILED
        else:
            expected = there[start : start + size]
        found = read(self.store, key, start, start + size)
        assert found == expected or self.may_fail(found)

    @rule(keys=st.lists(KEYS, max_size=3, unique=True))
    def delete(self, keys: list[str]) -> None:
        if "delete" in self.slow.broken:  # then nothing is deleted: no older version comes back
            assert list(self.store.delete(keys).codes) == [FAILED] * len(keys)
            return
        there = [self.objects.pop(key, None) is not None for key in keys]
        codes = list(self.store.delete(keys).codes)
        if "delete" in self.fast.broken:
            assert codes == [FAILED] * len(keys)
        else:
            assert codes == [OK if was else MISS for was in there]

    @rule(keys=st.lists(KEYS, max_size=4))
    def stat(self, keys: list[str]) -> None:
        sizes = [len(self.objects[key]) if key in self.objects else None for key in keys]
        for key, told, size in zip(keys, self.store.stat(keys), sizes, strict=True):
            assert told == size or (told is None and key in self.fast.untold)

    @invariant()
    def everything_is_there(self) -> None:
        for key, data in self.objects.items():
            found = read(self.store, key, 0, len(data))
            assert found == data or self.may_fail(found)

    def may_fail(self, found: bytes | Outcome) -> bool:
        return found == FAILED and "get" in self.fast.broken and self.mode == "write-back"

    def teardown(self) -> None:
        self.fast.broken = self.slow.broken = self.fast.untold = set()
        if self.mode == "write-back":
            assert self.store.flush().unwritten == {}
            assert self.slow.held() == self.objects
            assert self.store.report().lost == 0
        self.store.close()


class ThroughModel(Model):
    mode = "write-through"

    @rule(key=KEYS)
    def evict(self, key: str) -> None:
        self.fast.lose(*({key} & self.fast.held().keys()))

    @rule(broken=st.sets(st.sampled_from(["get", "put", "delete"])), raising=st.booleans())
    def break_the_fast_tier(self, broken: set[str], *, raising: bool) -> None:
        self.fast.broken, self.fast.raising = broken, raising

    @invariant()
    def the_slow_tier_has_all(self) -> None:
        assert self.slow.held() == self.objects


class BackModel(Model):
    mode = "write-back"

    @rule(key=KEYS)
    def evict_what_is_written(self, key: str) -> None:
        self.slow.broken = self.fast.broken = self.fast.untold = set()
        assert self.store.flush().unwritten == {}
        self.fast.lose(*({key} & self.fast.held().keys()))

    @rule(broken=st.sets(st.sampled_from(["put", "delete"])), passing=st.booleans())
    def break_the_slow_tier(self, broken: set[str], *, passing: bool) -> None:
        self.slow.broken, self.slow.retryable = broken, passing

    @rule(untold=st.sets(KEYS), gets=st.booleans())
    def let_the_fast_tier_tell_not_all(self, untold: set[str], *, gets: bool) -> None:
        """As of several servers one does when it is away; what a get says is another matter."""
        self.fast.untold = untold
        self.fast.broken = set() if gets else {"get"}


TestThroughModel = ThroughModel.TestCase
TestThroughModel.settings = settings(stateful_step_count=25)
TestBackModel = BackModel.TestCase
TestBackModel.settings = settings(stateful_step_count=25)

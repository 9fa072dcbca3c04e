"""List promises: what a listing shows, as tests. They know no backend."""

# ruff: noqa: N802 - names carry the ids of field reports

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep

from unikv.store import Item, Store
from unikv.testing_checks import NotApplicable, expect, expect_true
from unikv.testing_data import OK, Keys, content


class ListPromises:
    """A listing shows all objects, nothing else, and narrows by prefix."""

    lists = True
    """Whether the backend can list."""

    def test_B97_a_listing_shows_what_is_there(self, store: Store, keys: Keys) -> None:
        """A listing of all shows each object once with its size, and after a delete no more."""
        self._require_lists()
        sizes = {keys.page(i): 40 + i for i in range(5)} | {keys.text("ns", "_0"): 0}
        store.put([Item(key, [content(key, size)]) for key, size in sizes.items()])
        found = keys.listed(store)
        expect(sorted((e.key, e.size) for e in found), sorted(sizes.items()), "keys and sizes")
        expect_true(all(e.mtime is None or e.mtime > 0 for e in found), "an mtime that is none")
        expect(list(store.delete(list(sizes)).codes), [OK] * len(sizes), "delete")
        expect([entry.key for entry in keys.listed(store)], [], "the listing after delete")

    def test_list_narrows_by_prefix(self, store: Store, keys: Keys) -> None:
        """Every prefix gives just the keys that begin with it."""
        self._require_lists()
        names = [*(keys.page(i) for i in range(40)), keys.text("ns_ab"), keys.text("ns_ab", "_1")]
        names += [keys.text("ab"), *keys.exact("ab", "abcd", "0", "_x")]
        store.put([Item(key, [b"x"]) for key in names])
        first = names[0]
        prefixes = ["ns_", "ns_ab", names[41], "ab", "abcd", "0", "_", "..", "/", "zz", first + "x"]
        for prefix in [*prefixes, *(first[:n] for n in (1, 2, 3, 4, 5, 64, len(first)))]:
            found = sorted(entry.key for entry in keys.listed(store, prefix))
            wanted = sorted(key for key in names if key.startswith(prefix))
            expect(found, wanted, f"the listing of {prefix!r}")

    def test_a_listing_may_be_left(self, store: Store, keys: Keys) -> None:
        """Who has seen enough stops; the store answers on, and lists anew from the start."""
        self._require_lists()
        names = sorted(keys.near(i) for i in range(30))
        store.put([Item(key, [b"x"]) for key in names])
        for taken in (0, 1, 7):
            entries = iter(store.list(keys.near_prefix))
            for _ in range(taken):
                next(entries)
            expect_true(store.stat(names[:1])[0] is not None, "stat amid a listing misses")
            del entries
        found = sorted(entry.key for entry in keys.listed(store, keys.near_prefix))
        expect(found, names, "the whole listing")

    def test_B98_a_listing_shows_objects_only(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        """While four writers store, each key listed is one of theirs, whole in size."""
        self._require_lists()
        names = [keys.near(i) for i in range(40)] + [keys.page(i) for i in range(80)]
        prefixes = ["", keys.near_prefix]

        def write(part: Sequence[str]) -> None:
            for key in part:
                store.put([Item(key, [content(key, 20_000)])])

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, names[i::4]) for i in range(4)]
            while not all(writer.done() for writer in writers):
                for entry in keys.listed(second, prefixes[0]):
                    expect(entry.size, 20_000, f"the size of {entry.key} in a listing")
                prefixes.reverse()
                sleep(0.005)  # or writers, which wait for the interpreter, would hardly get on
        found = sorted(entry.key for entry in keys.listed(second))
        expect(found, sorted(names), "the listing when all is stored")

    def _require_lists(self) -> None:
        if not self.lists:
            raise NotApplicable("the backend cannot list")

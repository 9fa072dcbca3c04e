"""Options of wrong types: each gets one clear error that says what is wanted; none switches off."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from unikv import Catalog, Client, Component, KVSpec, Namespace, PagedCache, Topology
from unikv.backends.file import FileStore
from unikv.backends.memory import MemoryStore
from unikv.client_options import check_endpoints, check_start
from unikv.draft import Drafter
from unikv.errors import PoolError, SpecError, TopologyError, UnikvError
from unikv.memory import reserve
from unikv.pages import Extra, PageChain, Root, page_hashes

SPEC = KVSpec.mha(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=4)
NAMESPACE = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none")
RANK = Topology().rank()
WRONG = [None, 0, "x", b"x", [], {}, object(), float("nan"), True, np.int64(5), [[]], -1, 2**70]


def pool() -> PagedCache:
    return PagedCache.slots(*([torch.zeros(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv"))


def client(**change: Any) -> None:
    given: dict[str, Any] = {"store": MemoryStore(), "components": NAMESPACE}
    given |= {"rank": RANK, "pool": pool()}
    if isinstance(change.get("components"), dict):
        del given["pool"]
    Client(**(given | change)).close()


def catalog(**change: Any) -> None:
    given: dict[str, Any] = {"store": MemoryStore(), "components": NAMESPACE}
    Catalog(**(given | change)).close()


def component(**change: Any) -> Component:
    given: dict[str, Any] = {"namespace": NAMESPACE, "pool": pool()}
    return Component(**(given | change))


def refused(make: Callable[..., object], name: str, value: object) -> str:
    with pytest.raises(UnikvError) as caught:
        make(**{name: value})
    assert name == "pool" or "want" in str(caught.value)
    assert not isinstance(caught.value, OSError)
    return f"{type(caught.value).__name__}: {caught.value}"


RIGHT: dict[tuple[Callable[..., object], str], tuple[object, ...]] = {
    (client, "store"): (),
    (client, "components"): (),
    (client, "rank"): (),
    (client, "pool"): (),
    (client, "writers"): (),
    (client, "siblings"): (True,),
    (client, "verify"): (True,),
    (client, "staging_bytes"): (),
    (client, "drafters"): ([],),
    (client, "io"): (),
    (client, "deadline_s"): (np.int64(5),),
    (client, "io_threads"): (np.int64(5),),
    (client, "numa_node"): (None,),
    (client, "on_event"): (None,),
    (catalog, "store"): (),
    (catalog, "components"): (),
    (catalog, "ranks"): (None,),
    (catalog, "drafters"): ([],),
    (catalog, "deadline_s"): (np.int64(5),),
    (component, "namespace"): (),
    (component, "sharded"): (None, True),
    (component, "coverage"): (None,),
    (component, "source"): (None, "x"),  # a name: whether it is a component is the bundle's
    (component, "packed"): (True,),
    (component, "null_slot"): (None, 0, np.int64(5)),
}


@pytest.mark.parametrize(("make", "name"), RIGHT)
def test_every_other_type_is_refused(make: Callable[..., object], name: str) -> None:
    for value in WRONG:
        if any(type(value) is type(right) and value == right for right in RIGHT[make, name]):
            make(**{name: value})
        else:
            refused(make, name, value)


@pytest.mark.parametrize("value", [None, 0, [], "", 1, np.True_])
def test_verification_is_switched_off_by_false_alone(value: object) -> None:
    assert refused(client, "verify", value).startswith(f"SpecError: verify={value!r}: want True")
    client(verify=False)


@pytest.mark.parametrize(
    ("make", "name", "value", "says"),
    [
        (client, "store", MemoryStore, "SpecError: store of type type"),
        (client, "store", None, "SpecError: store of type NoneType that has no put()"),
        (catalog, "store", "file:///x", "SpecError: store of type str"),
        (client, "components", None, "SpecError: components of type NoneType: want a Namespace"),
        (client, "components", component(), "SpecError: components of type Component"),
        (client, "drafters", None, "SpecError: drafters of type NoneType"),
        (client, "drafters", iter(()), "SpecError: drafters of type tuple_iterator"),
        (client, "drafters", [None], "SpecError: drafter None"),
        (client, "staging_bytes", 2**70, f"PoolError: an arena of {2**70} bytes"),
        (client, "staging_bytes", 2**62, f"PoolError: an arena of {2**62} bytes"),
        (client, "io_threads", 2**70, f"SpecError: io_threads={2**70}"),
        (client, "deadline_s", 10**400, "SpecError: deadline_s=1000"),
        (client, "writers", np.array(["first", "striped"]), "SpecError: writers="),
        (catalog, "ranks", True, "TopologyError: ranks=True"),
        (catalog, "ranks", RANK, "TopologyError: ranks=Rank"),
        (catalog, "ranks", [RANK, None], "TopologyError: ranks=[Rank"),
        (component, "need", np.array(["required"]), ""),
        (component, "null_slot", -1, "SpecError: null_slot=-1 of component 'target'"),
        (component, "namespace", SPEC, "SpecError: a component with a namespace of type KVSpec"),
    ],
)
def test_an_error_names_the_option_and_its_value(
    make: Callable[..., object], name: str, value: object, says: str
) -> None:
    if name == "need":
        value = {"target": component(need=value)}
        make, name, says = catalog, "components", "SpecError: need "
    elif name == "components":
        assert refused(catalog, name, value).startswith(says)
    assert refused(make, name, value).startswith(says)


def test_numbers_of_numpy_are_numbers() -> None:
    client(staging_bytes=np.int64(1 << 20), deadline_s=np.float32(2.5), io_threads=np.uint8(2))
    assert type(component(null_slot=np.int32(3)).null_slot) is int
    drafter = Drafter("mtp", (), lookahead=np.int64(2))  # type: ignore[arg-type]
    assert type(drafter.lookahead) is int
    with pytest.raises(SpecError, match="name 5 of a drafter"):
        Drafter(5, ())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="lookahead True"):
        Drafter("mtp", (), lookahead=True)


def test_ranks_may_come_once_for_several_components() -> None:
    other = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none", component="draft")
    both = {"target": Component(NAMESPACE), "draft": Component(other)}
    with Client(MemoryStore(), NAMESPACE, RANK, pool()) as one:
        assert one.save(page_hashes(range(4), 4), torch.arange(4).view(1, 4)).ok
        catalog = Catalog(one._store, both, ranks=iter([RANK]))  # type: ignore[arg-type]
    assert catalog.match(page_hashes(range(4), 4)).pages == 0  # the draft is nowhere


def test_a_node_that_is_none_is_refused_before_memory_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.memfd_create", None)
    nodes: list[Any] = ["x", 1.0, True, -1, 64, []]
    for node in nodes:
        with pytest.raises(PoolError, match=r"numa_node=.*want None, or 0 to 63"):
            reserve(mmap.PAGESIZE, numa_node=node)


def test_start_and_endpoints_become_pythons_own_numbers() -> None:
    assert type(check_start(np.int64(7), 4)) is int
    assert check_endpoints(None) is None
    for given in ([1, 4], np.array([1, 4]), torch.tensor([1, 4]), iter((1, 4)), range(1, 5, 3)):
        listed = check_endpoints(given)
        assert listed == [1, 4]
        assert set(map(type, listed)) == {int}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"root": "salt"}, "root of type str: want Root"),
        ({"extras": 5}, "extras of type int: want a mapping"),
        ({"extras": []}, "extras of type list: want a mapping"),
        ({"extras": {0: 5}}, "extras of page 0 of type int: want a list"),
        ({"extras": {0: [5]}}, "extra of type int: want Extra"),
        ({"extras": {0: [("tag",)]}}, "extra of type tuple: want Extra"),
        ({"extras": {True: []}}, "extras of page True"),
        ({"page_tokens": True}, "page_tokens True"),
        ({"page_tokens": 4.0}, "page_tokens 4.0"),
    ],
)
def test_page_hashes_of_other_types_are_refused(change: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"tokens": range(8), "page_tokens": 4}
    with pytest.raises(SpecError, match=says) as caught:
        page_hashes(**(given | change))
    assert "salt" not in str(caught.value).partition("want")[0]


def test_page_hashes_take_numbers_of_numpy() -> None:
    extras: Any = {1: [Extra("image", b"x")]}
    numpys: Any = {np.int64(1): [Extra("image", b"x")]}
    wanted = page_hashes(range(8), 4, Root(), extras=extras)
    assert page_hashes(np.arange(8), np.int64(4), Root(), extras=numpys) == wanted  # type: ignore[arg-type]
    assert type(PageChain(np.int64(4)).page_tokens) is int  # type: ignore[arg-type]


def test_a_store_of_another_kind_is_taken_by_what_it_can_do(tmp_path: Any) -> None:
    class Wrapped:
        def __init__(self, store: FileStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    client(store=Wrapped(FileStore(tmp_path)))
    with pytest.raises(TopologyError):
        catalog(store=Wrapped(FileStore(tmp_path)), ranks=[])

"""Promises: all that a store promises, in one class, and one by one. They know no pytest.

`unikv.testing.StoreContract` hands them to pytest, ``unikv conformance`` tries them without it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from unikv.testing_batches import BatchPromises
from unikv.testing_checks import shown, values_of
from unikv.testing_crowds import CrowdPromises
from unikv.testing_elsewhere import ElsewherePromises
from unikv.testing_lists import ListPromises
from unikv.testing_objects import ObjectPromises
from unikv.testing_ranges import RangePromises

_FIRST = "test_"


class Promises(
    ObjectPromises,
    RangePromises,
    BatchPromises,
    ListPromises,
    CrowdPromises,
    ElsewherePromises,
):
    """What `unikv.store.Store` promises."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, or one value of a promise that is to be kept for several."""

    name: str
    """As its test has it, less ``test_``."""
    case: str
    """Which value of several, such as "size 0"; empty if there are none."""
    says: str
    """What is promised, in a sentence."""
    group: str
    """What kind of promise it is: "object", "range", "batch"..."""
    keep: Callable[..., None]
    """Raises `AssertionError` if it is broken, `NotApplicable` if a store need not keep it."""
    values: Mapping[str, object]
    """Arguments of `keep` that are told."""
    wants: frozenset[str]
    """Arguments of `keep` that are to be given: ``store``, ``second``, ``keys``."""


def all_promises(of: Promises) -> Iterator[Promise]:
    """Yield every promise, in the order in which they are written."""
    for kind in Promises.__bases__:
        for name in vars(kind):
            if name.startswith(_FIRST):
                yield from _cases(kind.__name__.removesuffix("Promises").lower(), getattr(of, name))


def _cases(group: str, keep: Callable[..., None]) -> Iterator[Promise]:
    name, says = keep.__name__.removeprefix(_FIRST), (inspect.getdoc(keep) or "").partition("\n")[0]
    values = values_of(keep)
    wants = frozenset(inspect.signature(keep).parameters) - set(values)
    for chosen in product(*values.values()):
        given = dict(zip(values, chosen, strict=True))
        case = ", ".join(f"{parameter} {shown(value)}" for parameter, value in given.items())
        yield Promise(name, case, says, group, keep, given, wants)

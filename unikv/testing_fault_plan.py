"""FaultPlan: which calls of a store go wrong, and how, as values. It calls no store.

A plan is a sequence of rules and holds no state: the same plan and seed over the same calls give
the same faults. It travels to another process as JSON.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import Literal, TypeAlias, get_args

from unikv.errors import StoreError

Fault: TypeAlias = Literal[
    "delay",
    "hang",
    "raise",
    "crash",
    "error",
    "miss",
    "late",
    "short",
    "flip",
    "swap",
    "lost",
    "torn",
    "full",
]
Verb: TypeAlias = Literal["put", "get", "stat", "delete", "list"]
When: TypeAlias = Literal["before", "during", "after"]
How: TypeAlias = Literal["", "garbage", "right", "cut", "zero", "exit", "kill"]

VERBS: tuple[Verb, ...] = get_args(Verb)

OF_CALLS: tuple[Fault, ...] = ("delay", "hang", "raise", "crash")
"""Faults of a whole call; all others are of one item of its batch."""

SUITS: Mapping[Fault, tuple[Verb, ...]] = {
    **dict.fromkeys(OF_CALLS, VERBS),
    "error": VERBS,
    "miss": ("get", "stat", "delete"),
    "late": ("get",),
    "short": ("get",),
    "flip": ("get", "put"),
    "swap": ("get", "put"),
    "lost": ("put",),
    "torn": ("put",),
    "full": ("put",),
}
"""The verbs that a fault can befall."""

HOWS: Mapping[Fault, tuple[How, ...]] = {
    "late": ("garbage", "right"),
    "torn": ("cut", "zero"),
    "crash": ("kill", "exit"),
}
"""Ways of a fault, the usual one first."""

_WAITS: tuple[Fault, ...] = ("delay", "hang", "late")

_WHENS: Mapping[Fault, tuple[When, ...]] = {
    "raise": ("before", "during", "after"),
    "crash": ("before", "during", "after"),
    "error": ("before", "after"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault and the calls or items that it befalls: all that match, if nothing says less.

    =====  ===========  ======================================================================
    delay  every call   waits ``seconds``, then does what it should
    hang   every call   waits ``seconds`` or until released, then fails and has done nothing
    raise  every call   raises `RuntimeError`, or `StoreError` if ``retryable``
    crash  every call   ends the process: ``how="kill"`` (SIGKILL) or ``"exit"``; never the one
                        that made the store, see `unikv.testing_faults.faulty`
    error  all verbs    fails; what a get was to fill holds garbage; a stat answers None
    miss   get stat     says that there is no such key; so does a delete, and leaves it there
    late   get          waits ``seconds`` or until released, then writes ``how="garbage"`` or the
                        ``"right"`` bytes and at once returns what the inner store said
    short  get          fills the first half, leaves the rest as it was, says OK
    flip   get put      one bit of the bytes is another, says OK
    swap   get put      the bytes are those of another key, says OK
    lost   put          stores nothing, says OK
    torn   put          stores half, ``how="cut"`` there or with a ``"zero"`` tail, says OK
    full   put          fails as a full disk does (ENOSPC)
    =====  ===========  ======================================================================

    The first four befall whole calls, the others items of batches. What can be had only from
    another key or a non-empty object does nothing, and is not counted, where there is none.
    What spoils a put befalls only one that would write: what is there already stays whole.

    Matches are numbered from 1: calls for faults of calls, items for the others.

    Args:
        fault: what goes wrong.
        verbs: calls that match; () for all that the fault can befall.
        keys: glob that a key (of a call: any key of its batch) must match; ``"3fa*"`` is a page.
        nth: the first match that is befallen.
        every: then every so many.
        count: at most so often; None for no limit.
        probability: of each of these, drawn from the plan's seed.
        after_s: only when the store is open for so long.
        until_s: only until it is open for so long.
        while_file: only while this file exists. Who waits goes on when it is removed.
        once_file: only by removing this file, so just once among all processes.
        seconds: how long to wait; None for until released.
        retryable: what the error says of itself.
        when: "before" what the call should do, "after" it, or "during": half of its batch.
        how: see the table.
        survives_close: waits on when the store is closed, until it is released.

    Raises:
        ValueError: a value that is none, or does not suit the fault.
    """

    fault: Fault
    _: KW_ONLY
    verbs: tuple[Verb, ...] = ()
    keys: str = "*"
    nth: int = 1
    every: int = 1
    count: int | None = None
    probability: float = 1.0
    after_s: float = 0.0
    until_s: float | None = None
    while_file: str | None = None
    once_file: str | None = None
    seconds: float | None = None
    retryable: bool = False
    when: When = "before"
    how: How = ""
    survives_close: bool = False

    def __post_init__(self) -> None:
        if self.fault not in SUITS:
            raise ValueError(f"fault {self.fault!r:.80}: want one of {', '.join(SUITS)}")
        object.__setattr__(self, "verbs", tuple(self.verbs) or SUITS[self.fault])
        object.__setattr__(self, "how", self.how or HOWS.get(self.fault, ("",))[0])
        self._check("verbs", all(verb in SUITS[self.fault] for verb in self.verbs))
        self._check("nth", self.nth >= 1)
        self._check("every", self.every >= 1)
        self._check("count", self.count is None or self.count >= 0)
        self._check("probability", 0 <= self.probability <= 1)
        self._check("after_s", self.after_s >= 0)
        self._check("until_s", self.until_s is None or self.until_s > self.after_s)
        self._check("seconds", self.seconds is None or self.seconds >= 0)
        self._check("seconds", self.seconds is None or self.fault in _WAITS)
        self._check("seconds", self.seconds is not None or self.fault != "delay")
        self._check("when", self.when in _WHENS.get(self.fault, ("before",)))
        self._check("how", self.how in HOWS.get(self.fault, ("",)))

    def failure(self, doing: str, code: int = errno.EIO) -> StoreError:
        """Return the error of what this rule lets fail."""
        error = StoreError(f"{doing}: {os.strerror(code)} (a planned {self.fault})")
        error.errno = code
        error.retryable = self.retryable
        return error

    def _check(self, name: str, fits: bool) -> None:  # noqa: FBT001 - one of a row of checks
        if not fits:
            value = getattr(self, name)
            raise ValueError(f"rule {self.fault}: {name}={value!r:.80} does not suit it")


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules, in order of precedence, and what their chances are drawn from.

    All rules of calls that match befall a call; of the rules of items the first that matches.

    Args:
        rules: the rules.
        seed: for ``probability`` and the places of flipped bits.
        told_file: a file to append a line to for each fault as it begins, see
            `unikv.testing_faults.told`; for a store in another process.
    """

    rules: Sequence[Rule] = ()
    seed: int = 0
    told_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` is its inverse."""
        rules = [
            {name: value for name, value in asdict(rule).items() if value != _DEFAULTS[name]}
            for rule in self.rules
        ]
        return json.dumps({"rules": rules, "seed": self.seed, "told_file": self.told_file})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan that ``text`` holds.

        Raises:
            ValueError: it is none.
        """
        try:
            found = json.loads(text)
            rules = [Rule(**rule) for rule in found.pop("rules")]
            return cls(rules, **found)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"fault plan {text!r:.200}: {error}") from error


_DEFAULTS = {field.name: field.default for field in fields(Rule)}

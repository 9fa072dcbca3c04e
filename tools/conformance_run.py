"""Conformance run: tries the promises of a store on a live one. It prints nothing.

What it stores has keys that nobody else uses, and is removed again: a store that holds other
objects keeps them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

from unikv.backends.url import mask
from unikv.errors import UnikvError
from unikv.testing_checks import NotApplicable
from unikv.testing_data import Keys
from unikv.testing_promises import Promise, Promises, all_promises
from unikv.tools.conformance_subject import HangError, Listing, Subject

_REASON = 600
"""Characters of what a promise says is wrong; it quotes the backend in short."""

Verdict = Literal["kept", "broken", "not applicable", "not tried"]
Tick = Callable[[int, int, str], None]
"""Told how many promises are tried, of how many, and which is next."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one promise."""

    promise: Promise
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of all."""

    url: str  # without what may be secret
    findings: Sequence[Finding]
    left: Sequence[str] = field(default=())
    """Keys that were stored and could not be removed."""
    faults: Sequence[str] = field(default=())
    """What went wrong beside the promises: in storing the first object, removing, closing."""
    hung: bool = False
    """Whether a call is still going on, which would keep the process from its end."""

    @property
    def ok(self) -> bool:
        """Whether no promise was broken, every other one could be tried, and all else went well."""
        wrong = self.left or self.faults or self.hung
        return not (wrong or self.count("broken") or self.count("not tried"))

    def count(self, verdict: Verdict) -> int:
        """Return how many promises came out so."""
        return sum(finding.verdict == verdict for finding in self.findings)


def try_promises(
    url: str, *, only: str = "", limit_s: float = 120.0, tick: Tick | None = None
) -> Findings:
    """Try every promise on the store that a URL names, or those whose name has ``only`` in it.

    Args:
        url: of the store.
        only: a part of the names of promises, written with spaces or underscores.
        limit_s: seconds that one promise may take, and each thing that is done beside them:
            opening, a first listing, removing what a promise stored. Behind what takes longer
            nothing is tried.
        tick: told before each promise.

    Raises:
        HangError: the store cannot be opened, nor anything be stored, in that time.
        UnikvError: the store cannot be opened, or nothing be stored there.
    """
    promises = Promises()
    wanted = only.replace(" ", "_").lower()
    chosen = [each for each in all_promises(promises) if wanted in each.name.lower()]
    if not chosen:
        raise UnikvError(f"no promise has {only!r:.80} in its name: want a part of one, as B53")
    subject = Subject(url, limit_s)
    try:
        left = subject.try_writing()
        found, others = _try_each(subject, promises, chosen, tick)
    except BaseException as error:
        subject.close()
        if subject.hung and isinstance(error, UnikvError):
            raise HangError(str(error)) from None
        raise
    subject.close()
    return Findings(mask(url), found, left + others, list(subject.faults.values()), subject.hung)


def _try_each(
    subject: Subject, promises: Promises, chosen: Sequence[Promise], tick: Tick | None
) -> tuple[list[Finding], list[str]]:
    """Try some promises; return what became of them, and the keys of what could not be removed."""
    found: list[Finding] = []
    left: list[str] = []
    listing: Listing | None = None
    for promise in chosen:
        if subject.hung:
            found.append(Finding(promise, "not tried"))
            continue
        if tick is not None:
            tick(len(found), len(chosen), promise.name)
        if promise.group == "list" and listing is None:
            listing = subject.try_listing()
            promises.lists = listing.lists
            if listing.hung:
                found.append(Finding(promise, "broken", f"{listing.why}: no other is tried"))
                continue
        keys = Keys(alone=False, whole=listing is None or listing.whole)
        try:
            finding = _judge(subject, promise, keys)
        except BaseException:  # Ctrl-C: nobody else knows of these keys
            subject.remove(sorted(keys.given))
            raise
        no_listing = listing.why if listing and promise.group == "list" else ""
        if no_listing and finding.verdict == "not applicable":
            finding = Finding(promise, "not applicable", no_listing, finding.seconds)
        found.append(finding)
        given = sorted(keys.given)
        left += given if subject.hung else subject.remove(given)
    return found, left


def _judge(subject: Subject, promise: Promise, keys: Keys) -> Finding:
    """Try one promise."""
    start = monotonic()
    error = subject.within(
        lambda: promise.keep(**promise.values, **_given(subject, promise, keys))
    ).error
    seconds = monotonic() - start
    if isinstance(error, HangError):
        return Finding(promise, "broken", f"{error}: no other is tried", seconds)
    subject.renew(after=error)
    if error is None:
        return Finding(promise, "kept", "", seconds)
    if isinstance(error, NotApplicable):
        return Finding(promise, "not applicable", str(error), seconds)
    if isinstance(error, AssertionError):
        told = subject.words.of(error, _REASON) or "an assertion failed"
        return Finding(promise, "broken", told, seconds)
    told = f"raised where nothing should be: {subject.words.named(error)}"
    return Finding(promise, "broken", told, seconds)


def _given(subject: Subject, promise: Promise, keys: Keys) -> dict[str, object]:
    """Return what a promise wants to be given."""
    open_one: dict[str, Callable[[], object]] = {
        "store": subject.store,
        "second": subject.second,
        "keys": lambda: keys,
    }
    return {name: open_one[name]() for name in promise.wants}

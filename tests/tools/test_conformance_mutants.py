"""Each of these stores breaks a promise of stores, and the promise that it breaks finds it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from unikv import registry
from unikv.backends.batch import Batch
from unikv.backends.memory import MemoryStore
from unikv.backends.url import StoreUrl
from unikv.errors import StoreError
from unikv.registry import Scheme
from unikv.store import Entry, Item, Outcome, Outcomes, Span
from unikv.tools import conformance
from unikv.tools.conformance_run import Findings, try_promises

OK, EXISTED, MISS, FAILED = Outcome


class InclusiveRanges(MemoryStore):
    """Gives one byte more, as HTTP counts, and cuts it off at the end of the views."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return super().get([Span(k, max(0, a - 1), b - (a > 0), i) for k, a, b, i in spans])


class ShortReads(MemoryStore):
    """Takes what there is of a range for all of it."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        outcomes = super().get(spans)
        return Outcomes([OK if code == FAILED else code for code in outcomes.codes])


class EmptyHits(MemoryStore):
    """Takes nothing for a hit."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        outcomes = super().get(spans)
        codes = [OK if code == MISS else code for code in outcomes.codes]
        return Outcomes(codes, outcomes.errors)


class AllOrNothing(MemoryStore):
    """Fails a whole batch for one bad key."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        outcomes = super().put(items, replace=replace)
        if not outcomes.errors:
            return outcomes
        error = next(iter(outcomes.errors.values()))
        return Outcomes([FAILED] * len(items), dict.fromkeys(range(len(items)), error))


class ExistsFails(MemoryStore):
    """Takes what is there for a failure."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        outcomes = super().put(items, replace=replace)
        codes = [FAILED if code == EXISTED else code for code in outcomes.codes]
        errors = {i: StoreError("exists") for i, code in enumerate(codes) if code == FAILED}
        return Outcomes(codes, {**errors, **outcomes.errors})


class Overwrites(MemoryStore):
    """Replaces whatever is there."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:  # noqa: ARG002
        return super().put(items, replace=True)


class Aliases(MemoryStore):
    """Keeps the caller's buffers in the place of copies."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        outcomes = super().put(items, replace=replace)
        for (key, buffers), code in zip(items, outcomes.codes, strict=True):
            if code == OK and len(buffers) == 1:
                self._objects[key] = (buffers[0], 1.0)  # type: ignore[assignment]
        return outcomes


class Remembers(MemoryStore):
    """Believes for ever what it once was told not to exist."""

    def __init__(self) -> None:
        super().__init__()
        self.missed: set[str] = set()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        sizes = super().stat(keys)
        self.missed |= {key for key, size in zip(keys, sizes, strict=True) if size is None}
        return [None if key in self.missed else n for key, n in zip(keys, sizes, strict=True)]


class ListsParts(MemoryStore):
    """Shows temporary files."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        yield from super().list(prefix)
        yield Entry(prefix + "+part", 1, None)


class DeletesAll(MemoryStore):
    """Says of every object that it removed it."""

    def delete(self, keys: Sequence[str]) -> Outcomes:
        codes = super().delete(keys)
        return Outcomes([OK if code == MISS else code for code in codes.codes], codes.errors)


class Torn(MemoryStore):
    """Shows an object before all of it is there."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        for key, buffers in items:
            if replace and len(buffers) > 1:
                data = b"".join(buffers)
                self._objects[key] = (data[:7] + bytes(len(data) - 7), 1.0)
                time.sleep(0.02)
        return super().put(items, replace=replace)


class Keeps(MemoryStore):
    """Keeps a view of every buffer it saw."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.seen = getattr(self, "seen", []) + [memoryview(v) for s in spans for v in s.into]
        return super().get(spans)


class NeverCloses(MemoryStore):
    """Answers on when it is closed."""

    def close(self) -> None:
        pass


class TriesAgain(MemoryStore):
    """Says of every failure that it may pass."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        outcomes = super().get(spans)
        for error in outcomes.errors.values():
            error.retryable = True
        return outcomes


class Raises(MemoryStore):
    """Raises for one item of a batch."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        outcomes = super().get(spans)
        for error in outcomes.errors.values():
            raise error
        return outcomes


class Folds(MemoryStore):
    """Takes Key and key for one, as some file systems do."""

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        return super().put([Item(key.lower(), b) for key, b in items], replace=replace)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return super().get([Span(key.lower(), a, b, into) for key, a, b, into in spans])


class CannotList(MemoryStore):
    """Has no listing, and may."""

    def list(self, prefix: str = "") -> Iterator[Entry]:  # noqa: ARG002
        self._require_open()
        raise StoreError("there is no listing here")


class Hangs(MemoryStore):
    """Never answers a read of many bytes."""

    def get(self, spans: Sequence[Span]) -> Outcomes:
        if any(span.stop - span.start > 5_000_000 for span in spans):
            time.sleep(3)
        return super().get(spans)


class Leaves(MemoryStore):
    """Cannot remove anything."""

    def delete(self, keys: Sequence[str]) -> Outcomes:
        batch = Batch(len(keys))
        for position, key in enumerate(keys):
            batch.fail(position, f"delete {key!r}", StoreError("no"))
        return batch.outcomes()


@dataclass
class Trial:
    """Opens one of the stores above as a URL would."""

    store: type[MemoryStore]

    def open_url(self, url: StoreUrl) -> MemoryStore:  # noqa: ARG002
        return self.store()


def run(
    monkeypatch: pytest.MonkeyPatch,
    store: type[MemoryStore],
    *,
    only: str = "",
    limit_s: float = 60.0,
) -> Findings:
    monkeypatch.setitem(registry.SCHEMES, "trial", Scheme("", "trial://"))
    monkeypatch.setattr(registry, "_load", lambda *_: Trial(store))
    return try_promises("trial://", only=only, limit_s=limit_s)


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (InclusiveRanges, "B53_ranges_are_half_open"),
        (InclusiveRanges, "B54_a_range_is_read_from_its_offset"),
        (ShortReads, "B67_a_short_object_fails_alone"),
        (EmptyHits, "B55_a_missing_object_is_a_miss"),
        (AllOrNothing, "hostile_keys_fail_alone"),
        (ExistsFails, "B101_a_key_that_exists_does_not_fail_its_batch"),
        (Overwrites, "an_object_of_the_same_size_stays"),
        (Overwrites, "B102_of_many_writers_of_one_key_one_stores"),
        (Aliases, "put_does_not_alias_the_caller"),
        (Remembers, "B93_what_another_wrote_is_seen_at_once"),
        (ListsParts, "B98_a_listing_shows_objects_only"),
        (DeletesAll, "B97_all_calls_agree_on_what_is_there"),
        (Torn, "B46_a_reader_sees_whole_objects_only"),
        (Keeps, "no_buffer_is_held_after_its_call"),
        (NeverCloses, "a_closed_store_says_so"),
        (TriesAgain, "no_retry_helps_what_is_wrong_itself"),
        (Raises, "B103_every_failure_has_its_error"),
        (Folds, "keys_are_told_apart"),
    ],
)
def test_a_broken_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, store: type[MemoryStore], promise: str
) -> None:
    findings = run(monkeypatch, store, only=promise)
    broken = {f.promise.name: f.reason for f in findings.findings if f.verdict == "broken"}
    assert promise in broken
    assert broken[promise]  # and says what was found
    assert not findings.ok


def test_what_need_not_be_kept_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = run(monkeypatch, CannotList)
    assert findings.ok
    lists = [finding for finding in findings.findings if finding.promise.group == "list"]
    assert {finding.verdict for finding in lists} == {"not applicable"}
    assert {f.reason for f in lists} == {"the backend cannot list: there is no listing here"}


def test_a_call_that_hangs_is_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = run(monkeypatch, Hangs, limit_s=0.5)
    verdicts = [finding.verdict for finding in findings.findings]
    assert verdicts.count("broken") == 1
    assert set(verdicts[verdicts.index("broken") + 1 :]) == {"not tried"}
    assert findings.hung
    assert not findings.ok
    assert findings.left  # what it stored is there still
    ended: list[int] = []
    monkeypatch.setattr(conformance.os, "_exit", ended.append)  # type: ignore[attr-defined]
    from unikv.tools.cli import main

    main(["conformance", "trial://", "--limit", "0.5"])
    assert ended == [1]
    assert "no end after 0.5 s" in capsys.readouterr().out


def test_what_cannot_be_removed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = run(monkeypatch, Leaves)
    assert not findings.ok
    assert len(findings.left) > 100
    from unikv.tools.conformance_render import print_findings

    print_findings(findings)
    assert f"{len(findings.left)} objects could not be removed" in capsys.readouterr().out

"""Events: closed kinds, no secrets, and a callback that cannot hurt whoever tells."""

import json
import logging
import math
import pickle

import pytest

from unikv.events import KINDS, LONGEST, Event, Listener, Teller, Value, log_events
from unikv.meters import Meters


def an_event(kind: str = "breaker_closed", **fields: Value) -> Event:
    return Event(kind, 1.5, fields or {"store": "FileStore('/kv')", "open_s": 2.0})


def failures(meters: Meters) -> float:
    name = "unikv_event_callback_failures_total"
    return next(sample.value for sample in meters.read() if sample.name == name)


def test_a_callback_gets_what_was_told() -> None:
    heard: list[Event] = []
    ear = Listener(heard.append)
    teller = Teller(ear, Meters())
    teller.tell("save_dropped", pages=3, reason="the arena is full")
    [event] = heard
    assert event.kind == "save_dropped"
    assert event.fields == {"pages": 3, "reason": "the arena is full"}
    assert event.at > 1.7e9


@pytest.mark.parametrize("gone", [False, True])
def test_nobody_need_listen(*, gone: bool) -> None:
    ears = [Listener(None)]
    teller = Teller(ears[0], Meters())
    if gone:
        ears.clear()
    teller.tell("save_dropped", pages=3, reason="the arena is full")


def test_a_callback_that_raises_is_counted_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    meters = Meters()

    def raises(event: Event) -> None:
        raise RuntimeError(event.kind)

    ear = Listener(raises)
    teller = Teller(ear, meters)
    for _ in range(3):
        teller.tell("healed", key="k", objects=1)
    assert failures(meters) == 3
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_a_callback_that_tells_again_ends() -> None:
    meters = Meters()

    def again(event: Event) -> None:
        teller.tell(event.kind, **event.fields)

    ear = Listener(again)
    teller = Teller(ear, meters)
    teller.tell("healed", key="k", objects=1)
    assert failures(meters) >= 1


def test_an_interrupt_is_no_failure_of_a_callback() -> None:
    def interrupted(_: Event) -> None:
        raise KeyboardInterrupt

    ear = Listener(interrupted)
    with pytest.raises(KeyboardInterrupt):
        Teller(ear, Meters()).tell("healed", key="k", objects=1)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("exploded", {}, "event 'exploded' is not declared: known are"),
        ("healed", {"key": "k"}, r"healed: fields \['key'\]: want \['key', 'objects'\]"),
        ("healed", {"key": "k", "objects": 1, "x": 2}, "healed: fields"),
        ("healed", {"key": "k", "objects": None}, "objects is a NoneType: want str, int or float"),
        ("healed", {"key": b"k", "objects": 1}, "key is a bytes"),
        ("healed", {"key": "k", "objects": True}, "objects is a bool"),
    ],
)
def test_what_is_not_declared_is_refused(kind: str, fields: dict[str, Value], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Event(kind, 0.0, fields)


@pytest.mark.parametrize(
    "text",
    [
        "put to redis://user:s3cret@host:6379/0 failed",
        "put to redis://:s3cr/et@host failed",
        "put to s3://bucket?secret=s3cret failed",
        "put to s3://bucket/p#s3cret failed",
        "cannot open 'https://u:s3cret@host/x?token=s3cret' and s3://a@b",
    ],
)
def test_secrets_of_urls_never_show(text: str) -> None:
    event = an_event(store="S3Store", reason=text, retry_s=1, kind="breaker_opened")
    for shown in (event.line(), repr(event), str(event.fields)):
        assert "s3c" not in shown
        assert "failed" in shown or "cannot open" in shown


def test_long_texts_are_cut() -> None:
    event = an_event(store="x" * 10_000, open_s=1)
    assert event.fields["store"] == "x" * LONGEST
    assert len(event.line()) < LONGEST + 100


def test_a_line_is_one_line_of_json() -> None:
    event = an_event(store="a\nb\u2028é\ud800%s", open_s=math.inf)
    line = event.line()
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert json.loads(line) == {
        "event": "breaker_closed",
        "at": 1.5,
        "store": "a\nb\u2028é\ud800%s",
        "open_s": "inf",
    }
    whole = an_event(store="s", open_s=10**400)  # no float, and yet a number of JSON
    assert json.loads(whole.line())["open_s"] == 10**400


def test_log_events_writes_one_line_at_the_level_of_the_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = log_events(logging.getLogger("unikv.test"))
    with caplog.at_level(logging.INFO):
        log(an_event(store="%s %d", open_s=0))
        log(an_event("io_process_died", pid=1, exit_code=-9, tickets=2))
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.ERROR]
    told = [json.loads(record.getMessage()) for record in caplog.records]
    assert [one["event"] for one in told] == ["breaker_closed", "io_process_died"]
    assert told[0]["store"] == "%s %d"


def test_an_event_is_a_value_that_travels() -> None:
    event = an_event()
    assert pickle.loads(pickle.dumps(event)) == event
    fields: dict[str, Value] = {"store": "s", "open_s": 1}
    kept = Event("breaker_closed", 0.0, fields)
    fields["store"] = "changed"
    assert kept.fields["store"] == "s"


def test_the_kinds_are_sound() -> None:
    for name, kind in KINDS.items():
        assert name.isidentifier()
        assert logging.getLevelName(kind.level) in ("INFO", "WARNING", "ERROR")
        assert not {"event", "at", "kind", "self"} & set(kind.fields)
        assert kind.help
        assert not kind.help.endswith(".")

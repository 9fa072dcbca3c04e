"""What is printed: a golden text, and that no byte of a store commands the terminal."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.tools import stores
from tests.tools.stores import KEYED, MHA, NAMESPACES, PAGES, TAG_KEY, change, flip, write
from unikv import KVSpec, Namespace
from unikv.backends.memory import MemoryStore
from unikv.store import Item
from unikv.tools.findings import (
    ChunkFinding,
    Fault,
    Findings,
    PageContent,
    PageFindings,
    Unknown,
)
from unikv.tools.lookup import inspect_store
from unikv.tools.render import print_findings, print_json
from unikv.tools.roster import know
from unikv.tools.survey import survey
from unikv.tools.wording import printable, size_text

GOLDEN = Path(__file__).parents[1] / "golden" / "inspect.txt"


def draw(
    findings: Findings, *, verbose: bool = False, encoding: str = "utf-8", colour: bool = False
) -> str:
    """Return what is printed on a terminal of 100 columns."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=100, highlight=False, force_terminal=colour)
    print_findings(findings, verbose=verbose, console=console)
    file.flush()
    return raw.getvalue().decode(encoding)


def _sample() -> tuple[MemoryStore, list[str]]:
    """Return a store with two namespaces, one without hint, and one fault of each kind."""
    store = MemoryStore()
    keys = write(store, MHA)
    write(store, stores.STATE, hint=False)
    store.delete([keys[3]])
    change(store, keys[4], lambda data: data[:-1])
    change(store, keys[5], flip(700))
    store.put([Item("notes.txt", [b"mine"])])
    return store, keys


def test_the_printed_text_of_a_small_store_is_the_golden_one() -> None:
    store, keys = _sample()
    shown = [
        draw(inspect_store(store, "file:///kv", target, verify=True, verbose=True))
        for target in (None, PAGES[1], keys[5])
    ]
    lines = [line.rstrip() for line in "\n\n".join(shown).splitlines()]
    assert lines == GOLDEN.read_text().splitlines()


def test_ascii_terminals_get_ascii() -> None:
    store, _ = _sample()
    text = draw(inspect_store(store, "file:///kv", PAGES[1]), encoding="ascii")
    assert "S wrong size 1" in text
    assert "X damaged 1" in text


@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=NAMESPACES)
def test_every_kind_prints_in_every_form(store: MemoryStore, namespace: Namespace) -> None:
    key = write(store, namespace)[0]
    for target in (None, PAGES[0], key):
        text = draw(inspect_store(store, "memory://", target))
        assert namespace.digest in text
        assert str(namespace.spec.layers) in text


def test_keyed_tags_say_that_they_need_the_key(store: MemoryStore) -> None:
    key = write(store, KEYED, tag_key=TAG_KEY)[0]
    text = draw(inspect_store(store, "memory://", key))
    assert "keyed: needs the key" in text
    assert "BAD" not in text
    text = draw(inspect_store(store, "memory://", PAGES[0]))
    assert "not verified: keyed: needs the key (--tag-key-file)" in text
    text = draw(inspect_store(store, "memory://", verify=True))
    assert "4 objects: keyed, needs the key (--tag-key-file)" in text


def test_a_damaged_slab_says_bad(store: MemoryStore) -> None:
    key = write(store, MHA)[0]
    change(store, key, flip(600))
    assert "BAD" in draw(inspect_store(store, "memory://", key))


HOSTILE = "\x1b[2J\x07\x9b31m\u202egnol\u2028[bold red]x[/] [link=file:///]y[/link] :smile:\ud800"


def test_labels_can_neither_command_the_terminal_nor_use_markup() -> None:
    fault = Fault("k", HOSTILE, HOSTILE)
    unknown = (Unknown("d", 1, 1, HOSTILE),)
    facts = replace(
        know(MHA, None).facts(),
        rope={HOSTILE: HOSTILE, "a": {"b": [HOSTILE, "\n"]}},
        model=HOSTILE,
        component=HOSTILE,
        quant=HOSTILE,
        numerics=HOSTILE,
        weights=HOSTILE,
    )
    store = survey(_sample()[0], HOSTILE)
    found = replace(
        store,
        namespaces=(
            replace(store.namespaces[0], namespace=facts, damaged=(fault,), damaged_objects=1),
        ),
        unknown=unknown,
        damaged_hints=(fault,),
        foreign=(HOSTILE,),
    )
    chunk = ChunkFinding(HOSTILE, (0, 1), (0, 1), None, "damaged", 1, HOSTILE)
    page = PageContent(facts, (HOSTILE,), (), (chunk,))
    for findings in (found, PageFindings("page", HOSTILE, "p", (page,), unknown, (HOSTILE,))):
        text = draw(findings, verbose=True)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "[bold red]x[/] [link=file:///]y[/link] :smile:" in text
        assert r"\x1b[2J\x07\x9b31m\u202egnol\u2028" in text
        coloured = draw(findings, colour=True)
        assert "\x1b[2J" not in coloured
        assert "\x1b]8" not in coloured  # a link


def test_a_hostile_label_is_stored_and_printed_harmlessly(store: MemoryStore) -> None:
    label = "[red]\u202eevil\u200b[/red] \U0001f600"
    write(store, Namespace(spec=MHA.spec, weights=MHA.weights, rope="none", model=label))
    text = draw(inspect_store(store, "memory://"))
    assert r"[red]\u202eevil\u200b[/red]" in text


def test_a_grid_of_many_heads_is_drawn_in_the_width_of_the_terminal(store: MemoryStore) -> None:
    spec = KVSpec.mha(layers=2, kv_heads=128, head_dim=1, dtype="int8", page_tokens=1)
    namespace = Namespace(spec=spec, weights=MHA.weights, rope="none", heads_per_chunk=1)
    write(store, namespace, PAGES[:1])
    lines = draw(inspect_store(store, "memory://", PAGES[0])).splitlines()
    assert sum(line.count("■") for line in lines) == 128 + 1  # and one in the legend
    assert max(map(len, lines)) <= 100


def test_a_grid_too_large_to_draw_is_counted() -> None:
    chunk = ChunkFinding("L0-1", (0, 1), (0, 1), None, "ok", 1, "")
    content = PageContent(know(MHA, None).facts(), (), (), (chunk,) * 5000)
    text = draw(PageFindings("page", "u", "p", (content,), (), ()))
    assert "5,000 chunks: too many to draw" in text


def test_json_survives_every_label(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(PageFindings("page", HOSTILE, "p", (), (), (HOSTILE,)))
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["url"] == HOSTILE


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 62, "4,096.0 PiB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert size_text(size) == text


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Qwen3-8B · 通义 é 😀 [x]") == "Qwen3-8B · 通义 é 😀 [x]"

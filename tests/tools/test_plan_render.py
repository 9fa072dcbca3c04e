"""What is printed of a plan: a golden text, any width and encoding, and no label that commands."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.tools.plans import DEEPSEEK, HYBRID, LLAMA, PRICES, SMOL, fleet, model, plan, refusal
from unikv.spec import KVSpec
from unikv.tools.plan_choice import NoGrid, make_plan
from unikv.tools.plan_draw import spell
from unikv.tools.plan_figures import PlanFigures
from unikv.tools.plan_render import print_plan

GOLDEN = Path(__file__).parents[1] / "golden" / "plan.txt"


def draw(found: PlanFigures | NoGrid, *, width: int = 100, encoding: str = "utf-8") -> str:
    """Return what is printed, without the blanks at the ends of lines."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_plan(found, console=Console(file=file, width=width, highlight=False))
    file.flush()
    return "".join(f"{line.rstrip()}\n" for line in raw.getvalue().decode(encoding).splitlines())


def test_the_printed_text_of_a_fleet_is_the_golden_one() -> None:
    some = model(LLAMA, label="Llama-70B", weights="unversioned", placeholders=("weights",))
    found = make_plan(
        some, fleet("tp4,pp2 tp2 tp8,dcp2:16", "tp16 tp1,pp3:27-27-26,cp2"), 100_000, PRICES
    )
    assert draw(found) == GOLDEN.read_text()


def test_the_printed_reasons_end_with_a_command_that_works() -> None:
    shown = draw(refusal(LLAMA, "tp5 tp1,dcp2", "tp1,dcp2:4"))
    assert shown == (
        "a model: this fleet has no common grid\n"
        "  tp5,pp1: tp=5 neither divides nor is a multiple of 8 KV heads: want tp=1, 2, 4, 8 or a "
        "multiple of 8\n"
        "  tp1,pp1,dcp2:4: its decode context ranks deal tokens out with interleave 4, others of "
        "the fleet with 1: no token phases suit both, want one interleave\n"
        "\n"
        "the nearest that has one:\n"
        "  tp4,pp1 instead of tp5,pp1\n"
        "  without tp1,pp1,dcp2:4\n"
        "  layers 0-80; 2 heads a chunk; 2 token phases, interleave 1: 8 objects a page\n"
        "  unikv plan ... --deploy tp4,pp1 --deploy tp1,pp1,dcp2 --page-tokens 64\n"
    )


def test_a_fleet_with_nothing_near_says_so() -> None:
    wide = KVSpec.mla(layers=1, dim=4000, dtype="int8", page_tokens=2**20)
    assert draw(refusal(wide, "tp1,dcp3")).endswith("\nnothing near it has one\n")


@pytest.mark.parametrize(
    ("spec", "writers"),
    [
        (KVSpec.mha(layers=61, kv_heads=128, head_dim=8, dtype="int8", page_tokens=64), "tp128"),
        (KVSpec.mha(layers=2, kv_heads=16, head_dim=8, dtype="int8", page_tokens=64), "tp256"),
        (LLAMA, " ".join(["tp8,pp20"] * 26)),
        (DEEPSEEK, "tp16,dcp16 tp1,pp61 tp1,dcp2"),
        (HYBRID, "tp2,pp2:16-16"),
        (SMOL, "tp12,pp3,cp5"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else value.kind,
)
@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cut_on_a_usual_terminal(spec: KVSpec, writers: str, width: int) -> None:
    shown = draw(plan(spec, writers), width=width)
    assert "…" not in shown


def test_a_terminal_without_unicode_gets_ascii_marks() -> None:
    found = plan(SMOL, "tp3,pp2", "tp1")
    shown = draw(found, encoding="ascii")
    assert "  0-15    A 0  B 0  #  #  #" in shown


def test_what_is_drawn_names_the_owners_of_each_axis() -> None:
    lines = [" ".join(line.split()) for line in draw(plan(SMOL, "tp3,pp2", "tp6")).splitlines()]
    assert {"A tp 0 1 2", "B tp 0-1 2-3 4-5", "0-15 A 0 B 0 ■ ■ ■", "15-30 A 1 B 0 ■ ■ ■"} <= {
        *lines
    }


def test_many_phases_are_counted_and_not_drawn() -> None:
    assert "■x8" in draw(plan(DEEPSEEK, "tp1,dcp8"))
    assert "■■■■\n" in draw(plan(DEEPSEEK, "tp1,dcp4"))


def test_a_label_never_commands_the_terminal() -> None:
    some = model(SMOL, label="evil[bold]\u202e")
    for writers in ("tp3", "tp2"):
        shown = draw(make_plan(some, fleet(writers), 100, PRICES))
        assert "evil[bold]\\u202e" in shown
        assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "-"),
        ((3,), "3"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 2), "0,2"),
        ((0, 1, 4, 5, 9), "0-1,4-5,9"),
    ],
)
def test_ranks_are_spelled_in_short(ranks: tuple[int, ...], text: str) -> None:
    assert spell(ranks) == text

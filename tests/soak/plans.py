"""Plans: what goes wrong with the stores of a soak, as long as its storm lasts. They call none."""

from unikv.testing_fault_plan import Plan, Rule, Verb

LATE_S = 0.8
HANG_S = 1.5


def plan_of(storm: str, told_file: str, seed: int, *, spoilt: bool) -> Plan:
    """Return the faults of one opened store.

    Args:
        storm: a file; rules befall while it exists.
        told_file: where faults are told.
        seed: what chances are drawn from.
        spoilt: whether puts may say that they stored what they did not.
    """
    rules = [*_calls(storm), *_gets(storm), *_puts(storm)]
    if spoilt:
        rules = [*_spoilt(storm), *rules]
    return Plan(rules, seed=seed, told_file=told_file)


def _calls(storm: str) -> list[Rule]:
    return [
        Rule("delay", probability=0.1, seconds=0.05, while_file=storm),
        Rule("hang", probability=0.01, seconds=HANG_S, while_file=storm),
        Rule("raise", probability=0.01, while_file=storm),
        Rule("raise", probability=0.01, when="during", retryable=True, while_file=storm),
        Rule("raise", probability=0.01, when="after", retryable=True, while_file=storm),
    ]


def _gets(storm: str) -> list[Rule]:
    get: tuple[Verb, ...] = ("get",)
    return [
        Rule("error", verbs=get, probability=0.01, retryable=True, while_file=storm),
        Rule("error", verbs=get, probability=0.001, while_file=storm),
        Rule("late", probability=0.0015, seconds=LATE_S, while_file=storm),
        Rule("short", probability=0.002, while_file=storm),
        Rule("flip", verbs=get, probability=0.002, while_file=storm),
        Rule("swap", verbs=get, probability=0.002, while_file=storm),
        Rule("error", verbs=("stat",), probability=0.002, while_file=storm),
    ]


def _puts(storm: str) -> list[Rule]:
    put: tuple[Verb, ...] = ("put",)
    return [
        Rule("error", verbs=put, probability=0.01, retryable=True, while_file=storm),
        Rule("error", verbs=put, probability=0.001, while_file=storm),
        Rule("error", verbs=put, probability=0.002, when="after", while_file=storm),
        Rule("full", probability=0.002, while_file=storm),
    ]


def _spoilt(storm: str) -> list[Rule]:
    """Return what leaves less behind than the store said."""
    return [
        Rule("torn", probability=0.002, while_file=storm),
        Rule("torn", probability=0.002, how="zero", while_file=storm),
        Rule("lost", probability=0.002, while_file=storm),
        Rule("flip", verbs=("put",), probability=0.002, while_file=storm),
        Rule("swap", verbs=("put",), probability=0.002, while_file=storm),
        Rule("miss", verbs=("get", "stat"), probability=0.002, while_file=storm),
    ]

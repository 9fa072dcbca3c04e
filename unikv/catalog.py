"""Catalog: how much of a sequence is stored, for schedulers. It has no pool and moves no bytes."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from weakref import WeakSet

from unikv.arena import ALIGN, Arena
from unikv.bundle import model_layers
from unikv.client_options import check_deadline, check_ranks, check_store
from unikv.closing import Closing
from unikv.component import Component, name_components
from unikv.crew import Crew, ThreadWorker
from unikv.draft import Drafter
from unikv.errors import StoreError
from unikv.events import Listener, Teller
from unikv.gate import Gate
from unikv.guard import Guard
from unikv.matching import Want, match_bundle
from unikv.meters import Meters
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.pages import check_pages
from unikv.performing import perform
from unikv.planner import plan_read
from unikv.reports import Match
from unikv.store import Store
from unikv.store_call import StoreCall, closed_meanwhile
from unikv.topology import Rank

DEADLINE_S = 5.0
THREADS = 4


class Catalog:
    """Answers which leading pages of a sequence a store holds, for all ranks or for some.

    Args:
        store: any `Store`.
        components: a namespace, or components by name; pools are not needed.
        ranks: None asks for every chunk of a page, else for those that these ranks read.
        drafters: the deployment's, checked against the components as a client does.
        deadline_s: seconds that a match takes at most. A store that does not answer by then is
            taken to hold nothing, at once, until it answers again.

    Attributes:
        meters: counts of all that it does.

    Raises:
        SpecError: an argument that cannot be right.
        TopologyError: no ranks, or sizes that do not fit the model.
    """

    def __init__(
        self,
        store: Store,
        components: Namespace | Mapping[str, Component],
        *,
        ranks: Sequence[Rank] | None = None,
        drafters: Sequence[Drafter] = (),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        check_store(store)
        asked, deadline_s = check_ranks(ranks), check_deadline(deadline_s)
        self._wants: list[Want] = []
        named = name_components(components, drafters=drafters)
        layers = model_layers(named, drafters)
        for name, component in named.items():
            form = ObjectFormat.keyless(component.namespace)
            chunks = form.grid.chunks
            if asked is not None:
                boxes = [rank.box(component.spec, layers) for rank in asked]
                touched = {c.index for box in boxes for c in plan_read(form, box).chunks}
                chunks = tuple(form.grid.chunks[index] for index in sorted(touched))
            required = component.need == "required"
            self._wants.append(Want(name, form, chunks, component.coverage, required))
        self.meters = Meters()
        crew = Crew(lambda _: ThreadWorker(partial(perform, store, memoryview(b""))), THREADS)
        teller = Teller(Listener(None), self.meters)
        self._guard = Guard(crew, Arena(ALIGN), store, self.meters, teller)
        self._deadline_s = deadline_s
        self._pid = os.getpid()
        self._gates: WeakSet[Gate] = WeakSet()  # of matches under way
        self._closing = Closing(self, partial(_let_go, self._guard, self._gates))

    def match(self, pages: Sequence[str]) -> Match:
        """Return the greatest prefix of ``pages`` that every required component can restore.

        Raises:
            KeyFormatError: a text that is no page hash.
            StoreError: the catalog is closed, or was made before this process was forked.
        """
        check_pages(pages)
        if os.getpid() != self._pid or self._closing.closed:
            raise StoreError("this catalog is closed, or was made before a fork: make a new one")
        gate = Gate()
        self._gates.add(gate)
        call = StoreCall(self._guard, monotonic() + self._deadline_s, gate)
        accounts = self._guard.accounts
        with closed_meanwhile(), accounts.call("match"):
            match = match_bundle(call, self._wants, pages)
        accounts.matched(match, len(pages), call.trouble)
        return match if call.trouble is None else match._replace(exact=False)

    def close(self) -> None:
        """Let go of its threads; the store stays open. Closing twice is fine."""
        self._closing.close()


def _let_go(guard: Guard, gates: WeakSet[Gate]) -> None:
    for gate in list(gates):
        gate.shut()
    guard.close()

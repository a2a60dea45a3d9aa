"""Sources to try a coordinator on: honest ones behind a real ledger, and others."""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path

import numpy as np

from veracal.accounting import Unit
from veracal.data import Scores
from veracal.errors import VeracalError
from veracal.federation.coordinator.pool import RemotePool
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Head, Refusal, Request
from veracal.federation.protocol.queries import KINDS, build_query
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports import LocalTransport
from veracal.ledger import open_ledger
from veracal.mechanisms.discrete_noise import add_discrete_gaussian, add_discrete_laplace
from veracal.queries import gaussian_event, laplace_event

COORDINATOR = PrivateKey.new()
_NUMBERS = count(1)


def scores(n: int = 400, temperature: float = 3.0, seed: int = 0) -> Scores:
    """Overconfident scores of two classes."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.5, 1, size=n)
    labels = (rng.uniform(size=n) < p).astype(int)
    return Scores.from_logits(temperature * np.log(p / (1 - p)), labels)


class StandIn:
    """A source of one enrollment: real keys, real ledger, answers at once."""

    def __init__(self, folder: Path, records: Scores, **changed: object) -> None:
        number = next(_NUMBERS)
        self.key = PrivateKey.new()
        fields: dict = {
            "source": f"{number:032x}",
            "name": f"hospital {number}",
            "key": self.key.public,
            "coordinator": COORDINATOR.public,
            "model": "b" * 64,
            "data": f"{number + 1000:032x}",
            "classes": records.n_classes,
            "reads": records.kind,
            "relation": "add-remove",
            "unit": Unit(),
            "micro_epsilon": 10_000_000,
            "delta": 0.0,
            "max_per_answer": 10_000_000,
            "kinds": tuple(name for name, kind in KINDS.items() if not kind.gaussian),
            "max_records": 1_000,
            "deadline": 0.1,
        }
        if "delta" in changed:
            fields["kinds"] = tuple(KINDS)
        if "micro_epsilon" in changed:
            fields["max_per_answer"] = changed["micro_epsilon"]
        self.terms = Terms(**{**fields, **changed})
        budget = self.terms.budget
        self.ledger = open_ledger(
            folder / f"{number}.ledger", budget, kind="pure" if budget.pure else "open"
        )
        self.records, self.seen = records, list[Request]()

    def reply(self, raw: bytes) -> bytes:
        """One reply to whatever comes in."""
        try:
            return self._answered(raw)
        except (VeracalError, ValueError):
            return Refusal(self.terms.source).seal(self.key)

    def _answered(self, raw: bytes) -> bytes:
        request = Request.unseal(raw, self.terms.coordinator)
        self.seen.append(request)
        query = build_query(request.kind, request.argument, self.terms)
        relation, unit = self.terms.relation, self.terms.unit
        if request.micro_epsilon is not None:
            event = laplace_event(query, request.micro_epsilon, relation, unit)
            add = add_discrete_laplace
        else:
            event = gaussian_event(query, request.noise_multiplier, relation, unit)
            add = add_discrete_gaussian

        def compute() -> bytes:
            return json.dumps(add(query.evaluate(self.records), event.noise).tolist()).encode()

        entry, answer = self.ledger.answer(
            event, query.name, compute, request=request.id, body=request.id.encode()
        )
        return self.signed(request.id, json.loads(answer), entry.index, entry)

    def signed(self, request: str, units: Iterable[int], index: int, entry: object) -> bytes:
        """An answer as sent by a source."""
        head = Head.sign(self.terms.source, index, entry.hash, entry.previous, self.key)
        return Answer(request, tuple(units), head).seal(self.key)


def federated(
    sources: Iterable[StandIn],
    replies: Mapping[int, Callable[[bytes], bytes]] | None = None,
    **settings: object,
) -> RemotePool:
    """All of them, over the transport of one process; some may answer otherwise."""
    listed = list(sources)
    other = replies or {}
    servers = {one.terms.source: other.get(i, one.reply) for i, one in enumerate(listed)}
    terms = [one.terms for one in listed]
    settings = {"timeout": 5.0, **settings}
    return RemotePool(terms, COORDINATOR, LocalTransport(servers), **settings)

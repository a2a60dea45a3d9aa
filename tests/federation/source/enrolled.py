"""Small sources to try things with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veracal.accounting import Budget
from veracal.data import Scores
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Head, Request, unseal_reply
from veracal.federation.protocol.queries import KINDS
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.enrolling import Declaration, enroll
from veracal.federation.source.enrollment import read_enrollment
from veracal.federation.source.folder import create_source, read_source
from veracal.federation.source.serving import SourceServer, open_source
from veracal.ledger.ledger import Ledger

COORDINATOR, STRANGER = PrivateKey.new(), PrivateKey.new()
MODEL = "b" * 64
LAPLACE = tuple(kind for kind in KINDS if not KINDS[kind].gaussian)


def scores(n: int = 60, k: int = 3, seed: int = 0, **more: Any) -> Scores:
    """Logits of a few records."""
    rng = np.random.default_rng(seed)
    return Scores.from_logits(rng.normal(0, 2, (n, k)), rng.integers(0, k, n), **more)


def declaration(**changed: Any) -> Declaration:
    """A declaration that allows every query with Laplace noise."""
    fields = {
        "coordinator": COORDINATOR.public,
        "model": MODEL,
        "epsilon": 1.0,
        "kinds": LAPLACE,
    }
    return Declaration(**{**fields, "max_per_answer": 0.5, **changed})


@dataclass(frozen=True)
class EnrolledSource:
    """An enrolled source, and its coordinator."""

    path: Path
    terms: Terms
    server: SourceServer

    @property
    def folder(self) -> Path:
        """Of the enrollment."""
        return self.path / "enrolled" / self.terms.source

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return Ledger(self.folder / "spent.ledger")

    @property
    def why(self) -> str:
        """The last reason of a refusal."""
        enrollment = read_enrollment(read_source(self.path), self.terms.source)
        return enrollment.refusals.lines()[-1][1]

    def reopened(self) -> "EnrolledSource":
        """The same after a restart."""
        return EnrolledSource(self.path, self.terms, open_source(self.path, self.terms.source))

    def request(self, kind: str = "counts", **changed: Any) -> Request:
        """A query to this source."""
        fields = {
            "source": self.terms.source,
            "data": self.terms.data,
            "model": self.terms.model,
            "kind": kind,
            "argument": {},
            "micro_epsilon": 100_000,
        }
        return Request(**{**fields, **changed})

    def raw(self, kind: str = "counts", key: PrivateKey = COORDINATOR, **changed: Any) -> bytes:
        """A signed query."""
        return self.request(kind, **changed).seal(key)

    def ask(self, kind: str = "counts", **changed: Any) -> Answer:
        """Send a request, and read its reply, which must be an answer."""
        reply = unseal_reply(self.server.reply(self.raw(kind, **changed)), self.terms.key)
        assert isinstance(reply, Answer), self.why
        return reply

    def head(self) -> Head:
        """The last head that was signed."""
        return self.ask().head


def make_source(
    path: Path, records: Scores | None = None, *, budget: Budget | None = None, **changed: Any
) -> EnrolledSource:
    """A source with one enrollment; see declaration() for what can be changed."""
    data, heads = changed.pop("data", None), changed.pop("heads", None)
    name = changed.pop("name", "North")
    create_source(path, name, budget or Budget(3.0), heads=heads)
    given = scores() if records is None else records
    terms = enroll(path, given, declaration(**changed), data=data)
    return EnrolledSource(path, terms, open_source(path))

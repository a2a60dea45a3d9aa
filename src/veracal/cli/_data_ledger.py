"""What the institutions of one file answer, charged to the ledger of that file as well."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.cli import _paying
from veracal.cli._places import is_there
from veracal.errors import LedgerError
from veracal.privacy import Approximate, Budget, Ledger, Pure
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.ledger.default_location import open_for_data, restore_data_note

PURPOSE = "recalibration by institutions"


@dataclass(frozen=True)
class DataCharge:
    """What one unit pays for a map, in the ledger of the file that the records are in.

    Each record is at one institution, and pays there. A unit with several rows pays at each of
    the institutions where it has some.

    Attributes
    ----------
    place : Path
        The default ledger of the file. If there is none, :meth:`charge` opens it.
    data : Path
        The file.
    micro_epsilon : int
        What one unit pays at one institution.
    delta : float
    at_sources : int
        Number of institutions at which one unit may have rows.
    """

    place: Path
    data: Path
    micro_epsilon: int
    delta: float
    at_sources: int

    def require(self, protects: Budget) -> None:
        """Raise what a charge that was not made before would raise, and write nothing."""
        if is_there(self.place):
            ledger = Ledger(self.place)
            ledger.require(self._event(ledger, protects), PURPOSE)

    def charge(self, question: Mapping[str, Any], ledgers: Sequence[Ledger]) -> Ledger:
        """Charge what is about to be asked, unless the same ledgers were asked it before.

        Parameters
        ----------
        question : mapping
            Everything that tells this question from another.
        ledgers : sequence of Ledger
            Of the institutions. A ledger that was made anew answers with new noise, so the
            charge is made again.

        Returns
        -------
        Ledger
            Of the data set.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is charged.
        LedgerError
            If it protects others than the institutions' ledgers do.
        """
        if not is_there(self.place):
            self._open(ledgers[0].budget)
        ledger = Ledger(self.place)
        restore_data_note(ledger, self.data)
        events = [self._event(ledger, one.budget) for one in ledgers]
        asked = {
            **question,
            "ledgers": sorted(one.opening.nonce for one in ledgers),
            "epsilon": events[0].epsilon,
            "delta": self.delta,
        }
        written = json.dumps(asked, sort_keys=True, default=repr)
        request = f"institutions {hashlib.sha256(written.encode()).hexdigest()}"
        ledger.charge(events[0], PURPOSE, request=request)
        return ledger

    def _total(self, protects: Budget) -> float:
        """What one unit pays at all institutions where it has rows."""
        return min(self.at_sources, protects.unit.at_most) * self.micro_epsilon / MICRO

    def _open(self, protects: Budget) -> None:
        """Make a ledger for what is about to be asked, and nothing else."""
        budget = Budget(self._total(protects), self.delta, protects.relation, protects.unit)
        kind = {"kind": "open", "composition": "addition"} if self.delta else {}
        open_for_data(self.place, budget, self.data, **kind)
        _paying.say_opened(self.place, budget.epsilon, budget.delta)

    def _event(self, ledger: Ledger, protects: Budget) -> Pure | Approximate:
        """The cost as that of one row, which is what a ledger takes it for."""
        kept, rows = ledger.budget, protects.unit.at_most
        if (kept.relation, kept.unit) != (protects.relation, protects.unit):
            raise LedgerError(
                f"{ledger.path}: the ledger protects {kept.unit} under {kept.relation}, and an "
                f"institution's {protects.unit} under {protects.relation}. Costs of the two "
                "do not add: open the institutions' ledgers with the same unit and relation."
            )
        epsilon = self._total(protects)
        if not self.delta:
            # Rounded down: the ledger multiplies by the rows, and rounds up to a millionth.
            row = epsilon if rows == 1 else math.nextafter(epsilon / rows, 0.0)
            return Pure(row, kept.relation)
        if rows > 1:
            raise LedgerError(
                f"{ledger.path}: a map with a delta, for units of several rows, cannot be "
                "charged to the ledger of a file. Use a method that needs no --delta."
            )
        return Approximate(epsilon, self.delta, kept.relation)

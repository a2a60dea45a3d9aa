"""What audits of one training found, at one budget or at several, for files and pages."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from veracal._types import Ints
from veracal.multiplicity import Audit
from veracal.multiplicity.results import INTERNAL

FORMAT, VERSION = "veracal audit", 1


@dataclass(frozen=True, eq=False)
class Audited:
    """Audits of the same people. *Internal*.

    Attributes
    ----------
    name : str
        Of the records, or of the file with predictions.
    made : str
        Date, in ISO form.
    what : str
        What was run again, in words.
    rows : array of ints of shape (people,)
        Where each person stands in the table, counted from 1.
    audits : tuple of Audit
        One for each budget.
    epsilons : tuple of float
        Their budgets; empty where runs were made elsewhere.
    settings : mapping
        Everything else that was chosen.
    notes : tuple of str
        What a reader must know beside what the audits say themselves.
    """

    name: str
    made: str
    what: str
    rows: Ints
    audits: tuple[Audit, ...]
    epsilons: tuple[float, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What each audit is called: its epsilon, or "runs" where that is not known.

        Examples
        --------
        >>> Audited("a", "", "", None, (None, None), (0.5, 2.0), {}).labels
        ('0.5', '2')
        """
        return tuple(f"{epsilon:.6g}" for epsilon in self.epsilons) or ("runs",)

    @property
    def told(self) -> tuple[tuple[str, Audit], ...]:
        """The audits with what they are called."""
        return tuple(zip(self.labels, self.audits, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        epsilons = self.epsilons or (None,) * len(self.audits)
        return {
            "format": FORMAT,
            "version": VERSION,
            "internal": INTERNAL,
            "name": self.name,
            "made": self.made,
            "what": self.what,
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "rows": self.rows.tolist(),
            "audits": [
                {"epsilon": epsilon, **audit.to_json()}
                for epsilon, audit in zip(epsilons, self.audits, strict=True)
            ],
        }

    def to_bytes(self) -> bytes:
        """audit.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def people(self) -> bytes:
        """people.csv: a line for each person and budget, the row in the table first."""
        held = io.StringIO(newline="")
        writer = csv.writer(held, lineterminator="\n")
        first = self.audits[0]
        columns = ["disagreement", "low", "high", "viable_range", "deviation", "flip"]
        counts = [f"runs for {label}" for label in first.classes]
        writer.writerow(["row", "epsilon", "runs", *counts, *columns, "review"])
        for label, audit in self.told:
            writer.writerows(self._lines(label if self.epsilons else "", audit))
        return held.getvalue().encode()

    def _lines(self, label: str, audit: Audit) -> Iterator[list[object]]:
        """Lines of one audit."""
        found, review = audit.persons, set(audit.review.tolist())
        flips = [""] * len(found) if found.flip is None else found.flip.tolist()
        numbers = zip(
            self.rows.tolist(),
            found.counts.tolist(),
            found.disagreement.tolist(),
            found.low.tolist(),
            found.high.tolist(),
            found.viable_range.tolist(),
            found.deviation.tolist(),
            flips,
            strict=True,
        )
        for place, (row, counts, *figures) in enumerate(numbers):
            said = "yes" if place in review else "no"
            yield [row, label, audit.runs, *counts, *figures, said]


def mean_flip(audit: Audit) -> float | None:
    """Share of runs that contradict the model in use, mean over people; None without one."""
    flips = audit.persons.flip
    return None if flips is None else float(flips.mean())

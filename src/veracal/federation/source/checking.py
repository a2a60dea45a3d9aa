"""Whether records are as declared: seen when they are enrolled, never when they are asked."""

from veracal.data import Scores
from veracal.errors import DataError
from veracal.federation.protocol.terms import Terms
from veracal.privacy.answers.holder import check_units
from veracal.privacy.budget import Unit


def check_records(scores: Scores, terms: Terms) -> None:
    """Refuse records that are not as declared, now and not when they are asked.

    Raises
    ------
    DataError
        It is for the owner of the records, and may say how many there are.
    """
    n = len(scores)
    if scores.labels is None:
        raise wrong(scores, "labels", "the right answer of every record", "none", "Add labels.")
    if not terms.least_records <= n <= terms.most_records:
        raise wrong(
            scores,
            "records",
            f"from {terms.least_records:,} to {terms.most_records:,}, as declared",
            f"{n:,}",
            "Declare others, in round numbers: the calibrator reads them.",
        )
    _check_units(scores, terms.unit)


def _check_units(scores: Scores, unit: Unit) -> None:
    """Refuse records of which a unit may have more rows than it is protected with."""
    if unit.name != "record" and scores.units is None:
        raise wrong(
            scores,
            "units",
            f"which {unit.name} each row belongs to",
            "no ids",
            f"Name the column with the ids of each {unit.name}.",
        )
    if unit.name == "record" and scores.units is not None:
        raise wrong(
            scores,
            "units",
            "none, since this source protects single records",
            "ids of units",
            "Make a source that protects them (init --unit patient --at-most 3), or leave "
            "the column out if single records are really what is to be protected.",
        )
    check_units(scores, unit)


def wrong(scores: Scores, part: str, expected: str, found: str, remedy: str) -> DataError:
    """Error for records that are not as declared."""
    return DataError(f"{scores.name}: {part}", expected, found, remedy)

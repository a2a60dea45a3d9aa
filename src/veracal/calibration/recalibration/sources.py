"""Who is asked when something is recalibrated: scores with a ledger, a source, or several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.calibration.paid import Paid
from veracal.calibration.private.asking import unit_of
from veracal.calibration.recalibration.enrolled import Enrolled
from veracal.data import Scores
from veracal.privacy import Holder, Ledger, Pool, Public, Relation, Source, Unit
from veracal.privacy.answers.pooling import is_several
from veracal.privacy.answers.sources import declares

_WAYS = (
    "Say who pays, as in ledger=open_ledger('study.ledger', Budget(1.0)); or, if the records "
    "are public, say private=False."
)


@dataclass(frozen=True)
class Asked:
    """What is public about whoever is asked.

    Attributes
    ----------
    sources : int
        How many there are.
    relation : {"add-remove", "replace-one"}
        Under which they answer; the one that takes more noise, where they differ.
    unit : Unit
        Whom they protect.
    sums_only : bool
        Whether only sums over records can be asked for, as of several sources.
    exact : bool
        Whether answers are exact and protect nobody.
    enrolled : Enrolled or None
        What they have declared that they can be asked, where they have.
    """

    sources: int
    relation: Relation
    unit: Unit
    sums_only: bool
    exact: bool
    enrolled: Enrolled | None = None


def source_of(
    given: Any,
    *,
    ledger: Ledger | str | Path | None = None,
    private: bool = True,
    least: int | None = None,
    most_records: int | None = None,
) -> Source:
    """The source that was meant: one as it is, a pool of several, scores behind a ledger.

    Never guessed: scores are public only where ``private=False`` says so.
    """
    if isinstance(given, Scores):
        _refuse(least=least, most_records=most_records)
        return _scores_source(given, ledger, private)
    _refuse(ledger=ledger)
    if isinstance(given, Source):
        _refuse(least=least, most_records=most_records)
        source: Source = given
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        source = Pool(given, least=least, most_records=most_records)
    else:
        raise ValueError(
            "Expected scores, a source or several sources, got "
            f"{type(given).__name__}. Make scores with Scores.from_logits or load_scores."
        )
    if not private and not asked(source).exact:
        raise ValueError(
            "Expected public records with private=False, got a source that protects its own. "
            "Leave private=False out, or pass Public(scores)."
        )
    return source


def asked(source: Any) -> Asked:
    """What is public about a source."""
    several = is_several(source)
    each = [asked(one) for one in source.sources] if isinstance(source, Pool) else []
    relations = {source.relation} if declares(source) else {one.relation for one in each}
    return Asked(
        len(source.paths()) if several else 1,
        "replace-one" if "replace-one" in relations else "add-remove",
        unit_of(source),
        several or not isinstance(source, Holder | Public | Paid),  # of others nothing is known
        all(one.exact for one in each) if each else isinstance(source, Public),
        _enrolled(source, each),
    )


def _enrolled(source: Any, each: Sequence[Asked]) -> Enrolled | None:
    """What a source has declared, or those of a pool have, as far as any of them has."""
    declared = [one.enrolled for one in each if one.enrolled is not None]
    if declared:
        return Enrolled.of_all(declared)
    found = getattr(source, "enrolled", None)
    return found if isinstance(found, Enrolled) else None


def _scores_source(
    scores: Scores, ledger: Ledger | str | Path | None, private: bool
) -> Holder | Public:
    """Scores behind a ledger, or public ones."""
    if (ledger is None) == private:
        found = "neither" if private else "both"
        raise ValueError(
            f"Expected a ledger for scores, or private=False, got {found}. {_WAYS}"
        )
    if ledger is None:
        return Public(scores)
    return Holder(scores, ledger if isinstance(ledger, Ledger) else Ledger(Path(ledger)))


def _refuse(**settings: object) -> None:
    """Refuse what is meant for another kind of source."""
    for name, value in settings.items():
        if value is not None:
            kind = "scores" if name == "ledger" else "an iterable of sources"
            raise ValueError(
                f"Expected {name} with {kind} only, got {name}={value!r}. A source that is "
                "made already has its own: leave it out here."
            )

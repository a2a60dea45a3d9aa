"""The page of an audit: one HTML file that loads nothing, watermarked as internal."""

from collections.abc import Collection
from dataclasses import dataclass

from veracal import __version__
from veracal.report import audit_tables as tables
from veracal.report import audit_words as words
from veracal.report.audit_charts import audit_charts, group_chart
from veracal.report.audited import Audited
from veracal.report.page import written
from veracal.report.tables import Table, pairs
from veracal.report.writing import listed, visible

SPREAD = (
    "To the left are people about whom runs agree, to the right those whose decision is as "
    "good as tossed."
)
EPSILON = (
    "Of the mean the interval is drawn, too; one person in twenty has more than the 95th "
    "percentile."
)
PLANE = (
    "For somebody with these two features as the model sees them, everything else at the "
    "median. Where it is bright, chance decides."
)
ABSTAIN = (
    "What is left for automatic decisions if the people with most disagreement are decided by "
    "somebody who looks."
)
MAPS = (
    "Every run was repaired by a map of its own, on people who are not audited. Maps of "
    "temperatures change no decision at a threshold of 0.5, but how far confidence varies."
)
LEVELS = (
    "Choosing runs by their accuracy breaks the guarantee of whatever is chosen: for these "
    "eyes only, always."
)
ERRORS = (
    "Estimates of some of the runs were compared with those of all others. At the level of the "
    "intervals nobody's error should exceed the bounds, but for the error of the others."
)


@dataclass(frozen=True)
class Shown:
    """A chart, or several below each other, with their table.

    Attributes
    ----------
    title : str
    charts : tuple of str
        Names of charts; none for a table alone.
    table : Table or None
    said : str
        A sentence below the title.
    choices : bool
        Whether one budget is shown at a time.
    """

    title: str
    charts: tuple[str, ...]
    table: Table | None
    said: str = ""
    choices: bool = True


def render_audit(found: Audited) -> str:
    """Write the page of an audit.

    Parameters
    ----------
    found : Audited

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.

    Guarantees
    ----------
    None: the page is *internal*, and says so at its top, across it, and at every chart.
    """
    drawn = audit_charts(found)
    first = found.audits[0]
    return written(
        "audit.html.j2",
        drawn,
        title_of=found.name,
        made=found.made,
        what=found.what,
        classes=listed(first.classes),
        people=len(found.rows),
        labels=found.labels,
        several=len(found.told) > 1,
        headline=words.headline(found),
        groups=words.groups(found),
        can_tell=words.can_tell(found),
        cannot_tell=words.cannot_tell(found),
        published=words.PUBLISHED,
        notes=words.all_notes(found),
        summary=tables.summary(found),
        shown=figures(found, drawn),
        reviews=[tables.review(found, label, audit) for label, audit in found.told],
        settings=pairs("Everything that was chosen", dict(found.settings)),
        about=pairs("What was run again", dict(first.about)),
        version=__version__,
    )


def figures(found: Audited, drawn: Collection[str]) -> list[Shown]:
    """Everything below the first screen, in the order of the page."""

    def some(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in drawn)

    groups = [
        Shown(f"By {visible(name)}", some(group_chart(at)), tables.by_group(found, name))
        for at, name in enumerate(found.audits[0].groups)
    ]
    budgets = Shown(
        "By epsilon", some("epsilons"), tables.summary(found), EPSILON, choices=False
    )
    made = [
        Shown("Distribution over people", some("spread"), tables.spread(found), SPREAD),
        budgets if "epsilons" in drawn else None,
        *groups,
        Shown("Map", some("plane"), tables.plane(found), PLANE),
        Shown("Abstention", some("abstention", "kept"), tables.abstention(found), ABSTAIN),
        Shown("The whole distribution", (), tables.distribution(found)),
        Shown("How good the runs are", (), tables.figures(found)),
        Shown("Calibration multiplicity", (), tables.recalibrated(found), MAPS),
        Shown("Among the more accurate runs", (), tables.at_levels(found), LEVELS),
        Shown("Measured error and its bounds", some("errors"), tables.errors(found), ERRORS),
        Shown("What so many runs can tell of a person", (), tables.bounds(found)),
    ]
    return [each for each in made if each is not None and each.table and each.table.rows]

"""One call that recalibrates, whoever holds the records."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from veracal import _checks
from veracal.calibration.methods import AUTO, NONE, Settings
from veracal.calibration.private.asking import price
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.platt import Form
from veracal.calibration.recalibration.budget import Share, spending
from veracal.calibration.recalibration.enrolled import BINS
from veracal.calibration.recalibration.result import Recalibration
from veracal.calibration.recalibration.sources import Asked, asked, source_of
from veracal.calibration.recalibration.steps import (
    carried_out,
    chosen,
    nothing_done,
    plan_steps,
)
from veracal.data import Scores
from veracal.privacy import Ledger, Source
from veracal.privacy.costs.pure import MICRO


def recalibrate(
    source: Source | Iterable[Source] | Scores,
    method: str | PrivateFitter = AUTO,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    delta: float | None = None,
    temperatures: tuple[float, float] | None = None,
    classes: int | None = None,
    size: int | None = None,
    bins: int | None = None,
    form: Form = "vector",
    guard: Share = "auto",
    measure: Share = "auto",
    level: float = 0.95,
    at_sources: int = 1,
    least: int | None = None,
    most_records: int | None = None,
    ledger: Ledger | str | Path | None = None,
    private: bool = True,
    request: str | None = None,
) -> Recalibration:
    r"""Fit a map that brings confidence to accuracy, by noisy answers of whoever is asked.

    It reads the same for scores with a ledger, for one source and for many. Three things share
    the budget: the map; a guard, which keeps the map only if the records say, through noise,
    that it helps; and accuracy and calibration error before and after it.

    Parameters
    ----------
    source : Source, iterable of Source, or Scores
        A source answers for itself; several are pooled. Scores need a ledger, or
        ``private=False``.
    method : str or PrivateFitter
        One of :data:`veracal.calibration.methods.METHODS`, ``"auto"`` (the best by what is
        public) or ``"none"``, which asks for nothing. A fitter is used with its own settings,
        but for its epsilon.
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for everything, at each source; one of the two.
        Exact answers cost nothing, and need neither.
    delta : float, optional
        For methods with Gaussian noise.
    temperatures : pair of float, optional
        Public range to search; by default the method's own.
    classes, size : int, optional
        Declared number of classes, and of records at all sources together.
    bins : int, optional
        Of binning and of the calibration error; 15, or as sources elsewhere have declared.
    form : {"scalar", "vector", "matrix"}
        Of a Platt map.
    guard : float, "auto" or None
        Share of the budget for the guard's question. ``"auto"``: nothing where the answers
        that led to the map also say whether it helps
        (:class:`veracal.calibration.private.Inferred`); else a tenth, where noise leaves it a
        chance (:func:`veracal.calibration.recalibration.budget.guarding_share`).
    measure : float, "auto" or None
        Share of the budget for figures. ``"auto"`` takes a quarter or less, and only where
        figures can then be told through the noise, by the public rule of
        :func:`veracal.calibration.recalibration.budget.measuring_share`.
    level : float
        Of all intervals.
    at_sources : int
        At how many sources one person may have records: the statement multiplies the cost.
    least, most_records : int, optional
        Of the pool that is made of several sources: how many must answer, and how many records
        none of them exceeds (by default the declared size). Without that bound a source that
        lies can move the map as far as it likes.
    ledger : Ledger or path, optional
        Pays for scores.
    private : bool
        False: the scores are public, answers are exact, and the result says so. Methods that
        read records as they are work on these only.
    request : str, optional
        Id of the whole, to ask a source anew. Without one every question is its own id.

    Returns
    -------
    Recalibration

    Raises
    ------
    ValueError
        If the settings make no sense.
    BudgetError
        If a source could not pay for everything; nothing was charged.

    Guarantees
    ----------
    Everything learnt from private records passes :meth:`Source.answer`, which charges before
    it reads. What the whole costs is known, and checked against the ledgers of all sources,
    before the first question. The statement composes *all* answers, source by source. The
    guarantee holds for each source; over all of them for whoever has records at no more than
    ``at_sources``. If a source fails midway its error is raised and nothing is lost: asked
    again in the same words, sources repeat the answers that were paid for.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> found = recalibrate(overconfident, "temperature", private=False)
    >>> round(found.temperature.value), found.private, found.guarded.kept
    (3, False, True)
    """
    several = not isinstance(source, Source | Scores)
    if several and most_records is None:
        most_records = size  # no source has more records than all of them
    one = source_of(
        source, ledger=ledger, private=private, least=least, most_records=most_records
    )
    _checks.whole(at_sources=at_sources)
    if method == NONE:
        return nothing_done(one)
    about = asked(one)
    total = _price(about, epsilon, micro_epsilon)
    settings = Settings(
        total,
        delta=delta,
        temperatures=temperatures,
        classes=classes,
        size=size,
        bins=BINS if bins is None else bins,
        level=level,
        form=form,
        sources=about.sources,
    )
    known = chosen(method, settings, about)
    infers = known.infers and guard == "auto"
    if about.enrolled is not None:
        settings = about.enrolled.adopted(settings, known, bins=bins)
        guard, measure = about.enrolled.shares(guard, measure, known)
    spent = spending(
        total, guard, measure, asked=about, size=size, bins=settings.bins, infers=infers
    )
    steps = plan_steps(known, replace(settings, micro_epsilon=spent.map), spent, about)
    steps = replace(steps, infers=infers)
    return carried_out(one, steps, request=request, at_sources=at_sources)


def _price(about: Asked, epsilon: float | None, micro_epsilon: int | None) -> int:
    """What everything may cost; of exact answers anything, for they cost nothing."""
    if about.exact and epsilon is None and micro_epsilon is None:
        return MICRO
    return price(epsilon, micro_epsilon)

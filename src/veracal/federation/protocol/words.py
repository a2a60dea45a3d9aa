"""Terms in plain words, for the people who allow them and for those who rely on them."""

from collections.abc import Iterator

from veracal.federation.protocol.questions import KINDS
from veracal.federation.protocol.terms import Terms
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.costs.statement import rounded_up


def told_terms(terms: Terms) -> list[tuple[str, str]]:
    """Lines of a subject and what the terms say of it.

    Everything in them is public: nothing was read off the records.
    """
    return [
        ("institution", terms.name),
        ("its key", terms.key.fingerprint),
        ("answers only to", f"the calibrator of the key {terms.calibrator.fingerprint}"),
        ("until", terms.expires or "it is revoked"),
        ("about", f"predictions of the model {terms.model[:12]}…, {_scores(terms)}"),
        ("protects", f"{terms.unit}, under {terms.relation}"),
        ("budget", _budget(terms)),
        *_questions(terms),
        *_bounds(terms),
        ("replies", f"{terms.deadline:g} seconds after a request, whatever it is"),
    ]


def _scores(terms: Terms) -> str:
    """What the records hold."""
    return f"{terms.classes} classes, as {terms.reads}"


def _budget(terms: Terms) -> str:
    """All that may be spent, and on one answer."""
    delta = f" and delta {rounded_up(terms.delta)}" if terms.delta else ""
    return (
        f"epsilon {terms.micro_epsilon / MICRO:g}{delta} in all, for good; at most "
        f"{terms.most_each / MICRO:g} for one answer"
    )


def _questions(terms: Terms) -> Iterator[tuple[str, str]]:
    """What is told, with noise."""
    for i, kind in enumerate(terms.kinds):
        known = KINDS.get(kind)
        yield "tells, with noise" if i == 0 else "", known.words if known else f"{kind} (?)"


def _bounds(terms: Terms) -> Iterator[tuple[str, str]]:
    """What was declared, so that nothing need be read off the records."""
    grid = terms.temperatures
    yield "temperatures", f"from {grid.low:g} to {grid.high:g}"
    yield "bins", f"{terms.bins}, of equal width"
    yield "largest loss", f"{terms.clamp:g} for one record"
    yield "records", f"at least {terms.least_records:,}, at most {terms.most_records:,}"

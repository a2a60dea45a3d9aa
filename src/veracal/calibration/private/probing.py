"""Questions that close in on a temperature, each asked where the answers before it point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from veracal import _checks
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE
from veracal.calibration.private.asking import Ask
from veracal.calibration.private.inquiry import Inquiry
from veracal.calibration.private.search import FINEST, Probe, Setting, posterior
from veracal.calibration.queries import Gap
from veracal.privacy import Release


@dataclass(frozen=True, eq=False)
class Probed:
    """What was asked, and where it leads.

    Attributes
    ----------
    inverse : float
        Inverse temperature at which confidence and accuracy meet, as far as is known.
    setting : Setting
    probes : tuple of Probe
    releases : tuple of Release
        The counts, then a gap for each probe.
    """

    inverse: float
    setting: Setting
    probes: tuple[Probe, ...]
    releases: tuple[Release, ...]

    @property
    def n(self) -> int:
        """Noisy number of records, not below zero."""
        return max(round(sum(self.releases[0].values)), 0)


def probed(inquiry: Inquiry, asks: Sequence[Ask], inverses: tuple[float, float]) -> Probed:
    """Ask for counts, then for gaps, the first of them where nothing changes.

    Parameters
    ----------
    inquiry : Inquiry
        Of which nothing was asked yet.
    asks : sequence of Ask
        The counts, then gaps, whose inverse temperatures are filled in.
    inverses : pair of float
        Public range.
    """
    low, high = _on_grid(inverses)
    inquiry.ask(asks[0], "counts")
    places, found = list[float](), None
    for i, ask in enumerate(asks[1:]):
        assert isinstance(ask.query, Gap)
        places.append(min(max(1.0, low), high) if found is None else found.inverse)
        inquiry.ask(Ask(Gap(places[-1], ask.query.classes), ask.micro_epsilon), f"gap {i}")
        found = probed_at(inquiry.answers, places, inverses)
    assert found is not None
    return found


def probed_at(
    answers: Sequence[Release], places: Sequence[float], inverses: tuple[float, float]
) -> Probed:
    """Where answers lead, all of them of the same sources.

    Parameters
    ----------
    answers : sequence of Release
        The counts, then a gap for each place; what follows is left alone.
    places : sequence of float
        Inverse temperatures of the gaps.
    inverses : pair of float
        Public range.
    """
    low, high = _on_grid(inverses)
    counts, *gaps = answers[: 1 + len(places)]
    correct, wrong = counts.values
    setting = Setting.of(correct, wrong, counts.noise_std, inverses)
    probes = tuple(
        Probe(place, gap.value, gap.noise_std) for place, gap in zip(places, gaps, strict=True)
    )
    inverse = min(max(posterior(probes, setting).inverse(), low), high)
    return Probed(inverse, setting, probes, (counts, *gaps))


def _on_grid(inverses: tuple[float, float]) -> tuple[float, float]:
    """Ends of a range, rounded inward to the public grid that questions are asked on."""
    low, high = inverses
    first, last = math.ceil(low / FINEST) * FINEST, math.floor(high / FINEST) * FINEST
    return (first, last) if first <= last else (low, high)


def check_range(inverses: tuple[float, float]) -> tuple[float, float]:
    """A public range of inverse temperatures that a map may have, checked."""
    low, high = inverses
    _checks.positive(least_inverse=low, most_inverse=high)
    if not LEAST_INVERSE <= low < high <= MOST_INVERSE:
        raise ValueError(
            f"Expected a range of inverses between {LEAST_INVERSE:g} and {MOST_INVERSE:g}, got "
            f"inverses={inverses!r}."
        )
    return float(low), float(high)

"""Questions that close in on a temperature, each asked where the answers before it point."""

from collections.abc import Sequence
from dataclasses import dataclass

from veracal import _checks
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE
from veracal.calibration.private.asking import Ask, named
from veracal.calibration.private.search import Probe, Setting, posterior
from veracal.calibration.queries import Gap
from veracal.privacy import Release, Source


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


def probed(
    source: Source,
    asks: Sequence[Ask],
    inverses: tuple[float, float],
    request: str | None = None,
) -> Probed:
    """Ask for counts, then for gaps, the first of them where nothing changes.

    Parameters
    ----------
    source : Source
    asks : sequence of Ask
        The counts, then gaps, whose inverse temperatures are filled in.
    inverses : pair of float
        Public range.
    request : str, optional
        Id of the whole; every question gets one of its own from it.
    """
    low, high = inverses
    counts = asks[0].of(source, named(request, "counts"))
    correct, wrong = counts.values
    setting = Setting.of(correct, wrong, counts.noise_std, inverses)
    releases, probes, inverse = [counts], list[Probe](), min(max(1.0, low), high)
    for i, ask in enumerate(asks[1:]):
        assert isinstance(ask.query, Gap)
        here = Ask(Gap(inverse, ask.query.classes), ask.micro_epsilon)
        release = here.of(source, named(request, f"gap {i}"))
        releases.append(release)
        probes.append(Probe(inverse, release.value, release.noise_std))
        inverse = min(max(posterior(probes, setting).inverse(), low), high)
    return Probed(inverse, setting, tuple(probes), tuple(releases))


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

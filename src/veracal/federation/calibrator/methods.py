"""Which methods can be asked of sources, by the questions that they have enrolled."""

from collections.abc import Iterable, Mapping

from veracal._types import Frozen
from veracal.calibration.recalibration.enrolled import Enrolled
from veracal.federation.protocol.envelopes import MOST_REQUEST
from veracal.federation.protocol.maps import in_range
from veracal.federation.protocol.questions import KINDS
from veracal.federation.protocol.terms import Terms

_FOUND = ("counts", "gap")
_FIGURES = ("counts", "bin-gaps", "map-bin-gaps")
_ALL_ELSE = 1_300  # bytes of a request beside the parameters of a map
# Kinds of question that each method asks, its guard and its figures aside.
ASKS: Mapping[str, tuple[str, ...]] = Frozen(
    {
        "pooled": _FOUND,
        "temperature": _FOUND,
        "acc-t": ("gap",),
        "nll-t": ("loss",),
        "ece-t": ("bin-gaps",),
        "binning": ("bins",),
        "binning-paper": ("bins-paper",),
        "platt": ("platt-counts", "gap", "platt-curvature", "platt-equations"),
    }
)


def answered(terms: Terms) -> tuple[str, ...]:
    """Methods all of whose questions a source answers."""
    return tuple(name for name, kinds in ASKS.items() if _allows(terms, kinds))


def enrolled(terms: Iterable[Terms]) -> Enrolled:
    """What can be asked of all sources alike."""
    return Enrolled.of_all(_one(each) for each in terms)


def _allows(terms: Terms, kinds: Iterable[str]) -> bool:
    """Whether a source has enrolled kinds of question, and the noise that they need."""
    known = set(kinds) <= set(terms.kinds)
    return known and (terms.delta > 0 or not any(KINDS[kind].gaussian for kind in kinds))


def _one(terms: Terms) -> Enrolled:
    """What can be asked of one source."""
    grid = terms.temperatures
    return Enrolled(
        terms.classes,
        terms.reads,
        (float(grid.low), float(grid.high)),
        terms.bins,
        float(terms.clamp),
        terms.parameters,
        answered(terms),
        guards="map-gain" in terms.kinds,
        measures=_measures(terms),
        recounts="map-counts" in terms.kinds,
        parameters=_parameters(terms),
    )


def _measures(terms: Terms) -> bool:
    """Whether figures can be asked for, which are about the scores as they are, too."""
    grid = terms.temperatures
    return set(_FIGURES) <= set(terms.kinds) and in_range(2**grid.bits, grid)


def _parameters(terms: Terms) -> int:
    """How many parameters of an affine map fit into a request, with all else at its longest."""
    grid = terms.parameters
    longest = len(str(max(grid.most_weight, grid.most_bias) << grid.bits)) + 2
    return (MOST_REQUEST - _ALL_ELSE) // longest

"""Ways to recalibrate, by name: what each of them is, and the fitter behind it.

This is the one list. The command line and :func:`veracal.calibration.recalibrate` know what is
here and nothing else; a new method is one entry of ``_LISTED``, and a line of ``auto`` if it is
to be chosen by itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import MICRO, Relation, Unit
from veracal.calibration.fitters import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MapFitter,
    PlattScaling,
    TemperatureScaling,
    TwoTemperatureScaling,
)
from veracal.calibration.maps.parametric import Form
from veracal.calibration.planning import is_enough_for_two, plan_pooled
from veracal.calibration.private.binning import PrivateBinning
from veracal.calibration.private.golden_section import GoldenObjective, GoldenTemperature
from veracal.calibration.private.platt import FORMS, PrivatePlatt
from veracal.calibration.private.pooled import PooledTemperature
from veracal.calibration.private.session import PrivateFitter
from veracal.calibration.private.temperature import PrivateTemperature
from veracal.calibration.private.two_temperatures import PrivateTwoTemperatures
from veracal.calibration.queries.platt import ParameterGrid

AUTO, NONE = "auto", "none"
NOISE = "the noise of the answers alone"
NOISE_AND_SAMPLING = "the noise of the answers, and the chance of which records there were"
NOISE_SAMPLING_SILENCE = f"{NOISE_AND_SAMPLING}, and of which sources answered"


@dataclass(frozen=True)
class Settings:
    """What a fitter may be told; all of it is public.

    Attributes
    ----------
    micro_epsilon : int
        What one unit pays for the map, in millionths of epsilon.
    delta : float or None
    temperatures : pair of float, or None
        Range of temperatures to search; None is the method's own.
    classes, size : int or None
        Declared number of classes, and of records at all sources together.
    bins : int
    level : float
        Of intervals.
    form : {"scalar", "vector", "matrix"}
        Of a Platt map.
    reads : "logits", "probabilities" or None
        Kind of the scores, where that is known.
    sources : int
        How many are asked.
    clamp : float
        Largest loss of one record.
    grid : ParameterGrid or None
        Of affine maps; None is the usual one.
    """

    micro_epsilon: int
    delta: float | None = None
    temperatures: tuple[float, float] | None = None
    classes: int | None = None
    size: int | None = None
    bins: int = 15
    level: float = 0.95
    form: Form = "vector"
    reads: Literal["logits", "probabilities"] | None = None
    sources: int = 1
    clamp: float = 10.0
    grid: ParameterGrid | None = None

    @property
    def inverses(self) -> dict[str, Any]:
        """The range as inverse temperatures, for fitters that want it so; if there is one."""
        if self.temperatures is None:
            return {}
        if np.shape(self.temperatures) != (2,):
            raise ValueError(
                "Expected temperatures to be a pair of numbers, as in (0.5, 6.0), got "
                f"temperatures={self.temperatures!r}."
            )
        low, high = self.temperatures
        _checks.positive(lowest_temperature=low, highest_temperature=high)
        return {"inverses": (1 / high, 1 / low)}


@dataclass(frozen=True)
class Method:
    """A way to recalibrate.

    Attributes
    ----------
    name : str
    words : str
        What it does, in half a line.
    asking : callable or None
        From settings to a fitter that asks a source; None where there is none.
    openly : callable or None
        From settings to a fitter that reads public records as they are.
    needs : tuple of str
        Settings without which there is no asking: ``delta``, ``size``, ``classes``.
    keeps : bool
        Whether its maps are known to keep all predictions.
    searches : bool
        Whether it looks for temperatures in a range.
    sized : bool
        Whether it makes use of a declared number of records.
    counted : str
        What the intervals of its temperatures count.
    infers : bool
        Whether the answers that lead to its map also say whether it helps.
    """

    name: str
    words: str
    asking: Callable[[Settings], PrivateFitter] | None = None
    openly: Callable[[Settings], MapFitter] | None = None
    needs: tuple[str, ...] = ()
    keeps: bool = False
    searches: bool = False
    sized: bool = False
    counted: str = NOISE_AND_SAMPLING
    infers: bool = False

    def fitter(self, settings: Settings) -> PrivateFitter:
        """A fitter that asks, once what it needs is there."""
        missing = [name for name in self.needs if getattr(settings, name) is None]
        if self.asking is None:
            raise ValueError(
                f"Expected a method that works by noisy answers, got {self.name!r}, which "
                "reads records as they are. Use another, or pass public scores and "
                "private=False."
            )
        if missing:
            raise ValueError(
                f"Expected {', '.join(missing)} for method={self.name!r}, got none. Declare "
                "what is missing (it is public), or use 'temperature'."
            )
        if settings.temperatures is not None and not self.searches:
            raise ValueError(
                f"Expected no range of temperatures for method={self.name!r}, which looks for "
                f"none, got temperatures={settings.temperatures!r}. Leave it out."
            )
        return self.asking(settings)


def _temperature(settings: Settings) -> PrivateFitter:
    return PrivateTemperature("search", **_told(settings), **settings.inverses)


def _two_temperatures(settings: Settings) -> PrivateFitter:
    return PrivateTwoTemperatures(**_told(settings), **settings.inverses)


def _pooled(settings: Settings) -> PrivateFitter:
    told = _told(settings)
    if settings.temperatures is not None:
        told["temperatures"] = settings.temperatures
    plan = plan_pooled(
        settings.sources,
        records=settings.size,
        **{name: value for name, value in told.items() if name != "level"},
    )
    return PooledTemperature(shares=plan.shares, **told)


def _descent(settings: Settings) -> PrivateFitter:
    told = _told(settings) | {"delta": settings.delta, "size": settings.size}
    return PrivateTemperature("descent", **told, **settings.inverses)


def _platt(settings: Settings) -> PrivateFitter:
    return PrivatePlatt(
        settings.form,
        micro_epsilon=settings.micro_epsilon,
        delta=settings.delta,
        classes=settings.classes,
        size=settings.size,
        reads=settings.reads,
        grid=settings.grid,
        temperatures=settings.temperatures,
    )


def _golden(objective: GoldenObjective) -> Callable[[Settings], PrivateFitter]:
    """Golden section with one of the paper's objectives."""

    def asking(settings: Settings) -> PrivateFitter:
        names = ("classes", "size", "bins", "level", "clamp")
        told = {name: getattr(settings, name) for name in names}
        if settings.temperatures is not None:
            told["temperatures"] = settings.temperatures
        return GoldenTemperature(objective, micro_epsilon=settings.micro_epsilon, **told)

    return asking


def _binning(settings: Settings) -> PrivateFitter:
    return _counting(settings, "correct-wrong")


def _binning_of_the_paper(settings: Settings) -> PrivateFitter:
    return _counting(settings, "correct-total")


def _counting(
    settings: Settings, form: Literal["correct-wrong", "correct-total"]
) -> PrivateFitter:
    return PrivateBinning(
        micro_epsilon=settings.micro_epsilon,
        bins=settings.bins,
        form=form,
        level=settings.level,
    )


def _told(settings: Settings) -> dict[str, Any]:
    """What every temperature wants to know."""
    return {
        "micro_epsilon": settings.micro_epsilon,
        "classes": settings.classes,
        "level": settings.level,
    }


_GOLDEN: tuple[tuple[str, str, GoldenObjective], ...] = (
    ("acc-t", "a temperature by golden section on the gap to accuracy", "accuracy"),
    ("nll-t", "the same on the clamped negative log-likelihood", "likelihood"),
    ("ece-t", "the same on the calibration error", "calibration error"),
)
_LISTED = (
    Method(
        "temperature",
        "one temperature, where mean confidence meets accuracy",
        _temperature,
        lambda _: TemperatureScaling(),
        keeps=True,
        searches=True,
    ),
    Method(
        "two-temperatures",
        "one for unsure and one for sure predictions",
        _two_temperatures,
        lambda _: TwoTemperatureScaling(),
        keeps=True,
        searches=True,
    ),
    Method(
        "pooled",
        "one temperature from many sources, then doubt if none is enough",
        _pooled,
        keeps=True,
        searches=True,
        sized=True,
        counted=NOISE_SAMPLING_SILENCE,
        infers=True,
    ),
    *(
        Method(name, words, _golden(objective), keeps=True, searches=True, sized=True)
        for name, words, objective in _GOLDEN
    ),
    Method(
        "binning",
        "accuracy by bin, from right and wrong predictions",
        _binning,
        lambda settings: HistogramBinning(settings.bins),
    ),
    Method(
        "binning-paper",
        "the same as printed, from right predictions and all",
        _binning_of_the_paper,
        lambda settings: HistogramBinning(settings.bins),
    ),
    Method(
        "descent",
        "a temperature by noisy gradients",
        _descent,
        needs=("delta", "size"),
        sized=True,
        keeps=True,
        searches=True,
        counted=NOISE,
    ),
    Method(
        "platt",
        "an affine map of the logits by noisy gradients",
        _platt,
        lambda settings: PlattScaling(settings.form),
        needs=("delta", "size", "classes"),
        sized=True,
        searches=True,
    ),
    Method("isotonic", "a rising step function", openly=lambda _: IsotonicCalibration()),
    Method("beta", "a beta curve", openly=lambda _: BetaCalibration()),
)
METHODS: Mapping[str, Method] = Frozen({method.name: method for method in _LISTED})
PRIVATE = (AUTO, *(m.name for m in _LISTED if m.asking is not None), NONE)
OPEN = (AUTO, *METHODS, NONE)


def check_method(name: str, *, private: bool = True) -> None:
    """Refuse names that nothing has, and name those that there are."""
    _checks.one_of(PRIVATE if private else OPEN, method=name)


def auto(
    settings: Settings, relation: Relation = "add-remove", unit: Unit | None = None
) -> str:
    r"""Name of the method that does best, by what is public.

    Two temperatures need many records times epsilon
    (:data:`veracal.calibration.private.two_temperatures.ENOUGH`). Of m sources each adds its
    own noise, together :math:`\sqrt m` times that of one. Where no size is declared nothing is
    known of the number of records, which is private: one temperature does well for any. Of
    several sources it is found in fewer rounds.

    Examples
    --------
    >>> auto(Settings(1_000_000, size=1_000)), auto(Settings(1_000_000, size=2_000))
    ('temperature', 'two-temperatures')
    >>> auto(Settings(1_000_000, size=2_000, sources=50))
    'pooled'
    """
    epsilon = settings.micro_epsilon / MICRO / math.sqrt(settings.sources)
    two = is_enough_for_two(settings.size or 0, epsilon, relation, unit or Unit())
    if two:
        return "two-temperatures"
    return "temperature" if settings.sources == 1 else "pooled"


def check_form(form: str) -> None:
    """Refuse forms of a Platt map that there are not."""
    _checks.one_of(FORMS, form=form)

"""The registry of calibration methods: one record per method.

:func:`veracal.calibration.recalibrate`, the choices of the command line, the config of a run,
the federation protocol and the table in the documentation are read from it. A new private
calibration map needs a map class, a fitter, one record in ``_BUILT_IN`` and a test. Fitters are
imported when they are built, so that reading the registry stays fast.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from veracal.accounting import Relation, Unit

if TYPE_CHECKING:
    from veracal.calibration.fitters import MapFitter
    from veracal.calibration.maps.parametric import Form
    from veracal.calibration.private.session import PrivateFitter
    from veracal.calibration.queries.platt import ParameterGrid

AUTO, NONE = "auto", "none"
NOISE = "the noise of the answers"
NOISE_AND_SAMPLING = f"{NOISE} and the sampling of the records"
NOISE_SAMPLING_DROPOUT = f"{NOISE}, the sampling of the records and the drop-out of sources"


@dataclass(frozen=True)
class MethodSettings:
    """Public settings from which a method builds its fitter.

    Attributes
    ----------
    micro_epsilon : int
        Cost of the map for each privacy unit, in millionths of epsilon.
    delta, temperatures, classes, size, bins, level, form
        As in :func:`~veracal.calibration.recalibrate`.
    reads : "logits", "probabilities" or None
        Kind of the scores, if known.
    sources : int
        Number of sources.
    clamp : float
        Largest loss of one record.
    grid : ParameterGrid or None
        Grid of affine maps; None: the default.
    """

    micro_epsilon: int
    delta: float | None = None
    temperatures: tuple[float, float] | None = None
    classes: int | None = None
    size: int | None = None
    bins: int = 15
    level: float = 0.95
    form: "Form" = "vector"
    reads: Literal["logits", "probabilities"] | None = None
    sources: int = 1
    clamp: float = 10.0
    grid: "ParameterGrid | None" = None

    def pick(self, *names: str) -> dict[str, Any]:
        """Some of the settings as keyword arguments; ``temperatures`` of None are omitted."""
        arguments = {name: getattr(self, name) for name in names}
        return {k: v for k, v in arguments.items() if v is not None or k != "temperatures"}


@dataclass(frozen=True)
class CalibrationMethod:
    """The record of a calibration method.

    Attributes
    ----------
    name : str
        Name in Python, on the command line, in configs and in messages of a federation.
    summary : str
        Description in half a line.
    private, public : callable or None
        Build the fitters for private and for public records from settings, if there are any.
    requires : tuple of str
        Settings that the private fitter needs: ``delta``, ``size``, ``classes``.
    keeps_predictions, searches_temperature, uses_size : bool
        Whether its maps never change a prediction, whether it searches a range of temperatures,
        and whether it uses a declared number of records.
    interval_covers : str
        Errors that the intervals of its temperatures cover.
    infers_guard : bool
        Whether the answers of the fit also tell whether the map improves calibration.
    in_training : bool
        Whether ``veracal fit`` offers it for the map of a new model.
    remote_queries : tuple of str
        Kinds of queries in the federation protocol that it needs; empty if it cannot be used
        there.
    """

    name: str
    summary: str
    private: "Callable[[MethodSettings], PrivateFitter] | None" = None
    public: "Callable[[MethodSettings], MapFitter] | None" = None
    requires: tuple[str, ...] = ()
    keeps_predictions: bool = False
    searches_temperature: bool = False
    uses_size: bool = False
    interval_covers: str = NOISE_AND_SAMPLING
    infers_guard: bool = False
    in_training: bool = False
    remote_queries: tuple[str, ...] = ()

    def fitter(self, settings: MethodSettings) -> "PrivateFitter":
        """The private fitter, after checking that its settings are complete."""
        missing = [name for name in self.requires if getattr(settings, name) is None]
        if self.private is None:
            raise ValueError(
                f"Expected a method with a private fitter, got {self.name!r}, which reads "
                "public records directly. Use another method, or pass public scores and "
                "private=False."
            )
        if missing:
            raise ValueError(
                f"Expected {', '.join(missing)} for method={self.name!r}, got none. Declare "
                "the missing values (they are public), or use 'temperature'."
            )
        if settings.temperatures is not None and not self.searches_temperature:
            raise ValueError(
                f"Expected no range of temperatures for method={self.name!r}, which does not "
                f"search for one, got temperatures={settings.temperatures!r}. Omit it."
            )
        return self.private(settings)

    def unpriced_fitter(self) -> "PrivateFitter":
        """The private fitter without a cost, for a classifier that divides its own budget."""
        fitter: PrivateFitter = self.fitter(MethodSettings(1)).set_params(micro_epsilon=None)
        return fitter


def _fitter(where: str, *names: str, **fixed: Any) -> Callable[[MethodSettings], Any]:
    """A builder that imports a fitter when it is called, and passes on some of the settings."""

    def build(settings: MethodSettings) -> Any:
        module, kind = where.split(":")
        fitter = getattr(import_module(f"veracal.calibration.{module}"), kind)
        return fitter(**fixed, **settings.pick(*names))

    return build


def _pooled(settings: MethodSettings) -> "PrivateFitter":
    from veracal.calibration.planning import plan_pooled
    from veracal.calibration.private.pooled import PooledTemperature

    shared = settings.pick("micro_epsilon", "classes", "temperatures")
    plan = plan_pooled(settings.sources, records=settings.size, **shared)
    return PooledTemperature(shares=plan.shares, level=settings.level, **shared)


_SEARCH = ("micro_epsilon", "classes", "level", "temperatures")
_GOLDEN = ("micro_epsilon", "classes", "size", "bins", "level", "clamp", "temperatures")
_BINNING = ("micro_epsilon", "bins", "level")
_PLATT = ("form", "micro_epsilon", "delta", "classes", "size", "reads", "grid", "temperatures")
_COUNTS_AND_GAPS = ("counts", "gap")
_ONE_TEMPERATURE: dict[str, Any] = {"keeps_predictions": True, "searches_temperature": True}
_BUILT_IN = (
    CalibrationMethod(
        "temperature",
        "one temperature at which mean confidence equals accuracy",
        _fitter("private.temperature:PrivateTemperature", *_SEARCH),
        _fitter("fitters:TemperatureScaling"),
        in_training=True,
        remote_queries=_COUNTS_AND_GAPS,
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "two-temperatures",
        "one temperature for low and one for high confidence",
        _fitter("private.temperature:PrivateTwoTemperatures", *_SEARCH),
        _fitter("fitters:TwoTemperatureScaling"),
        in_training=True,
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "pooled",
        "one temperature from many sources, with uniform mixing beyond the range",
        _pooled,
        uses_size=True,
        interval_covers=NOISE_SAMPLING_DROPOUT,
        infers_guard=True,
        remote_queries=_COUNTS_AND_GAPS,
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "acc-t",
        "one temperature by golden section on the gap to accuracy",
        _fitter("private.golden_section:GoldenTemperature", *_GOLDEN),
        uses_size=True,
        remote_queries=("gap",),
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "nll-t",
        "one temperature by golden section on the clamped negative log-likelihood",
        _fitter("private.golden_section:GoldenTemperature", *_GOLDEN, objective="likelihood"),
        uses_size=True,
        remote_queries=("loss",),
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "ece-t",
        "one temperature by golden section on the calibration error",
        _fitter(
            "private.golden_section:GoldenTemperature", *_GOLDEN, objective="calibration error"
        ),
        uses_size=True,
        remote_queries=("bin-gaps",),
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "binning",
        "accuracy by bin, from correct and wrong predictions",
        _fitter("private.binning:PrivateBinning", *_BINNING),
        _fitter("fitters:HistogramBinning", "bins"),
        remote_queries=("bins",),
    ),
    CalibrationMethod(
        "binning-paper",
        "accuracy by bin, from correct and all predictions",
        _fitter("private.binning:PrivateBinning", *_BINNING, form="correct-total"),
        _fitter("fitters:HistogramBinning", "bins"),
        remote_queries=("bins-paper",),
    ),
    CalibrationMethod(
        "descent",
        "one temperature by noisy gradient descent",
        _fitter(
            "private.temperature:PrivateTemperature",
            *_SEARCH,
            "delta",
            "size",
            method="descent",
        ),
        requires=("delta", "size"),
        uses_size=True,
        interval_covers=NOISE,
        **_ONE_TEMPERATURE,
    ),
    CalibrationMethod(
        "platt",
        "an affine map of the logits by noisy estimating equations",
        _fitter("private.platt:PrivatePlatt", *_PLATT),
        _fitter("fitters:PlattScaling", "form"),
        requires=("delta", "size", "classes"),
        uses_size=True,
        searches_temperature=True,
        remote_queries=("platt-counts", "gap", "platt-curvature", "platt-equations"),
    ),
    CalibrationMethod(
        "isotonic",
        "an increasing step function",
        public=_fitter("fitters:IsotonicCalibration"),
    ),
    CalibrationMethod("beta", "a beta curve", public=_fitter("fitters:BetaCalibration")),
)
_REGISTRY = {method.name: method for method in _BUILT_IN}
METHODS: Mapping[str, CalibrationMethod] = MappingProxyType(_REGISTRY)


def register_method(method: CalibrationMethod) -> None:
    """Add a method with a new name, which is accepted from then on in this process."""
    if method.name in (AUTO, NONE, *_REGISTRY):
        raise ValueError(f"Expected a new name for a method, got {method.name!r}.")
    if method.private is None and method.public is None:
        raise ValueError(f"Expected a fitter for method {method.name!r}, got none.")
    _REGISTRY[method.name] = method


def unregister_method(name: str) -> None:
    """Remove a method that was added by :func:`register_method`."""
    if name in {method.name for method in _BUILT_IN}:
        raise ValueError(f"Expected a registered method, got the built-in method {name!r}.")
    del _REGISTRY[name]


def method_names(*, private: bool = True) -> tuple[str, ...]:
    """Names that :func:`~veracal.calibration.recalibrate` accepts for private records or all."""
    listed = (m.name for m in METHODS.values() if m.private is not None or not private)
    return (AUTO, *listed, NONE)


def training_methods() -> tuple[str, ...]:
    """Names of the methods that ``veracal fit`` offers for the map of a new model."""
    return (AUTO, *(m.name for m in METHODS.values() if m.in_training), NONE)


def default_method(
    settings: MethodSettings, relation: Relation = "add-remove", unit: Unit | None = None
) -> str:
    r"""Name of the method that ``"auto"`` selects from public facts.

    Two temperatures need many records times epsilon
    (:data:`veracal.calibration.private.temperature.MIN_RECORDS_TIMES_EPSILON`). Each of m
    sources adds its own noise, with :math:`\sqrt m` times the standard deviation in total.
    Without a declared size the number of records is unknown, because it is private, and one
    temperature is used. With several sources a pooled temperature needs fewer rounds.

    Examples
    --------
    >>> from dataclasses import replace
    >>> one = MethodSettings(1_000_000, size=1_000)
    >>> default_method(one), default_method(replace(one, size=2_000))
    ('temperature', 'two-temperatures')
    >>> default_method(replace(one, size=2_000, sources=50))
    'pooled'
    """
    from veracal.accounting import MICRO
    from veracal.calibration.planning import supports_two_temperatures

    epsilon = settings.micro_epsilon / MICRO / math.sqrt(settings.sources)
    if supports_two_temperatures(settings.size or 0, epsilon, relation, unit or Unit()):
        return "two-temperatures"
    return "temperature" if settings.sources == 1 else "pooled"

"""The settings of a run, validated before a record is read."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from veracal import _checks
from veracal.accounting import RELATIONS, Relation
from veracal.calibration import training_methods
from veracal.data import Limits, construct_from_settings, expect_table, open_file
from veracal.errors import DataError, SchemaError

FORMAT = 1
_MAX_BYTES = 2**20
PERTURBED = ("objective", "output")
NETWORKS = ("mlp", "cnn", "features", "text")
METHODS = training_methods()
Model = Literal["logistic", "objective", "output", "mlp", "cnn", "features", "text"]
Optimizer = Literal["sgd", "adam"]
MODELS: tuple[Model, ...] = get_args(Model)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
Method = Literal["auto", "temperature", "two-temperatures", "none"]


def _check_text(**values: object) -> None:
    """Raise unless every value is text."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise ValueError(f"Expected {name} to be text, got {name}={value!r}.")


@dataclass(frozen=True)
class DataConfig:
    """The records, and how they are split.

    Attributes
    ----------
    source : str
        A file, or the name of a built-in set.
    schema : str or None
        TOML file with the public facts about a file. Built-in sets have their own.
    test : float
        Share of the records that is held out for measurement.
    split_key : str
        Public string that determines the train/test split.
    version : str
        Public version of the records; change it when they change.
    max_contributions : int or None
        Rows kept of one unit, chosen at random, where records have units and no schema states
        how many rows one has.
    """

    source: str
    schema: str | None = None
    test: float = 0.2
    split_key: str = "veracal"
    version: str = ""
    max_contributions: int | None = None

    def __post_init__(self) -> None:
        _check_text(source=self.source, split_key=self.split_key, version=self.version)
        if self.schema is not None:
            _check_text(schema=self.schema)
        if not self.source:
            raise ValueError("Expected source to name a file or a built-in set, got no text.")
        _checks.open_fraction(test=self.test)
        if self.max_contributions is not None:
            _checks.whole(max_contributions=self.max_contributions)


@dataclass(frozen=True)
class PrivacyConfig:
    """The privacy budget of a run.

    Attributes
    ----------
    epsilon : float
        Has no default. It covers training and calibration on the training records, and all
        measurements on the test records. No individual is in both.
    delta : float or None
        By default 1 / (10 n) for n declared records.
    relation : {"add-remove", "replace-one"}
    """

    epsilon: float
    delta: float | None = None
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _checks.positive(epsilon=self.epsilon)
        if self.delta is not None:
            _checks.open_fraction(delta=self.delta)
        _checks.one_of(RELATIONS, relation=self.relation)


@dataclass(frozen=True)
class ModelConfig:
    """The model and its training settings.

    Settings that are None take the default of the kind (:meth:`with_defaults`).

    Attributes
    ----------
    kind : str
        "logistic": logistic regression by DP-SGD. "objective", "output": logistic regression
        by objective or output perturbation. Networks, which need the extra ``torch``: "mlp",
        dense layers for rows of numbers; "cnn", a convolutional network for square
        images; "features", two dense layers on frozen features of texts, or on those of images
        that ``veracal data features`` wrote; "text", which also
        fine-tunes the last layers of the frozen network for texts.
    epochs, sampling_rate, clip, learning_rate, weight_decay
        For "logistic" and networks.
    optimizer : {"sgd", "adam"}
        For "logistic" and networks.
    hidden : tuple of int or None
        For "mlp" and "features": units of the hidden layers.
    strength : float
        For "objective" and "output": the parameter C; a larger C is a weaker penalty.
    norm : float or None
        For "objective" and "output": declared bound on the norm of a row; by default the
        schema's.
    """

    kind: Model = "logistic"
    epochs: float | None = None
    sampling_rate: float | None = None
    clip: float | None = None
    learning_rate: float | None = None
    weight_decay: float = 0.0
    optimizer: Optimizer | None = None
    hidden: tuple[int, ...] | None = None
    strength: float = 1.0
    norm: float | None = None

    def __post_init__(self) -> None:
        _checks.one_of(MODELS, kind=self.kind)
        if self.optimizer is not None:
            _checks.one_of(OPTIMIZERS, optimizer=self.optimizer)
        for name in ("epochs", "sampling_rate", "clip", "learning_rate", "norm"):
            value = getattr(self, name)
            if value is not None:
                _checks.positive(**{name: value})
        _checks.positive(strength=self.strength)
        if self.sampling_rate is not None:
            _checks.fraction(sampling_rate=self.sampling_rate)
        if self.hidden is not None:
            if not isinstance(self.hidden, list | tuple):
                raise ValueError(
                    f"Expected hidden to be a list of integers, got hidden={self.hidden!r}."
                )
            object.__setattr__(self, "hidden", tuple(self.hidden))
            for units in self.hidden:
                _checks.whole(hidden=units)

    def with_defaults(self) -> "ModelConfig":
        """Fill in the defaults of the kind for settings that are None."""
        defaults = _DEFAULTS.get(self.kind, _DEFAULTS["logistic"])
        return replace(self, **{k: v for k, v in defaults.items() if getattr(self, k) is None})


# Settings that apply to some kinds only.
_ONLY: Mapping[str, tuple[str, ...]] = {
    "hidden": ("mlp", "features"),
    "strength": PERTURBED,
    "norm": PERTURBED,
}


def check_settings_apply(model: ModelConfig, kinds: Collection[str]) -> None:
    """Reject a setting that applies to none of the kinds of model to be trained."""
    defaults = ModelConfig()
    for name, users in _ONLY.items():
        value = getattr(model, name)
        if value != getattr(defaults, name) and not set(users) & set(kinds):
            raise ValueError(
                f"Expected no {name} for the model {' or '.join(map(repr, kinds))}, which does "
                f"not use it, got {name}={value!r}. Leave it out, or choose the model "
                f"{' or '.join(map(repr, users))}."
            )


# Tuned on public data (docs/benchmarks.md); nothing in them depends on private records.
_TUNED = ("epochs", "sampling_rate", "clip", "learning_rate", "optimizer", "hidden")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    kind: dict(zip(_TUNED, values, strict=True))
    for kind, values in {
        "logistic": (40.0, 0.1, 1.0, 1.0, "sgd", None),
        "mlp": (40.0, 0.1, 1.0, 0.5, "sgd", (64, 64)),
        "cnn": (20.0, 0.05, 0.1, 10.0, "sgd", None),
        "features": (30.0, 0.1, 1.0, 0.5, "sgd", (64,)),
        "text": (5.0, 0.02, 0.1, 3e-4, "adam", None),
    }.items()
}


@dataclass(frozen=True)
class RecalibrationConfig:
    """The calibration map, which is fitted on the training records.

    Attributes
    ----------
    method : {"auto", "temperature", "two-temperatures", "none"}
    share : float or None
        Share of epsilon for the calibration map; by default the planner chooses it.
    """

    method: Method = "auto"
    share: float | None = None

    def __post_init__(self) -> None:
        _checks.one_of(METHODS, method=self.method)
        if self.share is not None:
            _checks.open_fraction(share=self.share)


@dataclass(frozen=True)
class MeasurementConfig:
    """The noisy measurement on the test records.

    Attributes
    ----------
    reserve : int
        Later measurements to reserve budget for, besides those before and after calibration
        (or the only one, without a map). All cost the same; together they cost epsilon.
    bins : int
        Bins of the calibration error and of the curve.
    group : str or None
        Group of the schema by which figures are broken down.
    """

    reserve: int = 2
    bins: int = 10
    group: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(reserve=self.reserve, least=0)
        _checks.whole(bins=self.bins)
        if self.group is not None:
            _check_text(group=self.group)


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on, except for secret randomness; the name is the model's."""

    data: DataConfig
    privacy: PrivacyConfig
    name: str = "model"
    model: ModelConfig = field(default_factory=ModelConfig)
    recalibration: RecalibrationConfig = field(default_factory=RecalibrationConfig)
    measurement: MeasurementConfig = field(default_factory=MeasurementConfig)

    @property
    def sides(self) -> tuple[str, ...]:
        """Measurements of the run itself: before and after the map, or one without a map."""
        return ("after",) if self.recalibration.method == "none" else ("before", "after")

    @classmethod
    def load(cls, path: str | Path, *, epsilon: float | None = None) -> "Config":
        """Read a TOML file. Paths in it are relative to its folder.

        ``epsilon`` replaces that of the file, which may then be left out.
        """
        path = Path(path)
        with open_file(path, Limits(file_bytes=_MAX_BYTES)) as file:
            content = file.read(_MAX_BYTES)
        try:
            text = content.decode()
        except UnicodeDecodeError as cause:
            raise SchemaError(
                str(path), "UTF-8 text", "other bytes", "Save it as UTF-8."
            ) from cause
        return cls.from_toml(text, where=str(path), folder=path.parent, epsilon=epsilon)

    @classmethod
    def from_toml(
        cls,
        text: str,
        *,
        where: str = "config",
        folder: Path | None = None,
        epsilon: float | None = None,
    ) -> "Config":
        """Parse TOML text. An unknown key is an error that names the nearest known one."""
        try:
            entries = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as cause:
            raise SchemaError(where, "TOML", str(cause), "Correct the file.") from cause
        if entries.pop("format", None) != FORMAT:
            raise SchemaError(
                where,
                f"format = {FORMAT}",
                "another format, or none",
                f"Write format = {FORMAT}.",
            )
        if epsilon is not None:
            privacy = expect_table(entries.get("privacy", {}), f"{where}: privacy")
            entries["privacy"] = {**privacy, "epsilon": epsilon}
        config = cls.from_entries(entries, where=where)
        if folder is None:
            return config

        def resolve(name: str) -> str:
            return str(folder / name) if (folder / name).exists() else name

        schema = None if config.data.schema is None else resolve(config.data.schema)
        data = replace(config.data, source=resolve(config.data.source), schema=schema)
        return replace(config, data=data)

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any], *, where: str = "config") -> "Config":
        """Build a config from sections and their settings, as :meth:`to_json` writes them."""
        settings = dict(entries)
        for name, kind in _SECTIONS.items():
            if name in entries:
                section = f"{where}: {name}"
                settings[name] = _build(kind, expect_table(entries[name], section), section)
        config: Config = _build(cls, settings, where)
        return config

    def to_json(self) -> dict[str, Any]:
        """All settings as values that JSON can hold, with defaults filled in.

        Settings that do not apply to the kind of model are left out.
        """
        settings = asdict(replace(self, model=self.model.with_defaults()))
        if self.model.optimizer is None and self.model.kind not in NETWORKS:
            del settings["model"]["optimizer"]
        for section, name in (("model", "hidden"), ("data", "max_contributions")):
            if settings[section][name] is None:
                del settings[section][name]
        return settings


_SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "privacy": PrivacyConfig,
    "model": ModelConfig,
    "recalibration": RecalibrationConfig,
    "measurement": MeasurementConfig,
}


def _build(kind: type, settings: dict[str, Any], where: str) -> Any:
    """Construct a section; an error names the file and the section."""
    try:
        return construct_from_settings(kind, settings, where)
    except DataError:
        raise
    except (TypeError, ValueError, OverflowError) as cause:
        raise SchemaError(
            where, "valid settings", str(cause).rstrip("."), "Correct it."
        ) from cause


@dataclass(frozen=True)
class Configuration:
    """A kind of model and a calibration method, written as ``logistic`` or ``logistic/none``."""

    model: Model
    method: Method = "auto"

    def __post_init__(self) -> None:
        if self.model not in MODELS or self.method not in METHODS:
            raise ValueError(
                f"Expected one of {', '.join(MODELS)}, alone or followed by a calibration "
                f"method as in logistic/none ({', '.join(METHODS)}), got {str(self)!r}."
            )

    @classmethod
    def parse(cls, text: str) -> "Configuration":
        """Parse the written form.

        Examples
        --------
        >>> Configuration.parse("objective/none")
        Configuration(model='objective', method='none')
        """
        model, slash, method = text.strip().partition("/")
        # The constructor rejects unknown words.
        return cls(cast(Model, model), cast(Method, method if slash else "auto"))

    def __str__(self) -> str:
        return self.model if self.method == "auto" else f"{self.model}/{self.method}"

    @property
    def folder(self) -> str:
        """Name of its artifact."""
        return str(self).replace("/", "-")


def check_configurations(configurations: Sequence[Configuration]) -> None:
    """Reject fewer than two configurations, and one that is named twice."""
    if len(set(configurations)) < 2 or len(set(configurations)) < len(configurations):
        named = ", ".join(map(str, configurations)) or "none"
        raise ValueError(f"Expected two or more different methods, got {named}.")


def is_unfinished(folder: Path, configurations: Sequence[Configuration]) -> bool:
    """Whether a folder holds some of the configurations, not all, and nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return {each.name for each in folder.iterdir()} < {each.folder for each in configurations}

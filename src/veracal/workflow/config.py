"""What a run is to do: every choice, before a record is read."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from veracal import _checks
from veracal.accounting import RELATIONS, Relation
from veracal.calibration import training_methods
from veracal.data import Limits, construct, opened, table
from veracal.errors import DataError, SchemaError

FORMAT = 1
_LARGEST_FILE = 2**20
PERTURBED = ("objective", "output")
NETWORKS = ("mlp", "cnn", "features", "text")
MODELS = ("logistic", *PERTURBED, *NETWORKS)
OPTIMIZERS = ("sgd", "adam")
METHODS = training_methods()
Model = Literal["logistic", "objective", "output", "mlp", "cnn", "features", "text"]
Optimizer = Literal["sgd", "adam"]
Method = Literal["auto", "temperature", "two-temperatures", "none"]


@dataclass(frozen=True)
class DataConfig:
    """Which records, and how many of them are kept for testing.

    Attributes
    ----------
    source : str
        A file, or the name of a built-in set.
    schema : str or None
        TOML file with what is public about a file. Built-in sets bring their own.
    test : float
        Share of the records that nobody trains on, for measuring.
    seed : str
        Public key of the split: the same key deals the same records to the same part.
    version : str
        Public mark of the records; change it when they change.
    at_most : int or None
        Rows that are kept of one unit, chosen at random, where records say whom they belong to
        and no schema says how many of them one has.
    """

    source: str
    schema: str | None = None
    test: float = 0.2
    seed: str = "veracal"
    version: str = ""
    at_most: int | None = None

    def __post_init__(self) -> None:
        _checks.fraction(test=self.test)
        if self.at_most is not None:
            _checks.whole(at_most=self.at_most)
        if self.test in (0, 1):
            raise ValueError(f"Expected test between 0 and 1, got test={self.test!r}.")


@dataclass(frozen=True)
class PrivacyConfig:
    """How much may be told about one person.

    Attributes
    ----------
    epsilon : float
        Never by default. Of the whole: of training and map on the training records, and of all
        measurements on the test records, which nobody is in who is in the others.
    delta : float or None
        By default one over ten times the declared number of records.
    relation : {"add-remove", "replace-one"}
    """

    epsilon: float
    delta: float | None = None
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        _checks.positive(epsilon=self.epsilon)
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"Expected delta between 0 and 1, got delta={self.delta!r}.")
        _checks.one_of(RELATIONS, relation=self.relation)


@dataclass(frozen=True)
class ModelConfig:
    """What is trained.

    Settings that are None take the usual value of the kind (:meth:`settled`).

    Attributes
    ----------
    kind : str
        "logistic": logistic regression by noisy gradient descent. "objective", "output": by
        perturbing the objective or the minimum. Networks, which need the extra ``torch``:
        "mlp", dense layers for rows of numbers; "cnn", convolutions for pictures; "features",
        two dense layers on what a frozen network makes of pictures or texts; "text", the last
        layers of such a network for texts are trained as well.
    epochs, sampling_rate, clip, learning_rate, weight_decay
        Of "logistic" and of networks.
    optimizer : {"sgd", "adam"}
        Of the same.
    hidden : tuple of int or None
        Of "mlp" and "features": units of the layers between.
    strength : float
        Of objective and output perturbation: the parameter C, large for a weak penalty.
    norm : float or None
        Of the same: declared bound on the norm of a row; by default the schema's.
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

    def settled(self) -> "ModelConfig":
        """The same, with the usual value of the kind wherever none was chosen."""
        usual = _USUAL.get(self.kind, _USUAL["logistic"])
        return replace(
            self,
            **{name: value for name, value in usual.items() if getattr(self, name) is None},
        )


# Settings that only some kinds have a use for.
_ONLY: Mapping[str, tuple[str, ...]] = {
    "hidden": ("mlp", "features"),
    "strength": PERTURBED,
    "norm": PERTURBED,
}


def check_used(chosen: ModelConfig, kinds: Collection[str]) -> None:
    """Refuse a setting that no kind of model that is to be trained has a use for.

    Raises
    ------
    ValueError
        Which names the setting, and the kinds that it is for.
    """
    usual = ModelConfig()
    for name, users in _ONLY.items():
        value = getattr(chosen, name)
        if value != getattr(usual, name) and not set(users) & set(kinds):
            raise ValueError(
                f"Expected no {name} for the model {' or '.join(map(repr, kinds))}, which has "
                f"no use for it, got {name}={value!r}. Leave it out, or take the model "
                f"{' or '.join(map(repr, users))}."
            )


# Found on public data (docs/benchmarks.md), and public: nothing of them is read from records.
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "logistic": {
        "epochs": 40.0,
        "sampling_rate": 0.1,
        "clip": 1.0,
        "learning_rate": 1.0,
        "optimizer": "sgd",
    },
    "mlp": {
        "epochs": 40.0,
        "sampling_rate": 0.1,
        "clip": 1.0,
        "learning_rate": 0.5,
        "optimizer": "sgd",
        "hidden": (64, 64),
    },
    "cnn": {
        "epochs": 20.0,
        "sampling_rate": 0.05,
        "clip": 0.1,
        "learning_rate": 10.0,
        "optimizer": "sgd",
    },
    "features": {
        "epochs": 30.0,
        "sampling_rate": 0.1,
        "clip": 1.0,
        "learning_rate": 0.5,
        "optimizer": "sgd",
        "hidden": (64,),
    },
    "text": {
        "epochs": 5.0,
        "sampling_rate": 0.02,
        "clip": 0.1,
        "learning_rate": 3e-4,
        "optimizer": "adam",
    },
}


@dataclass(frozen=True)
class RecalibrationConfig:
    """How confidence is repaired, on the records of training.

    Attributes
    ----------
    method : {"auto", "temperature", "two-temperatures", "none"}
    share : float or None
        Of epsilon, for the map; by default what the planner advises.
    """

    method: Method = "auto"
    share: float | None = None

    def __post_init__(self) -> None:
        _checks.one_of(METHODS, method=self.method)
        if self.share is not None and not 0 < self.share < 1:
            raise ValueError(f"Expected share between 0 and 1, got share={self.share!r}.")


@dataclass(frozen=True)
class MeasurementConfig:
    """What is measured on the test records, with noise.

    Attributes
    ----------
    later : int
        Measurements that may follow those before and after the map (or the one, without a
        map). All of them cost the same, and together the whole epsilon.
    bins : int
        Of the calibration error and of the curve.
    group : str or None
        Attribute of the schema by which figures are told apart.
    """

    later: int = 2
    bins: int = 10
    group: str | None = None

    def __post_init__(self) -> None:
        _checks.whole(later=self.later, least=0)
        _checks.whole(bins=self.bins)


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on, but for secret noise and batches.

    Attributes
    ----------
    data : DataConfig
    privacy : PrivacyConfig
    name : str
        Of the model, for its report.
    model : ModelConfig
    recalibration : RecalibrationConfig
    measurement : MeasurementConfig
    """

    data: DataConfig
    privacy: PrivacyConfig
    name: str = "model"
    model: ModelConfig = field(default_factory=ModelConfig)
    recalibration: RecalibrationConfig = field(default_factory=RecalibrationConfig)
    measurement: MeasurementConfig = field(default_factory=MeasurementConfig)

    @property
    def sides(self) -> tuple[str, ...]:
        """What is measured first: before and after the map, or once where there is none."""
        return ("after",) if self.recalibration.method == "none" else ("before", "after")

    @classmethod
    def load(cls, path: str | Path, *, epsilon: float | None = None) -> "Config":
        """Read a TOML file; paths in it are relative to its folder.

        Parameters
        ----------
        path : path
        epsilon : float, optional
            In place of the file's, which need not have one then.
        """
        path = Path(path)
        with opened(path, Limits(file_bytes=_LARGEST_FILE)) as file:
            content = file.read(_LARGEST_FILE)
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
        """Parse TOML text. Words that are not known are refused, with the nearest known one."""
        try:
            entries = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as cause:
            raise SchemaError(where, "TOML", str(cause), "Correct the file.") from cause
        if entries.pop("format", None) != FORMAT:
            raise SchemaError(
                where, f"format = {FORMAT}", "another, or none", f"Write format = {FORMAT}."
            )
        if epsilon is not None:
            privacy = table(entries.get("privacy", {}), f"{where}: privacy")
            entries["privacy"] = {**privacy, "epsilon": epsilon}
        found = cls.from_entries(entries, where=where)
        return found if folder is None else found.within(folder)

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any], *, where: str = "config") -> "Config":
        """Make one of sections and their settings, as :meth:`to_json` writes them."""
        parts = {part.name: part for part in fields(cls) if part.name in _SECTIONS}
        made: dict[str, Any] = {}
        for name, entry in entries.items():
            if name not in parts:
                made[name] = entry
                continue
            section = f"{where}: {name}"
            made[name] = _section(_SECTIONS[name], table(entry, section), section)
        found: Config = _section(cls, made, where)
        return found

    def within(self, folder: Path) -> "Config":
        """The same with files that are named relative to a folder."""

        def inside(name: str | None) -> str | None:
            if name is None:
                return None
            there = folder / name
            return str(there) if there.exists() else name

        data = asdict(self.data)
        data["source"], data["schema"] = inside(data["source"]), inside(data["schema"])
        return replace(self, data=DataConfig(**data))

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold, with the usual values of what was not chosen.

        What the kind of model has no use for is left out.
        """
        told = asdict(replace(self, model=self.model.settled()))
        if self.model.optimizer is None and self.model.kind not in NETWORKS:
            del told["model"]["optimizer"]
        if told["model"]["hidden"] is None:
            del told["model"]["hidden"]
        if told["data"]["at_most"] is None:
            del told["data"]["at_most"]
        return told


_SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "privacy": PrivacyConfig,
    "model": ModelConfig,
    "recalibration": RecalibrationConfig,
    "measurement": MeasurementConfig,
}


def _section(kind: type, settings: dict[str, Any], where: str) -> Any:
    """Make a record, and say in which file and section it was wrong."""
    try:
        return construct(kind, settings, where)
    except DataError:
        raise
    except (TypeError, ValueError) as cause:
        raise SchemaError(
            where, "settings that make sense", str(cause).rstrip("."), "Correct it."
        ) from cause

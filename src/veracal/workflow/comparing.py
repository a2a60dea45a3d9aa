"""Several ways to the same model, side by side, all of them for one budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from veracal.accounting import Budget
from veracal.artifact import check_place
from veracal.data import no_surprises
from veracal.ledger import Ledger
from veracal.mechanisms import StepProgress
from veracal.workflow.charging import (
    DataAccount,
    OnNotice,
    check_remembered,
    ledger_path,
    refuse_early,
)
from veracal.workflow.config import METHODS, MODELS, Config, Method, Model, PrivacyConfig
from veracal.workflow.job import RunPlan
from veracal.workflow.results import COVERS, files_of, results, stamped
from veracal.workflow.running import OnProgress, RunResult, silent, step_counter
from veracal.workflow.steps import budget_of, loaded


@dataclass(frozen=True)
class Configuration:
    """A kind of model and a kind of map, written as ``logistic`` or ``logistic/none``.

    Attributes
    ----------
    model : str
        As of :class:`~veracal.workflow.config.ModelConfig`.
    map : {"auto", "temperature", "two-temperatures", "none"}
    """

    model: Model
    map: Method = "auto"

    def __post_init__(self) -> None:
        if self.model not in MODELS or self.map not in METHODS:
            raise ValueError(
                f"Expected one of {', '.join(MODELS)}, alone or followed by a map as in "
                f"logistic/none ({', '.join(METHODS)}), got {str(self)!r}."
            )

    @classmethod
    def parse(cls, text: str) -> "Configuration":
        """Read it as it is written.

        Examples
        --------
        >>> Configuration.parse("objective/none")
        Configuration(model='objective', map='none')
        """
        model, slash, map_ = text.strip().partition("/")
        # Any words; those that are not known are refused when it is made.
        return cls(cast(Model, model), cast(Method, map_ if slash else "auto"))

    def __str__(self) -> str:
        return self.model if self.map == "auto" else f"{self.model}/{self.map}"

    @property
    def folder(self) -> str:
        """Name of its artifact."""
        return str(self).replace("/", "-")


def compare_ways(
    config: Config,
    ways: Sequence[Configuration],
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> tuple[RunResult, ...]:
    """Train and measure a model in each of several ways; all of it together is one budget.

    Each way has an equal share of epsilon and delta, for training and map on the training
    records, and for measurements before and after the map on the test records.

    Parameters
    ----------
    config : Config
        Of everything else. Its epsilon is that of the whole comparison; measurements for
        later are left out.
    ways : sequence of Way
        Two or more, all different.
    out : path
        Folder in which each way gets an artifact of its own.
    ledger, force, on_progress, on_notice
        As for :func:`veracal.workflow.run`.

    Guarantees
    ----------
    Everything that the comparison releases, all models and all figures, is within the config's
    epsilon and delta for whoever is in the records; results and report of each artifact say
    so, while a ``model.json`` states the share that its own weights and map cost. Whichever
    model is chosen by these figures needs no further budget. Interrupted, the same call goes
    on from what is in the folder and the ledger, and nothing is charged twice.
    """
    tell = on_progress or silent
    check_ways(ways)
    folder = Path(out)
    check_ways_places(folder, ways, force=force)
    place = ledger_path(config.data.source, ledger, outside=folder)
    for way in ways:
        check_remembered(folder / way.folder, place, config)
    tell("planning", 0, None)
    refuse_early(
        config,
        place,
        lambda budget: [share(config, way, len(ways), budget.delta) for way in ways],
    )
    tell("loading", 0, None)
    records = loaded(config, lambda done, total: tell("loading", done, total))
    account = DataAccount(config, records, place, on_notice)
    budget = budget_of(config, records)
    shares = [share(config, way, len(ways), budget.delta) for way in ways]
    tells = [tell_of(tell, way) for way in ways]
    jobs = [
        RunPlan.of(each, account.records, StepProgress(step_counter(told)))
        for each, told in zip(shares, tells, strict=True)
    ]
    tell("charging", 0, None)
    book, jobs = account.charge(jobs)
    with no_surprises(folder):
        folder.mkdir(exist_ok=True)
    return tuple(
        _one(job, book, folder / way.folder, len(ways), budget, told)
        for way, job, told in zip(ways, jobs, tells, strict=True)
    )


def check_ways(ways: Sequence[Configuration]) -> None:
    """Refuse less than two ways, and one that is named twice."""
    if len(set(ways)) < 2 or len(set(ways)) < len(ways):
        named = ", ".join(map(str, ways)) or "none"
        raise ValueError(f"Expected two or more different methods, got {named}.")


def check_ways_places(folder: Path, ways: Sequence[Configuration], *, force: bool) -> None:
    """Refuse a folder that is somebody else's, before the work and not after it."""
    if is_begun(folder, ways) or (force and folder.is_dir() and not folder.is_symlink()):
        for way in ways:
            check_place(folder / way.folder, force=True)
    else:
        check_place(folder, force=False)


def is_begun(folder: Path, ways: Sequence[Configuration]) -> bool:
    """Tell whether a folder holds some of the ways, not all, and nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return {each.name for each in folder.iterdir()} < {way.folder for way in ways}


def share(config: Config, way: Configuration, ways: int, delta: float) -> Config:
    """The config of one way, with its part of the budget."""
    privacy = PrivacyConfig(
        config.privacy.epsilon / ways, delta / ways, config.privacy.relation
    )
    return replace(
        config,
        name=f"{config.name} {way}",
        privacy=privacy,
        model=replace(config.model, kind=way.model),
        recalibration=replace(config.recalibration, method=way.map),
        measurement=replace(config.measurement, later=0),
    )


def tell_of(tell: OnProgress, way: Configuration) -> OnProgress:
    """Progress that says of which way it is."""
    return lambda step, done, total: tell(f"{way}: {step}", done, total)


def _one(
    job: RunPlan, book: Ledger, folder: Path, ways: int, budget: Budget, tell: OnProgress
) -> RunResult:
    """Train, measure and write one way."""
    tell("training", 0, None)
    classifier = job.trained(book)
    measured = []
    for when in job.config.sides:
        tell(f"measuring {when}", 0, None)
        measured.append(job.asked(classifier, when, book))
    covers = (*COVERS, f"the other models of this comparison of {ways}, and their figures")
    made = results(job, classifier, book, tuple(measured), covers, budget=budget)
    classifier = stamped(classifier, made)
    classifier.save(folder, other_files=files_of(made), force=True)
    return RunResult(folder, classifier, made, book, notice=job.records.notice)

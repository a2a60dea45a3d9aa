"""The multiplicity audit of a training run that a config describes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from veracal._types import Array, Ints
from veracal.artifact import PrivateClassifier
from veracal.calibration import MapFitter, PrivateCalibratedClassifier
from veracal.data import Dataset, Group, Label, Schema, scan_rows, split
from veracal.errors import DataError
from veracal.multiplicity import Audit, AuditSettings, audit
from veracal.report import AuditResults
from veracal.workflow.config import Config, check_settings_apply
from veracal.workflow.planning import build_model, today
from veracal.workflow.records import LoadedRecords, load_records, run_budget
from veracal.workflow.results import public_settings

OnRuns = Callable[[float, int, int | None], None]  # epsilon, completed runs, and all runs
RowBytes = tuple[int, bytes]  # number of a row, and its content
_MAP_SPLIT = (0.5, 0.0, 0.5)  # of the test partition, when maps are fitted on half of it
KINDS = {
    "logistic": "logistic regression by DP-SGD",
    "objective": "objective perturbation",
    "output": "output perturbation",
    "mlp": "a network of dense layers by DP-SGD",
    "cnn": "a convolutional network by DP-SGD",
    "features": "dense layers on frozen features by DP-SGD",
    "text": "fine-tuning of a network for texts by DP-SGD",
}
WHOLE = "The whole budget goes to training. No budget is reserved for a calibration map."


@dataclass(frozen=True)
class AuditRun:
    """How an audit is executed; :class:`~veracal.multiplicity.AuditSettings` say what it measures.

    Attributes
    ----------
    plane : pair of str, optional
        Two features, for a map of the disagreement.
    recalibrate : MapFitter, optional
        Fits a calibration map of each run on half of the test partition; the other half is
        audited.
    jobs, backend, address
        Where models are trained one by one, as for :func:`veracal.multiplicity.audit`.
    keep : path, optional
        File that keeps runs as they arrive; with several budgets, one file for each.
    random_state : int, optional
    """

    plane: tuple[str, str] | None = None
    recalibrate: MapFitter | None = None
    jobs: int | None = None
    backend: str | None = None
    address: str | None = None
    keep: Path | None = None
    random_state: int | None = None


@dataclass(frozen=True, eq=False)
class Deployed:
    """The deployed model, deciding at the threshold of an audit."""

    classifier: PrivateClassifier
    classes: tuple[Label, ...]  # in the declared order, which may differ from the classifier's
    threshold: float | None = None

    def predict(self, X: Array) -> Array:
        """Predict the likeliest class, or the second declared class above the threshold."""
        decisions: Array = self.classifier.predict(X)
        if self.threshold is not None:
            column = self.classifier.classes_.tolist().index(self.classes[1])
            second = self.classifier.predict_proba(X)[:, column] > self.threshold
            decisions = np.array(self.classes)[second.astype(int)]
        return decisions


def audit_config(
    config: Config,
    epsilons: Sequence[float],
    settings: AuditSettings,
    execution: AuditRun | None = None,
    *,
    deployed: PrivateClassifier | None = None,
    schema: Schema | None = None,
    on_load: Callable[[int, int | None], None] | None = None,
    on_progress: OnRuns | None = None,
) -> AuditResults:
    """Audit the training of a config for the records of its test partition.

    Parameters
    ----------
    config : Config
        As for :func:`veracal.workflow.run`: the same split key gives the same partitions. If
        it plans a calibration map, runs have the budget that the map leaves, and no map: maps
        of temperatures change no decision.
    epsilons : sequence of float
        Budgets, each audited separately.
    settings : AuditSettings
    execution : AuditRun, optional
    deployed : PrivateClassifier, optional
        The deployed model: count the runs that contradict its decisions.
    schema : Schema, optional
        In place of the file that the config names.
    on_load, on_progress : callable, optional

    Guarantees
    ----------
    None: nothing is charged, because the results must not be released. See
    :func:`veracal.multiplicity.audit`.
    """
    execution = AuditRun() if execution is None else execution
    if deployed is None:  # otherwise settings of the deployed model may come along unused
        check_settings_apply(config.model, (config.model.kind,))
    records = load_records(config, on_load, schema)
    if deployed is not None and (deployed.schema is None or deployed.schema != records.schema):
        raise DataError(
            records.dataset.name,
            "a model that was trained with the schema of this table",
            "one with another schema",
            "Name the table it was trained on, or another model.",
        )
    audited, calibration = _audited_records(records, config, execution.recalibrate)
    trainers = [
        build_trainer(replace(config, privacy=replace(config.privacy, epsilon=each)), records)
        for each in epsilons
    ]
    decider = None
    if deployed is not None:
        decider = Deployed(deployed, records.train.classes, settings.threshold)
    audits: list[Audit] = []
    for epsilon, trainer in zip(epsilons, trainers, strict=True):
        keep = runs_path(execution.keep, epsilon, several=len(epsilons) > 1)
        audits.append(
            audit(
                trainer,
                records.train,
                audited,
                **asdict(settings),
                **{**vars(execution), "keep": keep},
                deployed=decider,
                calibration=calibration,
                on_progress=on_progress and partial(on_progress, epsilon),
            )
        )
    return AuditResults(
        name=records.dataset.name,
        date=today(),
        what=KINDS[config.model.kind],
        rows=row_numbers(audited, records, config.data.source),
        audits=tuple(audits),
        epsilons=tuple(map(float, epsilons)),
        settings={**public_settings(config), "audit": asdict(settings)},
        notes=_notes(config, settings, calibration),
    )


def build_trainer(config: Config, records: LoadedRecords) -> Any:
    """The model to retrain: the classifier with its share of the budget, without a map."""
    model = build_model(config, records.train, run_budget(config, records))
    model.check_records(records.train)
    return model.trainer() if isinstance(model, PrivateCalibratedClassifier) else model


def runs_path(keep: Path | None, epsilon: float, *, several: bool) -> Path | None:
    """Path of the file that keeps the runs at one budget.

    Examples
    --------
    >>> runs_path(Path("runs.npz"), 0.5, several=True).name
    'runs-epsilon-0.5.npz'
    """
    if keep is None or not several:
        return keep
    return keep.with_name(f"{keep.stem}-epsilon-{epsilon:.6g}{keep.suffix}")


def _audited_records(
    records: LoadedRecords, config: Config, recalibrate: MapFitter | None
) -> tuple[Dataset, Dataset | None]:
    """The records to audit, and those that maps are fitted on."""
    test, calibration = records.test, None
    if recalibrate is not None:
        halves = split(
            test,
            _MAP_SPLIT,
            relation=config.privacy.relation,
            key=f"{config.data.split_key}: maps",
        )
        assert halves.test is not None
        test, calibration = halves.test, halves.train
    if not len(test) or (calibration is not None and not len(calibration)):
        raise DataError(
            records.dataset.name,
            "at least one record in the test partition, whose decisions are audited",
            "none",
            "Pass a larger --test, or use more records.",
        )
    return test, calibration


def _notes(
    config: Config, settings: AuditSettings, calibration: Dataset | None
) -> tuple[str, ...]:
    """Notes on how the budget and the test records were used."""
    notes = [WHOLE]
    if config.recalibration.method != "none":
        notes = [
            "Runs have the budget that the map of these settings leaves for training. They "
            "have no map, because maps of temperatures change no decision"
            + (" at 0.5; at another threshold they might." if settings.threshold else ".")
        ]
    if calibration is not None:
        notes.append(
            f"The map of every run is fitted on {len(calibration)} records of the test "
            "partition, which are not audited."
        )
    return tuple(notes)


def row_numbers(part: Dataset, records: LoadedRecords, source: str) -> Ints:
    """Number in the table of each record of a partition, counted from 1.

    Loading may leave out rows, and splitting keeps the order. So the partition is located in
    the data set, and the data set in the table. Rows that are equal in everything the model
    sees may be confused with each other. Of a built-in set its own rows count.
    """
    dataset, path = records.dataset, Path(source)
    indices = locate_in_order(dataset_bytes(part), dataset_bytes(dataset))
    if not (dataset.may_drop and path.is_file() and isinstance(records.schema, Schema)):
        return indices + 1
    unlabeled = dataset_bytes(dataset, labeled=False)
    table = (
        row
        for _, rows in scan_rows(path, records.schema)
        for row in _row_bytes(rows.numbers, rows.X, rows.groups.values(), rows.units, None)
    )
    return locate_in_order(unlabeled, table)[indices] + 1


def locate_in_order(rows: Iterable[RowBytes], among: Iterable[RowBytes]) -> Ints:
    """Indices of rows in a sequence that holds all of them in the same order.

    Examples
    --------
    >>> among = list(enumerate([b"a", b"b", b"a", b"c"]))
    >>> locate_in_order([(0, b"a"), (1, b"c")], among)
    array([0, 3])
    """
    indices, rest = [], iter(among)
    for _, content in rows:
        index = next((number for number, other in rest if other == content), None)
        assert index is not None
        indices.append(index)
    return np.array(indices, dtype=np.int64)


def dataset_bytes(records: Dataset, *, labeled: bool = True) -> Iterator[RowBytes]:
    """Each record as bytes: its features, groups, unit and, if ``labeled``, its label."""
    start = 0
    for batch in records.batches():
        labels = batch.y if labeled else None
        numbers = start + np.arange(len(batch))
        yield from _row_bytes(numbers, batch.X[:], batch.groups.values(), batch.units, labels)
        start += len(batch)


def _row_bytes(
    numbers: Ints,
    X: Array,
    groups: Iterable[Group],
    units: Array | None,
    labels: Ints | None,
) -> Iterator[RowBytes]:
    columns = [group.codes for group in groups]
    columns += [] if labels is None else [labels]
    codes = np.stack(columns, axis=1).tolist() if columns else [[]] * len(numbers)
    ids = [""] * len(numbers) if units is None else units.tolist()
    for number, row, row_codes, unit in zip(numbers.tolist(), X, codes, ids, strict=True):
        yield number, row.tobytes() + repr((row_codes, unit)).encode()

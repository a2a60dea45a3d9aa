"""Numbers of rows in the table that records came from.

The audit of a training that a config describes: the same records, people and model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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
from veracal.workflow.config import Config, check_used
from veracal.workflow.job import today
from veracal.workflow.results import published
from veracal.workflow.steps import LoadedRecords, budget_of, loaded
from veracal.workflow.training import private_model

Content = tuple[int, bytes]  # number of a row, and all there is to tell it by


def row_numbers(part: Dataset, records: LoadedRecords, source: str) -> Ints:
    """Where in the table each record of a part stands, counted from 1.

    Loading may have left out rows, and dealing keeps the others in their order: so a part is
    found again in the whole, and the whole in the table. Rows that are alike in everything
    the model sees may be taken for each other.

    Parameters
    ----------
    part : Dataset
        A part of ``records``, in its order.
    records : Loaded
    source : str
        The file, or the name of a built-in set, whose own rows count.
    """
    whole, path = records.whole, Path(source)
    within = found_in_order(contents(part), contents(whole))
    if not (whole.may_drop and path.is_file() and isinstance(records.schema, Schema)):
        return within + 1
    unlabeled = contents(whole, labeled=False)
    return found_in_order(unlabeled, _table(path, records.schema))[within] + 1


def found_in_order(some: Iterable[Content], among: Iterable[Content]) -> Ints:
    """Places of rows in a sequence that holds all of them in the same order.

    Examples
    --------
    >>> rows = list(enumerate([b"a", b"b", b"a", b"c"]))
    >>> found_in_order([(0, b"a"), (1, b"c")], rows)
    array([0, 3])
    """
    places, rest = [], iter(among)
    for _, wanted in some:
        place = next((number for number, content in rest if content == wanted), None)
        assert place is not None
        places.append(place)
    return np.array(places, dtype=np.int64)


def contents(records: Dataset, *, labeled: bool = True) -> Iterator[Content]:
    """Each record as bytes: its features, groups, unit and, if wanted, its label."""
    start = 0
    for batch in records.batches():
        labels = batch.y if labeled else None
        numbers = start + np.arange(len(batch))
        yield from _bytes(numbers, batch.X[:], batch.groups.values(), batch.units, labels)
        start += len(batch)


def _table(path: Path, schema: Schema) -> Iterator[Content]:
    """The rows of a file that its schema keeps, likewise."""
    for _, rows in scan_rows(path, schema):
        yield from _bytes(rows.numbers, rows.X, rows.groups.values(), rows.units, None)


def _bytes(
    numbers: Ints,
    X: Array,
    groups: Iterable[Group],
    units: Array | None,
    labels: Ints | None,
) -> Iterator[Content]:
    """Rows with their numbers."""
    columns = [group.codes for group in groups]
    columns += [] if labels is None else [labels]
    told = np.stack(columns, axis=1).tolist() if columns else [[]] * len(numbers)
    whose = [""] * len(numbers) if units is None else units.tolist()
    for number, row, codes, unit in zip(numbers.tolist(), X, told, whose, strict=True):
        yield number, row.tobytes() + repr((codes, unit)).encode()


OnRuns = Callable[[float, int, int | None], None]  # epsilon, runs that are done, and in all
_MAPS = (0.5, 0.0, 0.5)  # of the test part, when maps are fitted on half of it
KINDS = {
    "logistic": "logistic regression by noisy gradient descent",
    "objective": "objective perturbation",
    "output": "output perturbation",
    "mlp": "a network of dense layers by noisy gradient descent",
    "cnn": "a convolutional network by noisy gradient descent",
    "features": "dense layers on frozen features by noisy gradient descent",
    "text": "fine-tuning of a network for texts by noisy gradient descent",
}
WHOLE = "The whole budget goes to training: nothing is laid by for a map."


@dataclass(frozen=True)
class AuditRun:
    """How an audit is carried out, beside what is asked of it.

    Attributes
    ----------
    plane : pair of str, optional
        Two features, for a map.
    recalibrate : MapFitter, optional
        How every run is repaired, on half of the test part; the other half is audited.
    jobs, backend, address
        Where models are trained one by one, as of :func:`veracal.multiplicity.audit`.
    keep : path, optional
        Where runs are kept as they arrive; with several budgets, one file for each.
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
    """The model in use, deciding at the threshold of an audit.

    Attributes
    ----------
    classifier : PrivateClassifier
    classes : tuple of str or int
        As they are declared, which need not be the order of the classifier.
    threshold : float or None
    """

    classifier: PrivateClassifier
    classes: tuple[Label, ...]
    threshold: float | None = None

    def predict(self, X: Array) -> Array:
        """Decisions: the likeliest class, or the second declared one above the threshold."""
        found: Array = self.classifier.predict(X)
        if self.threshold is None:
            return found
        place = self.classifier.classes_.tolist().index(self.classes[1])
        second = self.classifier.predict_proba(X)[:, place] > self.threshold
        decided: Array = np.array(self.classes)[second.astype(int)]
        return decided


def audit_config(
    config: Config,
    epsilons: Sequence[float],
    question: AuditSettings,
    how: AuditRun | None = None,
    *,
    against: PrivateClassifier | None = None,
    schema: Schema | None = None,
    on_load: Callable[[int, int | None], None] | None = None,
    on_progress: OnRuns | None = None,
) -> AuditResults:
    """Audit the training of a config, on its training part, for the people of its test part.

    Parameters
    ----------
    config : Config
        As for :func:`veracal.workflow.run`: the same key deals the same people to the same
        parts. Where it plans a map, runs have the budget that the map leaves, and no map:
        maps of temperatures change no decision.
    epsilons : sequence of float
        Budgets, each audited for itself.
    question : Question
    how : AuditRun, optional
    against : PrivateClassifier, optional
        The model in use: how many runs contradict its decisions.
    schema : Schema, optional
        In place of the file that the config names.
    on_load, on_progress : callable, optional

    Guarantees
    ----------
    None: nothing is charged, because nothing may leave. See :func:`veracal.multiplicity.audit`.
    """
    chosen = AuditRun() if how is None else how
    if against is None:  # whose settings go along, whatever is trained instead
        check_used(config.model, (config.model.kind,))
    records = loaded(config, on_load, schema)
    if against is not None:
        check_same(against, records)
    individuals, calibration = _people(records, config, chosen.recalibrate)
    trainers = [trainer(replace_epsilon(config, each), records) for each in epsilons]
    found: list[Audit] = []
    for epsilon, model in zip(epsilons, trainers, strict=True):
        tell = _telling(on_progress, epsilon)
        found.append(
            audit(
                model,
                records.train,
                individuals,
                **asdict(question),
                deployed=None
                if against is None
                else Deployed(against, records.train.classes, question.threshold),
                plane=chosen.plane,
                recalibrate=chosen.recalibrate,
                calibration=calibration,
                jobs=chosen.jobs,
                backend=chosen.backend,
                address=chosen.address,
                keep=keep_place(chosen.keep, epsilon, several=len(epsilons) > 1),
                random_state=chosen.random_state,
                on_progress=tell,
            )
        )
    return AuditResults(
        name=records.whole.name,
        date=today(),
        what=KINDS[config.model.kind],
        rows=row_numbers(individuals, records, config.data.source),
        audits=tuple(found),
        epsilons=tuple(map(float, epsilons)),
        settings={**published(config), "audit": asdict(question)},
        notes=_notes(config, question, chosen.recalibrate, calibration),
    )


def replace_epsilon(config: Config, epsilon: float) -> Config:
    """The same with another budget."""
    return replace(config, privacy=replace(config.privacy, epsilon=epsilon))


def trainer(config: Config, records: LoadedRecords) -> Any:
    """What is trained again: the classifier with its share of the budget, without a map."""
    model = private_model(config, records.train, budget_of(config, records))
    model.check_records(records.train)
    if isinstance(model, PrivateCalibratedClassifier):
        return model.trainer()
    return model


def keep_place(keep: Path | None, epsilon: float, *, several: bool) -> Path | None:
    """Where the runs at one budget are kept.

    Examples
    --------
    >>> keep_place(Path("runs.npz"), 0.5, several=True).name
    'runs-epsilon-0.5.npz'
    """
    if keep is None or not several:
        return keep
    return keep.with_name(f"{keep.stem}-epsilon-{epsilon:.6g}{keep.suffix}")


def check_same(against: PrivateClassifier, records: LoadedRecords) -> None:
    """Refuse a model that reads the table otherwise: its decisions would be of other rows."""
    if against.schema is None or against.schema != records.schema:
        raise DataError(
            records.whole.name,
            "a model that was made with the schema of this table",
            "one with another schema",
            "Name the table it was made of, or another model.",
        )


def _people(
    records: LoadedRecords, config: Config, recalibrate: MapFitter | None
) -> tuple[Dataset, Dataset | None]:
    """Who is audited, and whom maps are fitted on."""
    test, calibration = records.test, None
    if recalibrate is not None:
        privacy = config.privacy.relation
        dealt = split(test, _MAPS, relation=privacy, key=f"{config.data.seed}: maps")
        assert dealt.test is not None
        test, calibration = dealt.test, dealt.train
    if not len(test) or (calibration is not None and not len(calibration)):
        raise DataError(
            records.whole.name,
            "somebody in the test part, whose decisions are audited",
            "nobody",
            "Give a larger --test, or more records.",
        )
    return test, calibration


def _notes(
    config: Config,
    question: AuditSettings,
    recalibrate: MapFitter | None,
    calibration: Dataset | None,
) -> tuple[str, ...]:
    """What was done with budget and people."""
    found = []
    if config.recalibration.method == "none":
        found.append(WHOLE)
    else:
        found.append(
            "Runs have the budget that the map of these settings leaves for training. They "
            "have no map, because maps of temperatures change no decision"
            + (" at 0.5; at another threshold they might." if question.threshold else ".")
        )
    if recalibrate is not None and calibration is not None:
        found.append(
            f"The map of every run is fitted on {len(calibration)} people of the test part, "
            "who are not audited."
        )
    return tuple(found)


def _telling(on_progress: OnRuns | None, epsilon: float) -> Callable[[int, int | None], None]:
    """Progress of one budget."""

    def tell(done: int, total: int | None) -> None:
        if on_progress is not None:
            on_progress(epsilon, done, total)

    return tell

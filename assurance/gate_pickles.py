"""Copies and files of fitted estimators contain no record and no internal figure.

Every estimator of the package with a private fit is identified by its methods, fitted to
records with distinctive values, and written by pickle, joblib and torch.save, and copied by
copy.deepcopy. No value of a record may be among the bytes, and among everything that comes back
there may be no array with as many rows as there are records, no number of records, and nothing
that is called internal. The old network revealed how many examples were in its batches and how
many of them were clipped. A class that is not fitted here makes the gate fail.
"""

import copy
import importlib
import inspect
import io
import pickle
import pkgutil
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import joblib
import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import nn

import veracal
from assurance.gate_network_trainer import texts, trainer
from assurance.networks import Patches
from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.calibration import (
    PooledTemperature,
    PrivateCalibratedClassifier,
    PrivateTemperature,
    PrivateTwoTemperatures,
)
from veracal.calibration.private.binning import PrivateBinning
from veracal.calibration.private.golden_section import GoldenTemperature
from veracal.calibration.private.platt import PrivatePlatt
from veracal.data import Dataset, Scores
from veracal.ledger import open_ledger
from veracal.neural import PrivateNetwork
from veracal.neural.run import InternalFigures
from veracal.queries import Curator
from veracal.training import (
    BoundedScaler,
    DeclaredOneHot,
    NormClipper,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateChannelStandardizer,
    PrivateLogisticRegression,
    PrivateSearch,
    PrivateStandardizer,
    make_private_pipeline,
)
from veracal.training.base import PrivateEstimator

NAME = "pickles"
SECONDS = 10
N, SIZE, WIDTH = 137, 150, 3
rng = np.random.default_rng(0)
X = rng.uniform(-0.9, 0.9, (N, WIDTH)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
RECORDS = Dataset(X, Y, (0, 1), size=SIZE)
LOGITS = rng.standard_normal((N, 2))
ODD = X.view(np.uint32)  # the bits of a value do not come about by chance


# ---------------------------------------------------------------- mutants


def whole_state(model: Any) -> Any:
    """Everything that a model has."""
    return BaseEstimator.__getstate__(model)


def keep_records(model: Any, facts: Any) -> Any:
    """Remember the records of the fit."""
    model._last = facts.X
    return fitted(model, facts)


def counted(model: Any, facts: Any) -> Any:
    """Remember how many records there were."""
    model.n_samples_seen_ = len(facts.codes)
    return fitted(model, facts)


fitted = PrivateEstimator._fit_data
ESTIMATOR = "veracal.training.base.PrivateEstimator."
ALLOWED = {"veracal.neural.run.InternalFigures.__reduce_ex__": object.__reduce_ex__}
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "internal figures are pickled": {
        "veracal.training.base.PrivateEstimator.__getstate__": whole_state,
        **ALLOWED,
    },
    "a model keeps its records": {
        "veracal.training.base.PrivateEstimator._fit_data": keep_records
    },
    "a model keeps their number": {"veracal.training.base.PrivateEstimator._fit_data": counted},
}


# ---------------------------------------------------------------- every estimator


def linear(**more: Any) -> PrivateLogisticRegression:
    """A short descent."""
    return PrivateLogisticRegression(**{"steps": 2, "size": SIZE, **more})


def network(**more: Any) -> PrivateNetwork:
    """The same for a network."""
    told = {"steps": 2, "size": SIZE, "gradients": "ghost", **more}
    return PrivateNetwork(nn.Linear(WIDTH, 2), **told)


def searched() -> PrivateSearch:
    """A search of a trial or so."""
    tried = network(sampling_rate=1.0)
    return PrivateSearch(tried, [{"optimizer": 0.3}], mean=1.5, holdout=0.2, size=SIZE)


def calibrated() -> PrivateCalibratedClassifier:
    """A network with a map."""
    return PrivateCalibratedClassifier(network(), epsilon=8.0, delta=1e-4, size=SIZE)


def piped(scaler: Any) -> Any:
    """Steps in front of a network."""
    return make_private_pipeline(scaler, NormClipper(norm=6.0), network())


def standardizer() -> PrivateStandardizer:
    """A step with a cost."""
    return PrivateStandardizer(bounds=(-1, 1), noise_multiplier=12.0, size=SIZE)


def channels() -> PrivateChannelStandardizer:
    """Another one."""
    return PrivateChannelStandardizer(1.0, 1.0, noise_multiplier=8.0, size=SIZE)


MODELS: tuple[Callable[[], Any], ...] = (
    linear,
    network,
    searched,
    calibrated,
    partial(ObjectivePerturbation, norm=2.0, size=SIZE),
    partial(OutputPerturbation, norm=2.0, size=SIZE),
    lambda: piped(standardizer()),
    lambda: piped(channels()),
    lambda: piped(BoundedScaler(bounds=[(-1, 1)] * WIDTH)),
)
STEPS: tuple[Callable[[], Any], ...] = (
    standardizer,
    channels,
    lambda: NormClipper(norm=6.0),
    lambda: BoundedScaler(bounds=[(-1, 1)] * WIDTH),
)
FITTERS: tuple[Callable[[], Any], ...] = (
    partial(PrivateTemperature, epsilon=1.0),
    partial(PrivateTwoTemperatures, epsilon=1.0),
    partial(PrivateBinning, epsilon=1.0),
    partial(PrivatePlatt, epsilon=1.0, delta=1e-5, classes=2),
    partial(GoldenTemperature, epsilon=1.0, classes=2),
    partial(PooledTemperature, epsilon=1.0, classes=2),
)
# Not private, and said to be so; or no estimators; or refused here by check_others.
OTHERS = {
    *("BetaCalibration", "CalibratedClassifier", "HistogramBinning", "IsotonicCalibration"),
    *("PlattScaling", "TemperatureScaling", "TwoTemperatureScaling"),
    *("Curator", "PrivateModel", "RecordsModel", "PrivateStep", "LoadedRecords"),
    *("LastLayers", "MeanPooled", "SequenceClassifierModule"),
    *("PrivateTrainer", "PrivateClassifier", "DeclaredOneHot"),
}


def classes() -> Iterator[type]:
    """Every class of the package that can be fitted, but for those that others complete."""
    for found in pkgutil.walk_packages(veracal.__path__, "veracal."):
        if ".cli" in found.name or "flower" in found.name or "__main__" in found.name:
            continue
        for name, one in vars(importlib.import_module(found.name)).items():
            own = inspect.isclass(one) and one.__module__.startswith("veracal.")
            if not own or name.startswith("_") or inspect.isabstract(one):
                continue
            if any(hasattr(one, verb) for verb in ("fit", "fit_records", "train")):
                yield one


def fit_estimators(folder: Path) -> Iterator[Any]:
    """All estimators, fitted and used once, because some compute state at the first call."""
    for make in MODELS:
        model = make().fit_records(RECORDS)
        model.predict(X[:5])
        yield model
    for make in STEPS:
        step = make()
        yield step.fit_records(RECORDS) if hasattr(step, "fit_records") else step.fit(X, Y)
    yield DeclaredOneHot(categories=[["a", "b"]]).fit(np.array([["a"], ["b"]]))
    scores = Scores.from_logits(LOGITS, Y)
    for i, make in enumerate(FITTERS):
        ledger = open_ledger(folder / f"{i}.ledger", Budget(10.0, 1e-5), kind="open")
        yield make().fit(Curator(scores, ledger))
    yield PrivateClassifier.of(network().fit_records(RECORDS))


# ---------------------------------------------------------------- copies


def copies(model: Any) -> Iterator[tuple[str, bytes, Any]]:
    """A model as others may get it: by what means, as bytes, and what it comes back as."""
    written = pickle.dumps(model)
    yield "pickle", written, pickle.loads(written)
    joblib.dump(model, file := io.BytesIO())
    yield "joblib", file.getvalue(), joblib.load(io.BytesIO(file.getvalue()))
    torch.save(model, file := io.BytesIO())
    found = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    yield "torch.save", file.getvalue(), found
    yield "copy.deepcopy", b"", copy.deepcopy(model)


def check_copies(model: Any) -> int:
    """Look into all copies of a model."""
    name, checked = type(model).__name__, 0
    for how, written, found in copies(model):
        for value in (*X.ravel()[:60], *LOGITS.ravel()[:60]):
            for kind in (np.float32, np.float64):
                held = kind(value).tobytes() in written
                assert not held, f"{name} by {how}: a value of a record"
        assert b"internal_" not in written, f"{name} by {how}: internal figures"
        checked += 1
        check_tree(found, f"{name} by {how}", set())
    return checked


def check_tree(one: Any, where: str, seen: set[int]) -> None:
    """Check everything that an object refers to."""
    if id(one) in seen or isinstance(one, str | bytes | type | types.FunctionType):
        return
    seen.add(id(one))
    assert not isinstance(one, InternalFigures), f"{where}: internal figures"
    assert not isinstance(one, Dataset | Scores | Curator), f"{where}: records"
    if isinstance(one, np.ndarray | torch.Tensor):
        assert not (one.ndim and len(one) == N), f"{where}: one number for each record"
        values = one.detach() if isinstance(one, torch.Tensor) else one
        bits = np.ascontiguousarray(values)
        same = bits.dtype == np.float32 and np.isin(bits.view(np.uint32), ODD).any()
        assert not same, f"{where}: a value of a record"
    elif isinstance(one, int | np.integer):
        assert one != N, f"{where}: the number of records"
    elif isinstance(one, dict | types.MappingProxyType):
        for name, value in one.items():
            check_tree(value, f"{where}.{name}", seen)
    elif isinstance(one, list | tuple | set | frozenset):
        for value in one:
            check_tree(value, where, seen)
    else:
        for name, value in getattr(one, "__dict__", {}).items():
            check_tree(value, f"{where}.{name}", seen)


def check_others(folder: Path) -> None:
    """A trainer, which holds its records, is not copied at all."""
    whole = trainer(folder, texts(5, np.random.default_rng(0)))
    whole.train()
    for copied in (pickle.dumps, copy.deepcopy):
        refused = False
        try:
            copied(whole)
        except TypeError:
            refused = True
        assert refused, "a trainer is copied with its records"


def run(subject: Patches, *, long: bool) -> str:
    """Fit, copy, and look."""
    checked, known = 0, set(OTHERS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for name, instead in subject.items():
            stack.enter_context(mock.patch(name, instead))
        for model in fit_estimators(Path(folder)):
            known.add(type(model).__name__)
            checked += check_copies(model)
        check_others(Path(folder))
    missing = sorted({one.__name__ for one in classes()} - known)
    assert not missing, f"not fitted here: {', '.join(missing)}"
    return f"{checked} copies of {len(known) - len(OTHERS)} kinds of estimators"

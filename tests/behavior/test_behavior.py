"""Figures of the commands, the costs and the estimators stay what they were.

``expected.json`` was recorded before the redesign, with the entropy that a test draws. A number
of a result is matched by its value, not by the name of its field, so that names may change and
figures may not. Record again with ``VERACAL_RECORD=1`` only where a change is deliberate, and
list it in the changelog.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.cli.sample_federation import federation, model
from tests.cli.sample_tables import write
from veracal.accounting import (
    Approximate,
    AsReplaceOne,
    Budget,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    epsilon_for,
    noise_for,
    rdp_epsilon,
)
from veracal.calibration import PrivateCalibratedClassifier, recalibrate
from veracal.data import Dataset, Scores
from veracal.federation import SourceServer
from veracal.ledger import open_ledger
from veracal.mechanisms import Adam, Automatic, GlobalAdapt, GlobalV2
from veracal.neural import PrivateNetwork
from veracal.queries import Curator
from veracal.training import (
    NormClipper,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    PrivateStandardizer,
    make_private_pipeline,
)

EXPECTED = Path(__file__).with_name("expected.json")
RECORD = os.environ.get("VERACAL_RECORD") == "1"


def numbers(value: Any) -> Iterator[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def check_figures(name: str, figures: Any) -> None:
    """Every recorded figure is among those of today."""
    found = np.unique([float(f"{x:.9g}") for x in numbers(figures)])
    assert len(found)
    if RECORD:
        known = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
        known[name] = found.tolist()
        EXPECTED.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
        return
    expected = np.array(json.loads(EXPECTED.read_text())[name])
    nearest = found[np.abs(found[:, None] - expected).argmin(axis=0)]
    missing = expected[np.abs(nearest - expected) > 1e-6 * np.abs(expected) + 1e-12]
    assert not len(missing), f"{name}: {len(missing)} of {len(expected)} figures changed"


# ---------------------------------------------------------------- costs


def events() -> dict[str, Any]:
    """Thirty events of all kinds."""
    noisy = PoissonGaussian(1.2, rate=0.05)
    pure = Pure(0.3)
    simple = {
        "gaussian": Gaussian(2.0),
        "gaussian sensitivity": Gaussian(3.0, sensitivity=2.0),
        "laplace": Laplace(2.0),
        "discrete laplace": DiscreteLaplace(7.5, sensitivity=3),
        "discrete gaussian": DiscreteGaussian(9.0, sensitivity=4),
        "discrete gaussian small": DiscreteGaussian(0.8, sensitivity=1),
        "poisson": noisy,
        "poisson rare": PoissonGaussian(0.7, rate=0.001),
        "pure": pure,
        "approximate": Approximate(0.5, 1e-7),
    }
    composed = {
        "100 steps": Repeated(noisy, 100),
        "2000 steps": Repeated(PoissonGaussian(1.0, rate=0.01), 2000),
        "40 pure": Repeated(Pure(0.05), 40),
        "9 gaussians": Repeated(Gaussian(8.0), 9),
        "fit and map": Composed((Repeated(noisy, 50), pure)),
        "fit, map, figures": Composed((Repeated(noisy, 50), Laplace(4.0), pure)),
        "two noises": Composed((Gaussian(3.0), Gaussian(4.0))),
        "promise beside": Composed((Approximate(0.2, 1e-8), Gaussian(5.0))),
        "partitions": Parallel((Repeated(noisy, 30), Pure(0.7))),
        "equal partitions": Parallel((Pure(0.4), Pure(0.7))),
        "search": Search(Repeated(noisy, 20), 4.0, "logarithmic"),
        "search geometric": Search(Gaussian(6.0), 3.0, "geometric"),
        "replaced": AsReplaceOne(Gaussian(5.0)),
        "replaced steps": AsReplaceOne(Repeated(PoissonGaussian(1.5, rate=0.02), 100)),
        "discrete answers": Composed((DiscreteLaplace(20, sensitivity=2),) * 3),
    }
    units = {
        "weak gaussian": Gaussian(9.0),
        "many small": Repeated(DiscreteGaussian(60.0, sensitivity=1), 500),
        "mixed answers": Composed((DiscreteGaussian(30.0), DiscreteLaplace(25.0))),
        "one full step": PoissonGaussian(2.0, rate=1.0),
        "deep": Composed((Composed((pure, noisy)), Repeated(pure, 2))),
    }
    return simple | composed | units


def test_costs_of_thirty_events():
    listed = events()
    assert len(listed) == 30
    costs = {}
    for name, event in listed.items():
        costs[name] = [epsilon_for(event, delta) for delta in (1e-5, 1e-8)]
    costs["renyi"] = [
        rdp_epsilon(listed[name], 1e-5)
        for name in ("gaussian", "laplace", "100 steps", "2000 steps", "search", "partitions")
    ]
    costs["noise"] = [
        noise_for(
            Budget(epsilon, 1e-5),
            lambda noise: Repeated(PoissonGaussian(noise, rate=0.02), 500),
        )
        for epsilon in (1.0, 2.0, 8.0)
    ]
    check_figures(
        "costs", {name: [x for x in cost if np.isfinite(x)] for name, cost in costs.items()}
    )


# ---------------------------------------------------------------- estimators


@pytest.fixture
def records():
    """Three hundred records of four features."""
    rng = np.random.default_rng(5)
    rows = rng.uniform(-1, 1, (300, 4))
    labels = (rows @ [2.0, -1.0, 0.5, 0.0] + rng.logistic(size=300) > 0).astype(int)
    return rows, labels


ESTIMATORS = {
    "logistic": lambda: PrivateLogisticRegression(2.0, steps=30),
    "adam": lambda: PrivateLogisticRegression(
        None, noise_multiplier=1.5, steps=20, optimizer=Adam(0.1)
    ),
    "automatic": lambda: PrivateLogisticRegression(2.0, steps=30, clip=Automatic(1.0)),
    "global": lambda: PrivateLogisticRegression(2.0, steps=30, clip=GlobalV2(1.0)),
    "adaptive": lambda: PrivateLogisticRegression(2.0, steps=30, clip=GlobalAdapt(1.0, 2.0)),
    "output": lambda: OutputPerturbation(2.0, norm=1.5),
    "output delta": lambda: OutputPerturbation(2.0, 1e-5, norm=1.5),
    "objective": lambda: ObjectivePerturbation(2.0, norm=1.5),
    "pipeline": lambda: make_private_pipeline(
        PrivateStandardizer([(-1.0, 1.0)] * 4, noise_multiplier=20.0),
        NormClipper(1.0),
        PrivateLogisticRegression(2.0, steps=30),
    ),
    "calibrated": lambda: PrivateCalibratedClassifier(
        PrivateLogisticRegression(steps=30), epsilon=4.0
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore")
def test_predictions_of_estimators(name, records):
    dataset = Dataset(*records, classes=(0, 1), size=300)
    fitted = ESTIMATORS[name]().fit_records(dataset)
    check_figures(f"estimator {name}", fitted.predict_proba(records[0][:8]).tolist())


def test_predictions_of_a_network(records):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    dataset = Dataset(records[0].astype(np.float32), records[1], classes=(0, 1), size=300)
    network = PrivateNetwork(module, 3.0, steps=20, gradients="ghost")
    fitted = network.fit_records(dataset)
    check_figures("estimator network", fitted.predict_proba(dataset.X[:8]).tolist())


# ---------------------------------------------------------------- recalibration by the library


def scores(n: int, seed: int) -> Any:
    """Overconfident scores for three classes."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Scores.from_logits(2 * logits, labels)


METHODS = ("auto", "temperature", "pooled", "platt", "acc-t", "nll-t", "ece-t", "binning")


@pytest.mark.parametrize("method", METHODS)
def test_recalibration_of_one_curator(method, tmp_path):
    delta = 1e-5 if method == "platt" else 0.0
    kind = "open" if delta else "pure"
    ledger = open_ledger(tmp_path / "a.ledger", Budget(2.0, delta), kind=kind)
    facts = {"epsilon": 2.0, "delta": delta or None, "size": 3000, "classes": 3}
    result = recalibrate(scores(3000, 1), method, ledger=ledger, **facts)
    check_figures(f"curator {method}", [result.map.to_json(), result.to_json()])


@pytest.mark.parametrize("method", ["auto", "pooled", "acc-t", "binning"])
def test_recalibration_of_a_pool(method, tmp_path):
    sources = []
    for i in range(5):
        ledger = open_ledger(tmp_path / f"{i}.ledger", Budget(1.0))
        sources.append(Curator(scores(1000, i), ledger))
    result = recalibrate(sources, method, epsilon=1.0, size=5000, classes=3)
    check_figures(f"pool {method}", [result.map.to_json(), result.to_json()])


# ---------------------------------------------------------------- commands


@pytest.fixture
def folder(tmp_path):
    """Two small tables and a file of predictions."""
    write(tmp_path)
    part = scores(1500, 3)
    np.savez(tmp_path / "scored.npz", logits=part.logits, labels=part.labels)
    sites = [("north", "south", "west")[i % 3] for i in range(1500)]
    table = {f"logits_{k}": part.logits[:, k].tolist() for k in range(3)}
    pl.DataFrame(table | {"labels": part.labels.tolist(), "site": sites}).write_csv(
        tmp_path / "sites.csv"
    )
    return tmp_path


def results(folder: Path) -> Any:
    """What a run has written, but for dates and versions."""
    kept = json.loads((folder / "results.json").read_text())
    return kept


def success(run, *words: str) -> str:
    code, out, err = run(*words)
    assert code == 0, err
    return out


@pytest.mark.parametrize(
    "words",
    [
        ("visits.csv", "--schema", "visits.toml", "--epsilon", "3"),
        (
            "visits.csv",
            "--schema",
            "visits.toml",
            "--epsilon",
            "3",
            "--model",
            "objective",
            "--norm",
            "1",
        ),
        ("breast-cancer", "--epsilon", "6"),
    ],
    ids=["visits", "objective", "breast-cancer"],
)
def test_fit_and_predict(words, run, folder):
    success(run, "fit", *words, "--out", "model")
    table = "visits.csv" if words[0] == "visits.csv" else "breast-cancer"
    success(run, "predict", "model", table, "--out", "predictions.csv")
    predicted = pl.read_csv("predictions.csv").select(pl.selectors.float()).head(40)
    label = "-".join(words)
    check_figures(f"fit {label}", results(folder / "model"))
    check_figures(f"predict {label}", predicted.to_numpy().tolist())


@pytest.mark.parametrize("more", [(), ("--epsilon", "1")], ids=["open", "private"])
def test_evaluate(more, run, folder):
    check_figures(
        f"evaluate {more}", json.loads(success(run, "evaluate", "scored.npz", *more, "--json"))
    )


@pytest.mark.parametrize("method", ["temperature", "pooled", "acc-t", "binning"])
def test_recalibrate_one_file(method, run, folder):
    size = ("--size", "1500") if method in ("pooled", "acc-t") else ()
    words = ("recalibrate", "scored.npz", "--epsilon", "1", "--method", method, *size)
    check_figures(f"recalibrate {method}", json.loads(success(run, *words, "--json")))


def test_recalibrate_by_sites(run, folder):
    words = ("recalibrate", "sites.csv", "--sources-by", "site", "--epsilon", "1")
    check_figures("recalibrate by sites", json.loads(success(run, *words, "--json")))


def test_recalibrate_by_remote_sources(run, folder, monkeypatch):
    monkeypatch.setattr(SourceServer, "answer", SourceServer.reply)
    federation(folder / "study", model(folder / "m"), deadline=1.0)
    words = ("recalibrate", "m", "--sources", "study/federation.toml", "--epsilon", "2")
    success(run, *words, "--map-out", "map.json", "--out", "new")
    check_figures("recalibrate remote", json.loads(Path("map.json").read_text()))


def test_plans(run, folder):
    train = ("plan", "train", "--records", "600", "--batch", "60", "--epochs", "5")
    check_figures("plan train", json.loads(success(run, *train, "--epsilon", "1", "--json")))
    plan = ("plan", "audit", "--individuals", "100", "--error", "0.1", "--json")
    check_figures("plan audit", json.loads(success(run, *plan)))


@pytest.mark.parametrize("name", ["logistic", "objective", "output"])
def test_audit(name, run, folder, monkeypatch):
    # Imports draw entropy, too: when they happen must not matter.
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    words = ("audit", "visits.csv", "--schema", "visits.toml", "--epsilon", "1", "--runs", "20")
    norm = () if name == "logistic" else ("--norm", "1")
    words = (*words, "--model", name, *norm, "--split-key", "7", "--out", "audit", "--json")
    out = success(run, *words)
    check_figures(f"audit {name}", json.loads(out))

"""Training a module with one call."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as Examples
from torch.utils.data import IterableDataset, TensorDataset

from tests.neural.fits import RNG, X, Y, model, network
from veracal.accounting import Budget, Unit
from veracal.data import Dataset
from veracal.errors import BudgetError
from veracal.ledger import open_ledger
from veracal.mechanisms import (
    SGD,
    Adam,
    Flat,
    FullBatch,
    GlobalAdapt,
    Langevin,
    Momentum,
    Poisson,
)
from veracal.neural import train
from veracal.neural.gradient_sums import NetworkSums
from veracal.queries import Curator

SETTINGS = {"classes": [0, 1], "size": 60, "steps": 4, "gradients": "ghost"}


class Pairs(Examples):
    """Examples by index, as a torch data set."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.tensor(self.X[i]), int(self.y[i])


def same(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("clip", [Flat(0.3), GlobalAdapt(0.3, 1.0)], ids=repr)
@pytest.mark.parametrize("optimizer", [SGD(0.1), Momentum(0.1), Adam(0.01)], ids=repr)
@pytest.mark.parametrize("sampler", [Poisson(0.3), FullBatch()], ids=repr)
def test_train_equals_a_network_fit_with_the_same_settings(clip, optimizer, sampler):
    rules = {"clip": clip, "optimizer": optimizer}
    done = train(
        network(), (X, Y), noise=1.5, sampler=sampler, random_state=0, **rules, **SETTINGS
    )
    rate = 1.0 if sampler == FullBatch() else 0.3
    fitted = model(noise_multiplier=1.5, sampling_rate=rate, **rules).fit(X, Y)
    assert same(done.module, fitted.module_)
    assert done.event == fitted.event_ and "random_state was set" in done.statement.text()
    assert done.self_check == fitted.self_check_ and done.internal == fitted.internal_
    assert not same(done.module, network())


def test_langevin_sets_its_own_noise():
    optimizer = Langevin(0.1, 1.0)
    done = train(network(), (X, Y), optimizer=optimizer, sampler=Poisson(0.3), **SETTINGS)
    expected = model(noise_multiplier=None, optimizer=optimizer, sampling_rate=0.3).event()
    assert done.event == expected


@pytest.mark.parametrize(
    "data",
    [
        (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
        [X.tolist(), Y.tolist()],
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        Pairs(X, Y),
        Dataset(X, Y, (0, 1), size=60),
    ],
    ids=["tensors", "lists", "TensorDataset", "examples", "Dataset"],
)
def test_records_are_accepted_in_several_formats(data):
    done = train(network(), data, noise=1.0, random_state=0, **SETTINGS)
    assert same(
        done.module, train(network(), (X, Y), noise=1.0, random_state=0, **SETTINGS).module
    )


def test_integers_stay_tokens():
    tokens = RNG.integers(0, 9, (60, 5))
    module = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(15, 2))
    assert train(module, (tokens, Y), noise=1.0, **SETTINGS).statement.text()


def test_only_declared_facts_give_a_private_result():
    done = train(network(), (X, Y), epsilon=3.0, **SETTINGS)
    assert done.statement.epsilon <= 3.0
    assert type(done.module) is nn.Sequential and not done.module.training
    assert list(done.module.state_dict()) == list(network().state_dict())
    assert "clipped=" not in repr(done) and "seen=" not in repr(done)
    settings = train(
        network(), (X, Y), epsilon=3.0, steps=4, gradients="ghost"
    ).statement.text()
    assert "declare classes" in settings and "declare size" in settings


def make_ledger(tmp_path, epsilon=500.0):
    return open_ledger(tmp_path / "a.ledger", Budget(epsilon, 1e-2), kind="open")


@pytest.mark.parametrize("form", ["arrays", "examples", "Dataset", "Curator"])
def test_the_ledger_is_charged_before_a_gradient_is_computed(tmp_path, monkeypatch, form):
    ledger, taken, call = make_ledger(tmp_path), [], NetworkSums.__call__

    def spied(self, weights, rows, clip):
        taken.append(len(list(ledger.entries())))
        return call(self, weights, rows, clip)

    monkeypatch.setattr(NetworkSums, "__call__", spied)
    dataset = Dataset(X, Y, (0, 1), size=60)
    data = {"arrays": (X, Y), "examples": Pairs(X, Y), "Dataset": dataset}
    data["Curator"] = Curator(dataset, ledger)
    payer = {} if form == "Curator" else {"ledger": ledger}
    done = train(network(), data[form], noise=3.0, sampler=FullBatch(), **payer, **SETTINGS)
    assert taken == [1, 1, 1, 1]
    (entry,) = ledger.entries()
    assert entry.event == done.event and done.statement.epsilon > 0


@pytest.mark.parametrize("form", ["arrays", "Dataset"])
def test_no_record_is_read_if_the_ledger_rejects_the_charge(tmp_path, monkeypatch, form):
    monkeypatch.setattr(NetworkSums, "__call__", lambda *_: pytest.fail("a record was read"))
    data = (X, Y) if form == "arrays" else Dataset(X, Y, (0, 1), size=60)
    with pytest.raises(BudgetError):
        train(network(), data, noise=1.0, ledger=make_ledger(tmp_path, 0.1), **SETTINGS)


def test_a_run_resumes_under_one_charge(tmp_path):
    settings = {"noise": 3.0, "checkpoint": tmp_path / "run", "request": "one", **SETTINGS}
    data, ledger = Dataset(X, Y, (0, 1), size=60), make_ledger(tmp_path)
    first, again = (train(network(), data, ledger=ledger, **settings) for _ in range(2))
    assert same(first.module, again.module) and len(list(ledger.entries())) == 1
    with pytest.raises(ValueError, match=r"veracal\.data\.Dataset"):
        train(network(), (X, Y), ledger=ledger, **settings)


class PassingBy(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


@pytest.mark.parametrize(
    ("data", "changed", "match"),
    [
        ((X, Y), {"noise": None}, "noise=..., epsilon=... or both, got neither"),
        ((X, Y), {"sampler": 0.1}, "sampler of veracal.mechanisms.*got 0.1"),
        ((X, Y), {"ledger": "a.ledger"}, r"a Ledger of .*got 'a\.ledger'\. Use Ledger\(path\)"),
        (Dataset(X, Y, (0, 1), size=60), {"ledger": Budget(1.0)}, "a Ledger .*got Budget"),
        ((X, Y), {"noise": "much"}, "noise > 0 or a Schedule, got noise='much'"),
        ((X, Y), {"noise": float("nan")}, "noise > 0 .*noise=nan"),
        ((X, Y), {"noise": None, "epsilon": "1"}, "epsilon > 0, got epsilon='1'"),
        ((X, Y), {"noise": None, "epsilon": -1.0}, "epsilon > 0, got epsilon=-1"),
        ((X, Y), {"clip": "flat"}, r"clip > 0 or a clip rule, such as Flat.*clip='flat'"),
        ((X, Y), {"clip": Adam(0.1)}, "or a clip rule.*got clip=Adam"),
        ((X, Y), {"clip": -1.0}, "clip > 0 .*clip=-1.0"),
        ((X, Y), {"optimizer": "adam"}, "optimizer > 0 or an optimizer.*optimizer='adam'"),
        ((X, Y), {"optimizer": Flat(0.1)}, "or an optimizer.*got optimizer=Flat"),
        ((X, Y), {"optimizer": Adam}, "got the class Adam"),
        ((X, Y), {"weight_decay": None}, "weight_decay between .*got None"),
        ((X, Y), {"weight_decay": "0.1"}, "weight_decay between .*got '0.1'"),
        ((X, Y), {"classes": 2}, "a list of labels, found 2"),
        ((X, Y), {"classes": "01"}, "a list of labels, found '01'"),
        ((torch.tensor(X).bfloat16(), Y), {}, r"one dense numpy array.*float\(\)"),
        ((torch.tensor(X).to_sparse(), Y), {}, r"one dense numpy array.*to_dense\(\)"),
        (([[1.0, 2.0], [3.0]], [0, 1]), {}, "one dense numpy array.*of one shape"),
        ((X, Y), {"request": "one"}, "ledger for request='one'"),
        ((X, Y, Y), {}, "a pair .*got tuple of 3"),
        (X, {}, "a pair .*got ndarray"),
        (PassingBy(), {}, "with a length"),
        (Pairs(X[:0], Y[:0]), {}, "got a data set of none"),
        (Pairs([X[0], X[1, :3]], Y[:2]), {}, "of one shape"),
        (TensorDataset(torch.tensor(X)), {}, "got tuple of 1"),
        ((X[:, :3], Y), {}, "synthetic rows"),
        ((X, Y + 1), {}, "one of 0, 1"),
    ],
)
def test_invalid_records_are_rejected_before_a_charge(tmp_path, data, changed, match):
    ledger = make_ledger(tmp_path)
    payer = {} if "request" in changed else {"ledger": ledger}
    with pytest.raises(ValueError, match=match):
        train(network(), data, **{"noise": 3.0, **payer, **SETTINGS, **changed})
    assert not list(ledger.entries())


def test_a_ledger_is_not_charged_without_declared_facts(tmp_path):
    ledger, settings = make_ledger(tmp_path), {"noise": 3.0, "steps": 4, "gradients": "ghost"}
    with pytest.raises(ValueError, match="declare classes=... and the number .* declare size"):
        train(network(), (X, Y), ledger=ledger, **settings)
    with pytest.raises(ValueError, match="not private"):
        train(network(), (X, Y), ledger=ledger, **SETTINGS, noise=1.0, not_private="neither")
    holder = Curator(Dataset(X, Y, (0, 1), size=60), ledger)
    with pytest.raises(ValueError, match="with a Curator"):
        train(network(), holder, ledger=ledger, **settings)
    spoiled = np.where(X == X[3, 1], np.nan, X)
    with pytest.raises(ValueError, match="NaN"):
        train(network(), (spoiled, Y), ledger=ledger, noise=3.0, **SETTINGS)
    assert not list(ledger.entries())


def test_arrays_have_no_units_so_a_ledger_of_patients_is_rejected(tmp_path):
    patients = Budget(500.0, 1e-2, unit=Unit("patient", 5))
    ledger = open_ledger(tmp_path / "b.ledger", patients, kind="open")
    with pytest.raises(ValueError, match="unit ids"):
        train(network(), (X, Y), ledger=ledger, noise=3.0, unit=patients.unit, **SETTINGS)
    assert not list(ledger.entries())

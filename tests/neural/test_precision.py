"""Steps are computed in full precision, whatever the caller, a hook or a module has set."""

import threading
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.neural.fits import X, Y, model, network
from tests.neural.huggingface.tiny import bert, trainer
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.errors import PrecisionError
from veracal.ledger import open_ledger
from veracal.neural import precision as _precision
from veracal.neural import train
from veracal.queries import Curator

autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
saved = partial(torch.autograd.graph.saved_tensors_hooks, lambda one: one, lambda one: one)


class Replacing(TorchFunctionMode):
    """A mode that could replace any torch function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    """A mode that could replace any operation."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextmanager
def cuda():
    """Autocast for a device that is not available."""
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")


# ---------------------------------------------------------------- around a fit


@pytest.mark.parametrize(
    "inside",
    [
        autocast,
        cuda,
        torch.inference_mode,
        parametrize.cached,
        saved,
        Replacing,
        Dispatching,
    ],
    ids=["autocast", "cuda", "inference", "cached", "saved", "function mode", "dispatch mode"],
)
@pytest.mark.parametrize("way", ["network", "train"])
def test_a_fit_in_a_context_that_changes_arithmetic_is_rejected_before_a_charge(
    ledger, inside, way
):
    dataset = Dataset(X, Y, (0, 1), size=len(X))
    with torch.random.fork_rng(devices=[]):
        outputs = model(network(), size=len(X))

    def fit():
        if way == "network":
            Curator(dataset, ledger).fit(outputs)
        else:
            train(network(), dataset, noise=2.0, steps=1, ledger=ledger)

    with inside(), pytest.raises(ValueError, match=r"outside of .*Leave that context"):
        fit()
    assert not list(ledger.entries())


def test_a_device_context_is_allowed():
    with torch.device("cpu"):
        model(network()).fit(X, Y)


def test_the_trainer_rejects_autocast_before_a_charge(tmp_path, ledger):
    outputs = trainer(tmp_path, bert(), ledger=ledger, privacy={"noise_multiplier": 3.0})
    with autocast(), pytest.raises(ValueError, match=r"torch\.autocast\('cpu'\)"):
        outputs.train()
    assert not list(ledger.entries())


def test_the_trainer_rejects_mixed_precision_of_accelerate(tmp_path, monkeypatch):
    outputs = trainer(tmp_path, bert())
    monkeypatch.setattr(type(outputs.accelerator), "mixed_precision", "bf16")
    with pytest.raises(ValueError, match="ACCELERATE_MIXED_PRECISION"):
        outputs.train()


# ---------------------------------------------------------------- inside a module


class Halved(nn.Module):
    """Computes its hidden layer in another type."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.head, self.dtype = nn.Linear(4, 8), nn.Linear(8, 2), dtype

    def forward(self, x):
        return self.head(self.first(x).to(self.dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_half_precision_inside_a_module_is_rejected_before_a_charge(ledger, dtype):
    dataset = Dataset(X, Y, (0, 1), size=len(X))
    with pytest.raises(ValueError, match=f"float32 or float64, got {dtype}"):
        Curator(dataset, ledger).fit(model(Halved(dtype), size=len(X)))
    assert not list(ledger.entries())


def test_frozen_half_precision_weights_are_rejected_where_they_are_used():
    frozen = nn.Linear(4, 4).requires_grad_(False).bfloat16()

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.head = frozen, nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.frozen(x.bfloat16()).float())

    class Stored(Mixed):
        def forward(self, x):
            weight, bias = self.frozen.weight.float(), self.frozen.bias.float()
            return self.head(nn.functional.linear(x, weight, bias))

    with pytest.raises(ValueError, match=r"got torch\.bfloat16"):
        model(Mixed(), gradients=None).fit(X, Y)
    model(Stored(), gradients=None).fit(X, Y)


def test_a_half_precision_loss_is_rejected():
    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.bfloat16(), targets, reduction="none")

    with pytest.raises(ValueError, match=r"got torch\.bfloat16"):
        model(network(), loss=loss).fit(X, Y)


# ---------------------------------------------------------------- the state of the caller


@contextmanager
def precision(value):
    """Float32 products in another precision."""
    set_ = torch._C._set_fp32_precision_setter
    set_("generic", "all", value)
    set_("mkldnn", "conv", value)
    try:
        yield
    finally:
        set_("generic", "all", "none")
        set_("mkldnn", "conv", "none")


def read():
    return [
        torch._C._get_fp32_precision_getter(*one)
        for one in (*_precision._PARENTS[:2], *_precision._CHILDREN[:3])
    ]


@pytest.mark.parametrize("value", ["bf16", "tf32"])
def test_the_precision_of_products_is_set_inside_and_restored(value):
    with precision(value):
        before = read()
        assert before == [value] * 5
        with _precision.full_precision():
            assert read()[2:] == ["ieee"] * 3
        assert read() == before
    assert read() == ["none"] * 5  # an unset value is unset again


def test_the_state_is_restored_after_an_error_and_by_the_last_of_several_threads():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with _precision.full_precision():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=other)

    @_precision.full_precision()
    def fail():
        assert not torch.is_autocast_enabled("cpu")
        thread.start()
        assert inside.wait(120)
        assert torch.is_grad_enabled()
        raise KeyError

    with precision("bf16"), autocast(), torch.no_grad():
        before = read()
        with pytest.raises(KeyError):
            fail()
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        assert read()[2:] == ["ieee"] * 3  # the other thread is still inside
        leave.set()
        thread.join(120)
        assert read() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16"),
        lambda: torch.set_default_dtype(torch.bfloat16),
    ],
    ids=["autocast", "products", "default type"],
)
def test_lowered_precision_inside_is_detected_at_the_end(change):
    noticed = pytest.raises(PrecisionError, match="full precision during a step")
    try:
        with noticed, _precision.full_precision():
            change()
        assert not torch.is_autocast_enabled("cpu")
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
        torch.set_default_dtype(torch.float32)


def test_a_hook_that_lowers_precision_changes_nothing():
    def fitted(enter):
        with ExitStack() as stack:

            def watch(fitting, step):
                if step.number == 0:
                    stack.enter_context(enter())

            outputs = model(network(), random_state=0, on_step=watch, steps=3).fit(X, Y)
        return outputs.logits(X)

    for lower in (autocast, partial(precision, "bf16"), torch.inference_mode):
        np.testing.assert_array_equal(fitted(lower), fitted(ExitStack))


def test_a_hook_that_leaves_saved_tensors_hooks_is_rejected():
    with ExitStack() as stack, pytest.raises(PrecisionError, match="saved_tensors_hooks"):
        model(
            network(), steps=3, on_step=lambda *step: stack.enter_context(saved()) and None
        ).fit(X, Y)


def test_scores_are_the_same_under_autocast():
    outputs = model(network()).fit(X, Y)
    with autocast():
        under = outputs.logits(X)
    np.testing.assert_array_equal(under, outputs.logits(X))


def test_rounded_products_are_detected(monkeypatch):
    _precision.check_products()
    conv2d = torch.conv2d
    monkeypatch.setattr(torch, "conv2d", lambda *args: conv2d(*args).bfloat16().float())
    with pytest.raises(ValueError, match="convolutions in full float32"):
        _precision.check_products()

"""The contribution of a record to a sum is computed in full precision.

A full fit of one or two steps is repeated with the same randomness for two hundred records that
pull one way, and for the same without the last one, which pulls the other way. The noise
cancels in the difference of the noisy sums, which may not exceed the clip bound. Meanwhile
PyTorch's precision is lowered: around the fit, by a hook between two steps, by the function
that prepares rows, and inside the module; each fit must respect the bound or be rejected. In
bfloat16 the sums of the old code moved by 1.19 (ghost), 1.13 (hooks) and 1.12 (functional)
times the bound. Not every processor computes float32 products with fewer digits on request, so
for these settings the gate checks the settings that the module sees while it is called.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from assurance.networks import DEEP, SUMS, Patches
from veracal.data import Dataset
from veracal.errors import PrecisionError
from veracal.neural import PrivateNetwork
from veracal.neural import precision as _precision
from veracal.neural.examples import as_tensor
from veracal.neural.gradient_sums import NetworkSums

NAME = "network_precision"
SECONDS = 15
ROWS, WIDTH, WAYS = 200, 16, ("ghost", "hooks", "functional")
PRECISION = "veracal.neural.precision."
GRADIENTS = DEEP + "gradients."
autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


# ---------------------------------------------------------------- mutants


def cast_up(values: Tensor, layer: nn.Module) -> Tensor:
    """Accept half-precision results as float32."""
    return values.float() if values.dtype.itemsize < 4 else values


@contextmanager
def keep_process_settings() -> Iterator[None]:
    """Leave the settings of the process as they are."""
    yield


def unchecked() -> Patches:
    """Accept half precision wherever it is found."""
    ways = {GRADIENTS + "engines.check_dtype": mock.Mock()}
    trials = ("module_checks", "gradients.choice")
    free = {f"{DEEP}{name}.refuse_half_precision": nullcontext for name in trials}
    return {GRADIENTS + "engines._check_layer_dtype": cast_up, **ways, **free}


def bare(name: str) -> Any:
    """A method of the sums without the context around it."""
    return getattr(NetworkSums, name).__wrapped__


def unguarded() -> Patches:
    """Set nothing during a step."""
    return {SUMS + name: bare(name) for name in ("__call__", "_sum_blocks")}


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "autocast is ignored": {
        "veracal.neural.precision._autocast_devices": lambda: [],
        **unchecked(),
    },
    "precision is checked when a fit begins, not in its steps": {**unguarded(), **unchecked()},
    "the precision of float32 products is ignored": {
        "veracal.neural.precision._process_precision": keep_process_settings
    },
    "threads keep their own precision": {SUMS + "_sum_blocks": bare("_sum_blocks")},
    "half precision inside a module is accepted": unchecked(),
}


# ---------------------------------------------------------------- what lowers precision


class Halved(nn.Module):
    """Uses autocast inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """Logits, cast to float32."""
        with autocast():
            return self.inner(x).float()


class Seeing(nn.Module):
    """Records the settings under which it is called."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, list[dict[str, object]]()

    def __deepcopy__(self, memo: Any) -> "Seeing":
        twin = Seeing(copy.deepcopy(self.inner, memo))
        twin.seen = self.seen  # one list for all copies
        return twin

    def forward(self, x: Tensor) -> Any:
        """Logits."""
        if self.training:  # it is scored in inference mode
            self.seen.append(settings())
        return self.inner(x)


def settings() -> dict[str, object]:
    """All settings that determine the precision of a computation."""
    read = torch._C._get_fp32_precision_getter
    reduced = {
        f"{name} of mkldnn": read("mkldnn", name) not in ("none", "ieee")
        for name in ("matmul", "conv", "rnn")
    }
    return {
        **reduced,
        "autocast": torch._C._is_any_autocast_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "cached weights": bool(parametrize._cache_enabled),
        "numbers in half precision": torch.get_default_dtype().itemsize < 4,
    }


@contextmanager
def medium() -> Iterator[None]:
    """Float32 products in bfloat16, by the older of two interfaces."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")


@contextmanager
def everywhere(precision: str) -> Iterator[None]:
    """Float32 products in another precision, by the newer interface."""
    set_, names = torch._C._set_fp32_precision_setter, ("generic", "mkldnn")
    for name in names:
        set_(name, "all", precision)
    try:
        yield
    finally:
        for name in names:
            set_(name, "all", "none")


@contextmanager
def halves() -> Iterator[None]:
    """New tensors in bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


BETWEEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch.autocast": autocast,
    "torch.inference_mode": torch.inference_mode,
    "torch.no_grad": torch.no_grad,
    "parametrize.cached": parametrize.cached,
    "set_float32_matmul_precision": medium,
    "fp32_precision='bf16'": partial(everywhere, "bf16"),
    "fp32_precision='tf32'": partial(everywhere, "tf32"),
    "set_default_dtype": halves,
}


# ---------------------------------------------------------------- fits


def network() -> nn.Module:
    """A small network with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))


def records(n: int) -> Dataset:
    """The first n records."""
    row = np.random.default_rng(6).standard_normal((1, WIDTH)).astype(np.float32)
    labels = np.zeros(ROWS, int)
    labels[-1] = 1
    return Dataset(np.repeat(row, n, 0), labels[:n], (0, 1))


def sums_of(n: int, way: str, module: nn.Module, **more: Any) -> list[Any]:
    """The noisy sums of a fit to the first n records, all of them in every step."""
    sums: list[Any] = []
    act = more.pop("between", None)

    def watch(model: Any, step: Any) -> None:
        sums.append(step.noisy_sum.copy())
        if act is not None and step.number == 0:
            act()

    model = PrivateNetwork(
        module,
        epsilon=None,
        noise_multiplier=1e-6,
        sampling_rate=1.0,
        optimizer=1e-6,
        gradients=way,  # type: ignore[arg-type]
        size=ROWS,
        on_step=watch,
        **{"steps": 1, "block": 256, "random_state": 0, **more},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit_records(records(n))
    return sums


def moved(fits: Callable[[int], list[Any]]) -> float:
    """Change of the last sum by one record, in clip bounds; 0 if the fit is rejected."""
    try:
        last = [fits(n)[-1] for n in (ROWS, ROWS - 1)]
    except (ValueError, PrecisionError):
        return 0.0
    return float(np.linalg.norm(last[0] - last[1]))


def around(way: str) -> float:
    """Autocast around the whole fit."""

    def fits(n: int) -> list[Any]:
        with autocast():
            return sums_of(n, way, network())

    return moved(fits)


def between(way: str) -> float:
    """A hook that turns autocast on between two steps."""

    def fits(n: int) -> list[Any]:
        with ExitStack() as stack:
            act = partial(stack.enter_context, autocast())
            return sums_of(n, way, network(), between=act, steps=2)

    return moved(fits)


def leave_autocast_on(way: str) -> float:
    """A ``prepare`` that turns autocast on for records, and leaves it on."""

    try:
        return moved(lambda n: sums_of(n, way, network(), prepare=leave_on))
    finally:
        torch.set_autocast_enabled("cpu", False)


def leave_on(rows: Any) -> Tensor:
    """Rows as a tensor; those that are records turn autocast on."""
    if len(rows) > 1 and (rows == rows[0]).all():
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)
    return as_tensor(rows)


def stops_in_threads() -> bool:
    """Whether a fit with two threads detects autocast in one of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sums_of(ROWS, "ghost", network(), prepare=leave_on, block=64, random_state=None)
    except PrecisionError:
        return True
    finally:
        torch.set_num_threads(before)
    return False


def accepted(way: str) -> bool:
    """Whether a module with half precision inside is trained."""
    try:
        sums_of(ROWS, way, Halved(network()))
    except ValueError:
        return False
    return True


def check_steps(name: str) -> None:
    """Lower the precision between two steps, and check it in the second."""
    module, here = Seeing(network()), list[dict[str, object]]()
    with ExitStack() as stack:

        def act() -> None:
            stack.enter_context(BETWEEN[name]())
            module.seen.clear()
            here.append(settings())

        sums_of(ROWS, "ghost", module, between=act, steps=2)
        here.append(settings())
    assert module.seen, "the module was not called"
    for one in module.seen:
        reduced = [what for what, active in one.items() if active]
        assert not reduced, f"{name} between two steps: {reduced[0]} inside a step"
    assert here[0] == here[1], f"{name}: a step has changed the settings of its caller"


def run(subject: Patches, *, long: bool) -> str:
    """Lower the precision in every way, and measure."""
    worst = 0.0
    with ExitStack() as stack:
        for name, instead in subject.items():
            stack.enter_context(mock.patch(name, instead))
        exact = moved(lambda n: sums_of(n, "ghost", network()))
        assert exact > 0.9, f"the record does not come close to the bound: {exact:.3f}"
        for lower, way in itertools.product((around, between, leave_autocast_on), WAYS):
            worst = max(worst, lower(way))
            assert worst <= 1, f"{lower.__name__}, {way}: one record moves {worst:.4f} bounds"
        for way in WAYS:
            assert not accepted(way), f"{way} trains a module that computes in bfloat16"
        for name in BETWEEN:
            check_steps(name)
        assert stops_in_threads(), "a thread computes under autocast"
    return f"at most {max(exact, worst):.4f} bounds, {len(BETWEEN)} ways to lower precision"


assert _precision._autocast_devices() == []

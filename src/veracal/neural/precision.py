"""One arithmetic for everything that PyTorch computes from records.

The clip leaves room for the rounding of float32 (a unit of 2^-24). Under bfloat16, whose unit
is 2^-8, one record moves a sum of clipped gradients by more than the clip bound: 1.28 times the
bound was measured. A caller, a callback, the module itself or another thread can lower the
precision, so it is set here around every step and checked at its end, not only when a fit
begins.

Guarantees
----------
Inside :func:`full_precision`, autocast is off for every device type in this thread, float32
products are computed in float32 by every backend, new tensors are not in half precision,
weights are not cached (``torch.nn.utils.parametrize.cached``) and gradients can be taken. The
state of the caller returns at the end. What cannot be switched off is refused: hooks on saved
tensors, and modes that replace PyTorch's functions. If something changed the state inside,
:class:`~veracal.errors.PrecisionError` is raised before the result can be used.

Notes
-----
``torch.set_flush_denormal`` cannot be read. It replaces numbers below 1.2e-38 by zero, which
shortens a gradient by less than that, and is covered by the slack. Flags for products *of* half
precision (``allow_fp16_reduced_precision_reduction``) have no effect: half precision is refused
by :func:`refuse_half_precision`. ``torch.use_deterministic_algorithms`` changes no precision.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from veracal._checks import extra
from veracal.errors import PrecisionError

# Backends and their operations; the setting of a parent applies where a child has "none".
_PARENTS = (("generic", "all"), ("mkldnn", "all"), ("cuda", "all"))
_CHILDREN = tuple(
    (backend, operation)
    for backend in ("mkldnn", "cuda")
    for operation in ("matmul", "conv", "rnn")
)
_FULL = ("none", "ieee")
_LEAST_BYTES = 4  # of a number: those of float32
_PROBED = 64
_lock = threading.RLock()
_holders = 0
_found: dict[str, Any] = {}


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in full float32 inside, and restore the caller's state afterwards.

    Can be nested, and used by several threads at once.
    """
    torch = extra("torch", "torch")
    with _process_precision(torch), thread_precision():
        yield


@contextmanager
def thread_precision() -> Iterator[None]:
    """The part of :func:`full_precision` that every thread has for itself."""
    torch = extra("torch", "torch")
    active = find_fixed_context()
    if active is not None:
        raise PrecisionError(_refusal_message(active))
    devices = _autocast_devices(torch)
    with torch.inference_mode(False):  # which also turns gradients on
        try:
            for device in devices:
                torch.set_autocast_enabled(device, False)
            yield
            left = _autocast_devices(torch)
            if left:
                raise PrecisionError(
                    f"Expected full precision during a step, got torch.autocast({left[0]!r}), "
                    "which was turned on inside. Remove it from the module, prepare, augment "
                    "and loss."
                )
        finally:
            for device in {*devices, *_autocast_devices(torch)}:
                torch.set_autocast_enabled(device, device in devices)


@contextmanager
def _process_precision(torch: Any) -> Iterator[None]:
    """The part that all threads share: the first to enter sets it, the last restores it."""
    global _holders
    with _lock:
        if not _holders:
            _found.clear()
            _found.update(_set_full_precision(torch))
        _holders += 1
    try:
        yield
        changed = _find_reduced_setting(torch)
        if changed is not None:
            raise PrecisionError(
                f"Expected full precision during a step, got {changed}, which was set inside, "
                "by the module or by another thread. Remove it; nothing of this step was used."
            )
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                _restore_precision(torch, _found)


def find_reduced_context() -> str | None:
    """A context in which precision is reduced or gradients cannot be taken; None if in none.

    Settings that :func:`full_precision` overrides, such as the precision of float32 products,
    are not reported.
    """
    torch = extra("torch", "torch")
    devices = _autocast_devices(torch)
    if devices:
        return f"torch.autocast({devices[0]!r})"
    if torch.is_inference_mode_enabled():
        return "torch.inference_mode()"
    if torch.nn.utils.parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached()"
    return find_fixed_context()


def find_fixed_context() -> str | None:
    """A context of this thread that may change arithmetic and cannot be switched off."""
    torch = extra("torch", "torch")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "torch.autograd.graph.saved_tensors_hooks"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode"
    if torch._C._len_torch_function_stack():
        overrides, device = torch.overrides, torch.utils._device.DeviceContext
        for mode in overrides._get_current_function_mode_stack():
            if not isinstance(mode, device):  # torch.device("cpu") as a context
                return f"the TorchFunctionMode {type(mode).__name__}"
    return None


def refuse_half_precision() -> AbstractContextManager[object]:
    """A context in which an operation with a result in half precision is an error.

    It sees every operation, forward and backward, of plain PyTorch code. Since it slows all of
    them down, it is used on synthetic inputs before anything is charged.

    Raises
    ------
    ValueError
        Inside; names the operation and the type.
    """
    torch = extra("torch", "torch")
    base = extra("torch.utils._python_dispatch", "torch").TorchDispatchMode

    class Refusing(base):  # type: ignore[misc, valid-type]
        """Looks at the result of every operation."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = function(*args, **(kwargs or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, torch.Tensor):
                    check_dtype(one, str(function))
            return made

    mode: AbstractContextManager[object] = Refusing()
    return mode


def check_dtype(values: Any, made_by: str) -> None:
    """Raise a ``ValueError`` for numbers of fewer digits than float32 has."""
    kind = values.dtype
    real = kind.is_floating_point or kind.is_complex
    least = _LEAST_BYTES * (2 if kind.is_complex else 1)
    if real and kind.itemsize < least:
        raise ValueError(
            f"Expected arithmetic in float32 or float64, got {kind} in {made_by}. Roundings of "
            "that size would let one record move a sum by more than the clip bound. Use "
            "module.float(), and no autocast(), half() or bfloat16() inside the module."
        )


def _refusal_message(active: str) -> str:
    """Why a step is not taken."""
    return (
        f"Expected a step outside of {active}, which may change what is computed, got one "
        "inside. Leave its block."
    )


def _autocast_devices(torch: Any) -> list[str]:
    """Device types for which autocast is on in this thread."""
    if not torch._C._is_any_autocast_enabled():
        return []
    found = []
    for device in torch._C._autocast_supported_devices():
        try:
            if torch.is_autocast_enabled(device):
                found.append(device)
        except RuntimeError:  # a device type that this build does not have
            continue
    return found


def _operations(torch: Any) -> tuple[tuple[str, str], ...]:
    """Operations of the backends that are there."""
    backends = ("mkldnn", "cuda") if torch.cuda.is_available() else ("mkldnn",)
    return tuple(one for one in _CHILDREN if one[0] in backends)


def _find_reduced_setting(torch: Any) -> str | None:
    """A setting shared by all threads under which numbers have fewer digits, or None."""
    for backend, operation in _operations(torch):
        precision = torch._C._get_fp32_precision_getter(backend, operation)
        if precision not in _FULL:
            return f"torch.backends.{backend}.{operation}.fp32_precision={precision!r}"
    if torch.get_default_dtype().itemsize < _LEAST_BYTES:
        return f"torch.set_default_dtype({torch.get_default_dtype()})"
    if torch.nn.utils.parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached()"
    return None


def _set_full_precision(torch: Any) -> dict[str, Any]:
    """Set full precision for all threads; return what has to be restored, by its name."""
    if _find_reduced_setting(torch) is None:
        return {}
    getter, setter = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    own: dict[tuple[str, str], str] = {}
    for one in _PARENTS:  # a child without a setting of its own shows its parent's
        own[one] = getter(*one)
        setter(*one, "none")
    for one in _operations(torch):
        own[one] = getter(*one)
        setter(*one, "ieee")
    found = {"precision": own, "dtype": torch.get_default_dtype()}
    if found["dtype"].itemsize < _LEAST_BYTES:
        torch.set_default_dtype(torch.float32)
    parametrize = torch.nn.utils.parametrize
    found["cached"], parametrize._cache_enabled = parametrize._cache_enabled, 0
    return found


def _restore_precision(torch: Any, found: dict[str, Any]) -> None:
    """Undo :func:`_set`."""
    if not found:
        return
    for one, precision in found["precision"].items():
        torch._C._set_fp32_precision_setter(*one, precision)
    torch.set_default_dtype(found["dtype"])
    torch.nn.utils.parametrize._cache_enabled = found["cached"]
    found.clear()


@full_precision()
def check_products() -> None:
    """Raise a ``ValueError`` if float32 products are rounded although no setting says so.

    Libraries below PyTorch read the environment (``ONEDNN_DEFAULT_FPMATH_MODE``,
    ``MKL_BLAS_COMPUTE_MODE``), of which PyTorch does not know.
    """
    torch = extra("torch", "torch")
    exact = 1 + 2.0**-12  # TF32 has 10 bits after the point, bfloat16 has 7
    one = torch.eye(_PROBED, dtype=torch.float32)
    rows = exact * one
    image = rows.view(1, _PROBED, 8, 8)
    products = {
        "matrix products": rows @ one,
        "convolutions": torch.conv2d(image, one.view(_PROBED, _PROBED, 1, 1)).view_as(rows),
    }
    for name, made in products.items():
        if not bool((made == rows).all()):
            raise ValueError(
                f"Expected {name} in full float32, got some that are rounded. Unset "
                "ONEDNN_DEFAULT_FPMATH_MODE and MKL_BLAS_COMPUTE_MODE in the environment."
            )

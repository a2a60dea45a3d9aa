"""Full float32 precision for everything that PyTorch computes from records.

The clip reserves slack for the rounding of float32 (unit roundoff 2^-24). Under bfloat16, with
unit roundoff 2^-8, one record moves a sum of clipped gradients by more than the clip bound:
1.28 times the bound was measured. A caller, a callback, the module itself or another thread can
lower the precision, so it is set here around every step and checked at its end, not only when a
fit begins.

Guarantees
----------
Inside :func:`full_precision`, autocast is off for every device type in this thread, float32
products are computed in float32 by every backend, new tensors are not in half precision,
weights are not cached (``torch.nn.utils.parametrize.cached``) and gradients can be computed.
The state of the caller is restored at the end. Contexts that cannot be switched off are
rejected: hooks on saved tensors, and modes that replace PyTorch's functions. If something
changed the state inside, :class:`~veracal.errors.PrecisionError` is raised before the result
can be used.

Notes
-----
``torch.set_flush_denormal`` cannot be read. It replaces numbers below 1.2e-38 by zero, which
shortens a gradient by less than that, and is covered by the slack. Flags for products *of* half
precision (``allow_fp16_reduced_precision_reduction``) have no effect: half precision is
rejected by :func:`refuse_half_precision`. ``torch.use_deterministic_algorithms`` changes no
precision.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from veracal.errors import PrecisionError

# Backends and their operations; a child with the setting "none" uses its parent's.
_PARENTS = (("generic", "all"), ("mkldnn", "all"), ("cuda", "all"))
_CHILDREN = tuple(
    (backend, operation)
    for backend in ("mkldnn", "cuda")
    for operation in ("matmul", "conv", "rnn")
)
_FULL = ("none", "ieee")
_LEAST_BYTES = 4  # bytes of a float32 number
_PROBED = 64
_lock = threading.RLock()
_active_contexts = 0
_saved_settings: dict[str, Any] = {}  # of the caller; empty if they need no change


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in full float32 inside, and restore the caller's state afterwards.

    Contexts can be nested, and used by several threads at once.
    """
    with _process_precision(), thread_precision():
        yield


@contextmanager
def thread_precision() -> Iterator[None]:
    """The part of :func:`full_precision` that each thread sets for itself."""
    active = find_fixed_context()
    if active is not None:
        raise PrecisionError(
            f"Expected a step outside of {active}, which may change what is computed, got one "
            "inside. Leave that context first."
        )
    devices = _autocast_devices()
    with torch.inference_mode(False):  # which also turns gradients on
        try:
            for device in devices:
                torch.set_autocast_enabled(device, False)
            yield
            left = _autocast_devices()
            if left:
                raise PrecisionError(
                    f"Expected full precision during a step, got torch.autocast({left[0]!r}), "
                    "which was turned on inside. Remove it from the module, prepare, augment "
                    "and loss."
                )
        finally:
            for device in {*devices, *_autocast_devices()}:
                torch.set_autocast_enabled(device, device in devices)


@contextmanager
def _process_precision() -> Iterator[None]:
    """The part that all threads share: the first to enter sets it, the last restores it."""
    global _active_contexts
    getter: Any = torch._C._get_fp32_precision_getter
    setter: Any = torch._C._set_fp32_precision_setter
    with _lock:
        if not _active_contexts and _find_reduced_setting() is not None:
            previous: dict[tuple[str, str], str] = {}
            # A child without its own setting reports its parent's.
            for names, value in ((_PARENTS, "none"), (_operations(), "ieee")):
                for one in names:
                    previous[one] = getter(*one)
                    setter(*one, value)
            default = torch.get_default_dtype()
            _saved_settings.update(
                precision=previous, dtype=default, cached=parametrize._cache_enabled
            )
            if default.itemsize < _LEAST_BYTES:
                torch.set_default_dtype(torch.float32)
            parametrize._cache_enabled = 0
        _active_contexts += 1
    try:
        yield
        changed = _find_reduced_setting()
        if changed is not None:
            raise PrecisionError(
                f"Expected full precision during a step, got {changed}, which was set inside, "
                "by the module or by another thread. Remove it; nothing of this step was used."
            )
    finally:
        with _lock:
            _active_contexts -= 1
            if not _active_contexts and _saved_settings:
                for one, precision in _saved_settings["precision"].items():
                    setter(*one, precision)
                torch.set_default_dtype(_saved_settings["dtype"])
                parametrize._cache_enabled = _saved_settings["cached"]
                _saved_settings.clear()


def find_reduced_context() -> str | None:
    """Name a context with reduced precision or without gradients; None outside of any.

    Settings that :func:`full_precision` overrides, such as the precision of float32 products,
    are not reported.
    """
    devices = _autocast_devices()
    if devices:
        return f"torch.autocast({devices[0]!r})"
    if torch.is_inference_mode_enabled():
        return "torch.inference_mode()"
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached()"
    return find_fixed_context()


def find_fixed_context() -> str | None:
    """Name an active context that may change arithmetic and cannot be switched off."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "torch.autograd.graph.saved_tensors_hooks"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode"
    if torch._C._len_torch_function_stack():
        for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            if not isinstance(mode, DeviceContext):  # torch.device("cpu") as a context
                return f"the TorchFunctionMode {type(mode).__name__}"
    return None


def refuse_half_precision() -> AbstractContextManager[object]:
    """Return a context in which an operation with a half-precision result is an error.

    It checks every operation, forward and backward, of plain PyTorch code. Since this slows all
    of them down, it is used on synthetic inputs before anything is charged.

    Raises
    ------
    ValueError
        Inside; names the operation and the type.
    """

    class Refusing(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Looks at the result of every operation."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            for one in result if isinstance(result, tuple | list) else (result,):
                if isinstance(one, torch.Tensor):
                    check_dtype(one, str(function))
            return result

    mode: AbstractContextManager[object] = Refusing()  # type: ignore[no-untyped-call]
    return mode


def check_dtype(values: Any, operation_name: str) -> None:
    """Raise a ``ValueError`` for values of lower precision than float32."""
    kind = values.dtype
    real = kind.is_floating_point or kind.is_complex
    least = _LEAST_BYTES * (2 if kind.is_complex else 1)
    if real and kind.itemsize < least:
        raise ValueError(
            f"Expected arithmetic in float32 or float64, got {kind} in {operation_name}. With "
            "such rounding one record could move a sum by more than the clip bound. Use "
            "module.float(), and no autocast(), half() or bfloat16() inside the module."
        )


def _autocast_devices() -> list[str]:
    """Device types for which autocast is on in this thread."""
    if not torch._C._is_any_autocast_enabled():
        return []
    enabled = []
    for device in torch._C._autocast_supported_devices():
        try:
            if torch.is_autocast_enabled(device):
                enabled.append(device)
        except RuntimeError:  # a device type that this build does not support
            continue
    return enabled


def _operations() -> tuple[tuple[str, str], ...]:
    """Operations of the available backends."""
    backends = ("mkldnn", "cuda") if torch.cuda.is_available() else ("mkldnn",)
    return tuple(one for one in _CHILDREN if one[0] in backends)


def _find_reduced_setting() -> str | None:
    """Name a process-wide setting of reduced precision, or None."""
    for backend, operation in _operations():
        precision = torch._C._get_fp32_precision_getter(backend, operation)
        if precision not in _FULL:
            return f"torch.backends.{backend}.{operation}.fp32_precision={precision!r}"
    if torch.get_default_dtype().itemsize < _LEAST_BYTES:
        return f"torch.set_default_dtype({torch.get_default_dtype()})"
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached()"
    return None


@full_precision()
def check_products() -> None:
    """Raise a ``ValueError`` if float32 products are rounded although no setting says so.

    Libraries below PyTorch read the environment (``ONEDNN_DEFAULT_FPMATH_MODE``,
    ``MKL_BLAS_COMPUTE_MODE``), which PyTorch does not report.
    """
    factor = 1 + 2.0**-12  # TF32 has 10 bits after the point, bfloat16 has 7
    identity = torch.eye(_PROBED, dtype=torch.float32)
    matrix = factor * identity
    image = matrix.view(1, _PROBED, 8, 8)
    convolved = torch.conv2d(image, identity.view(_PROBED, _PROBED, 1, 1))
    products = {"matrix products": matrix @ identity, "convolutions": convolved}
    for name, product in products.items():
        if not bool((product.view_as(matrix) == matrix).all()):
            raise ValueError(
                f"Expected {name} in full float32, got rounded ones. Unset "
                "ONEDNN_DEFAULT_FPMATH_MODE and MKL_BLAS_COMPUTE_MODE in the environment."
            )

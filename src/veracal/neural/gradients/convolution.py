"""Memory that is used again from block to block.

Convolutions as products of matrices, by what each place of the output has seen.

Gradients of single examples need these patches anyway. For pictures of few channels a product
with them is also the faster forward pass, and its outputs have their channels last in memory,
in which pooling is ten times faster. Written by hand because ``torch.nn.functional.unfold``
copies single numbers, where here all channels of a row of the kernel are copied at once.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNED = 64  # bytes: a line of the cache, and no number crosses one
_SPARE = 1.1  # blocks are not all of one size


class ScratchBuffer:
    """Tensors for as long as one block takes.

    A tensor of some megabytes comes from the system as pages that are filled with zeros when
    they are touched first, which takes longer than to write what belongs there. These are
    given out one after the other from one piece of memory, and all of them again for the next
    block. What does not fit comes from the system, and the piece is larger the next time.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self) -> None:
        """Take all of it back: nobody may use what was given out before."""
        if self._used > len(self._bytes):
            self._bytes = torch.empty(0, dtype=torch.uint8)  # first, so that both never stand
            self._bytes = torch.empty(int(_SPARE * self._used), dtype=torch.uint8)
        self._used = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor in which nothing in particular is written."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._bytes):
            return torch.empty(shape, dtype=dtype)
        return self._bytes[start : start + size].view(dtype).view(shape)


MAX_CHANNELS = 4  # channels up to which a product is faster than torch's convolution


def extract_patches(
    module: nn.Conv1d | nn.Conv2d, x: Tensor, room: ScratchBuffer
) -> tuple[Tensor, ...]:
    """What each place of the output has seen, in parts of shape (n, groups, places, d_k).

    Side by side, the parts are whole patches, whose numbers are ordered by row, column and
    channel of the kernel; see :func:`in_order`. Patches that lie above each other share rows
    of the picture. Each part is a view of one tensor in which such rows are written once, so
    that a kernel of k rows takes about a k-th of the room.
    """
    size, stride, padding, dilation = (
        tuple(getattr(module, name))
        for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if x.ndim == 3:  # one dimension is two, of which the first has length 1
        x = x[:, :, None]
        size, stride, dilation = (1, *size), (1, *stride), (1, *dilation)
        padding = (0, *padding)
    down, across = padding
    rows = x.permute(0, 2, 3, 1)
    if down or across:
        rows = functional.pad(rows, (0, 0, across, across, down, down))
    rows = rows.contiguous()
    sides = zip(rows.shape[1:3], size, stride, dilation, strict=True)
    high, wide = (
        (side - step * (kernel - 1) - 1) // jump + 1 for side, kernel, jump, step in sides
    )
    # A part has as many rows of the kernel as the kernel is moved down by. Of groups, or rows
    # that do not follow each other, all are one part.
    shared = module.groups == 1 and dilation[0] == 1 and size[0] % stride[0] == 0
    count, of_kernel = (size[0] // stride[0], stride[0]) if shared else (1, size[0])
    (n, height, width, channels), groups = rows.shape, module.groups
    line, each = width * channels, channels // groups
    lines = high + count - 1
    shape = (n, groups, lines, wide, of_kernel, size[1], each)
    step = (each, line * stride[0], channels * stride[1], line * dilation[0])
    strides = (height * line, *step, channels * dilation[1], 1)
    written = room.empty(*shape, dtype=x.dtype).copy_(rows.as_strided(shape, strides))
    written = written.view(n, groups, lines * wide, -1)
    return tuple(written[:, :, k * wide : (k + high) * wide] for k in range(count))


def to_weight_order(module: nn.Conv1d | nn.Conv2d, weights: Tensor) -> Tensor:
    """Numbers by output, row, column and channel, of shape (..., outputs, d), as weights.

    Returns
    -------
    tensor of shape (..., *module.weight.shape)
    """
    outputs, channels, *size = module.weight.shape
    shaped = weights.reshape(*weights.shape[:-2], outputs, *size, channels)
    return shaped.movedim(-1, -1 - len(size))


def flatten_weights(module: nn.Conv2d) -> Tensor:
    """The weights by output, row, column and channel, of shape (outputs, d)."""
    return module.weight.detach().permute(0, 2, 3, 1).reshape(module.out_channels, -1)


def uses_patch_product(module: nn.Module) -> bool:
    """Whether the forward pass of a layer is faster as a product with its patches."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels <= MAX_CHANNELS
        and module.groups == 1
        and "forward" not in vars(module)
    )


class PatchConvolution(torch.autograd.Function):
    """A convolution by its patches; gradients go to the inputs alone.

    The weights are an argument so that the output belongs to a graph where inputs do not.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, module: nn.Conv2d, *patches: Tensor
    ) -> Tensor:
        """Outputs of shape (n, outputs, height, width), channels last in memory."""
        ctx.save_for_backward(x)
        ctx.module = module
        n, _, places, d = patches[0].shape
        shape = (n, module.out_channels, *_output_sides(module, x))
        made = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        # Into its place, and not as a view of another tensor: layers may write over it.
        rows = made.permute(0, 2, 3, 1).view(n, places, -1)
        for k, (part, some) in enumerate(
            zip(patches, torch.split(flatten_weights(module).mT, d), strict=True)
        ):
            rows.baddbmm_(part[:, 0], some.expand(n, -1, -1), beta=float(k > 0))
        if module.bias is not None:
            rows += module.bias.detach()
        return made

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients at the inputs, as torch's convolution takes them."""
        (x,), module = ctx.saved_tensors, ctx.module
        others = (None,) * (len(ctx.needs_input_grad) - 1)
        if not ctx.needs_input_grad[0]:
            return None, *others
        return convolution_backward(module, slopes[0], x, inputs=True), *others


def convolution_backward(module: Any, slopes: Tensor, x: Tensor, *, inputs: bool) -> Tensor:
    """Gradients of a convolution at its inputs, or else at its weights, as torch takes them."""
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        slopes,
        x,
        module.weight.detach(),
        None,
        module.stride,
        module.padding,
        module.dilation,
        False,
        [0] * (x.ndim - 2),
        module.groups,
        [inputs, not inputs, False],
    )
    return found[0 if inputs else 1]


def convolve_patches(module: nn.Conv2d, x: Tensor, patches: tuple[Tensor, ...]) -> Tensor:
    """The forward pass of a convolution, by its patches."""
    made: Tensor = PatchConvolution.apply(  # type: ignore[no-untyped-call]
        x, module.weight, module, *patches
    )
    return made


def _output_sides(module: nn.Conv2d, x: Tensor) -> list[int]:
    """Height and width of the output."""
    return [
        (
            x.shape[2 + axis]
            + 2 * int(module.padding[axis])
            - module.dilation[axis] * (module.kernel_size[axis] - 1)
            - 1
        )
        // module.stride[axis]
        + 1
        for axis in (0, 1)
    ]

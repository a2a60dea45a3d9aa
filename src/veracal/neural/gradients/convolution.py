"""Convolutions as matrix products with patches, and a reused scratch buffer.

Gradients of single examples need the patches anyway. For images of few channels a product with
them is also the faster forward pass, and its outputs are channels-last in memory, which makes
pooling ten times faster. The patches are extracted by hand because
``torch.nn.functional.unfold`` copies single numbers; here all channels of a kernel row are
copied at once.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNED = 64  # bytes of a cache line; no number crosses one
_SPARE = 1.1  # reserve, since blocks vary in size


class ScratchBuffer:
    """Allocates tensors that live for one block from memory that is reused for the next.

    The system hands out tensors of some megabytes as pages that are zeroed on first touch,
    which takes longer than writing the contents. This buffer allocates one tensor after another
    from one piece of memory, and all of it again for the next block. Requests that do not fit
    are allocated by the system, and the buffer grows for the next block.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self) -> None:
        """Release all tensors; none that was allocated before may be used again."""
        if self._used > len(self._bytes):
            self._bytes = torch.empty(0, dtype=torch.uint8)  # frees the old buffer first
            self._bytes = torch.empty(int(_SPARE * self._used), dtype=torch.uint8)
        self._used = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate an uninitialized tensor."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._bytes):
            return torch.empty(shape, dtype=dtype)
        return self._bytes[start : start + size].view(dtype).view(shape)


MAX_CHANNELS = 4  # channels up to which a product is faster than torch's convolution


def extract_patches(
    module: nn.Conv1d | nn.Conv2d, x: Tensor, buffer: ScratchBuffer
) -> tuple[Tensor, ...]:
    """Return the input patch of each output position, in several parts.

    Each part has shape (n, groups, positions, d_k). Concatenated, the parts are whole patches,
    with numbers ordered by row, column and channel of the kernel; see :func:`to_weight_order`.
    Vertically adjacent patches share rows of the image. Each part is a view of one tensor in
    which such rows are written once, so that a kernel of k rows needs about 1/k of the memory.
    """
    size, stride, padding, dilation = (
        tuple(getattr(module, name))
        for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if x.ndim == 3:  # treat one dimension as two, the first of length 1
        x = x[:, :, None]
        size, stride, dilation = (1, *size), (1, *stride), (1, *dilation)
        padding = (0, *padding)
    down, across = padding
    rows = x.permute(0, 2, 3, 1)
    if down or across:
        rows = functional.pad(rows, (0, 0, across, across, down, down))
    rows = rows.contiguous()
    sides = zip(rows.shape[1:3], size, stride, dilation, strict=True)
    out_height, out_width = (
        (side - dilation_ * (kernel - 1) - 1) // stride_ + 1
        for side, kernel, stride_, dilation_ in sides
    )
    # A part holds as many kernel rows as the vertical stride. With groups, or with rows that
    # are not adjacent, there is a single part.
    shared = module.groups == 1 and dilation[0] == 1 and size[0] % stride[0] == 0
    parts, kernel_rows = (size[0] // stride[0], stride[0]) if shared else (1, size[0])
    (n, height, width, channels), groups = rows.shape, module.groups
    row_size, group_channels = width * channels, channels // groups
    input_rows = out_height + parts - 1
    shape = (n, groups, input_rows, out_width, kernel_rows, size[1], group_channels)
    outer_strides = (
        group_channels,
        row_size * stride[0],
        channels * stride[1],
        row_size * dilation[0],
    )
    strides = (height * row_size, *outer_strides, channels * dilation[1], 1)
    buffered = buffer.empty(*shape, dtype=x.dtype).copy_(rows.as_strided(shape, strides))
    buffered = buffered.view(n, groups, input_rows * out_width, -1)
    return tuple(
        buffered[:, :, k * out_width : (k + out_height) * out_width] for k in range(parts)
    )


def to_weight_order(module: nn.Conv1d | nn.Conv2d, weights: Tensor) -> Tensor:
    """Reorder numbers of shape (..., outputs, d) from row, column, channel to weight order.

    Returns
    -------
    tensor of shape (..., *module.weight.shape)
    """
    outputs, channels, *size = module.weight.shape
    shaped = weights.reshape(*weights.shape[:-2], outputs, *size, channels)
    return shaped.movedim(-1, -1 - len(size))


def flatten_weights(module: nn.Conv2d) -> Tensor:
    """Return the weights by output, row, column and channel, of shape (outputs, d)."""
    return module.weight.detach().permute(0, 2, 3, 1).reshape(module.out_channels, -1)


def uses_patch_product(module: nn.Module) -> bool:
    """Return whether a product with patches is the faster forward pass of a layer."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels <= MAX_CHANNELS
        and module.groups == 1
        and "forward" not in vars(module)
    )


class PatchConvolution(torch.autograd.Function):
    """A convolution by its patches; gradients flow to the inputs only.

    The weights are an argument so that the output belongs to a graph even if the inputs do not.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, module: nn.Conv2d, *patches: Tensor
    ) -> Tensor:
        """Return outputs of shape (n, outputs, height, width), channels-last in memory."""
        ctx.save_for_backward(x)
        ctx.module = module
        n, _, positions, d = patches[0].shape
        shape = (n, module.out_channels, *_output_sides(module, x))
        outputs = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        # Written in place, not a view of another tensor: later layers may overwrite it.
        rows = outputs.permute(0, 2, 3, 1).view(n, positions, -1)
        for k, (part, some) in enumerate(
            zip(patches, torch.split(flatten_weights(module).mT, d), strict=True)
        ):
            rows.baddbmm_(part[:, 0], some.expand(n, -1, -1), beta=float(k > 0))
        if module.bias is not None:
            rows += module.bias.detach()
        return outputs

    @staticmethod
    def backward(ctx: Any, *output_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients at the inputs, computed by torch."""
        (x,), module = ctx.saved_tensors, ctx.module
        no_grads = (None,) * (len(ctx.needs_input_grad) - 1)
        if not ctx.needs_input_grad[0]:
            return None, *no_grads
        return convolution_backward(module, output_grad[0], x, inputs=True), *no_grads


def convolution_backward(
    module: Any, output_grad: Tensor, x: Tensor, *, inputs: bool
) -> Tensor:
    """Return torch's gradients of a convolution at its inputs or at its weights."""
    grads: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        output_grad,
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
    return grads[0 if inputs else 1]


def convolve_patches(module: nn.Conv2d, x: Tensor, patches: tuple[Tensor, ...]) -> Tensor:
    """Run the forward pass of a convolution on its patches."""
    outputs: Tensor = PatchConvolution.apply(  # type: ignore[no-untyped-call]
        x, module.weight, module, *patches
    )
    return outputs


def _output_sides(module: nn.Conv2d, x: Tensor) -> list[int]:
    """Return height and width of the output."""
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

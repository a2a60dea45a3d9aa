"""Convolutions as products of matrices, by what each place of the output has seen.

Gradients of single examples need these patches anyway. For pictures of few channels a product
with them is also the faster forward pass, and its outputs have their channels last in memory,
in which pooling is ten times faster. Written by hand because ``torch.nn.functional.unfold``
copies single numbers, where here all channels of a row of the kernel are copied at once.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW = 4  # channels up to which a product is faster than torch's convolution


def patches_of(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """What each place of the output has seen, of shape (n, groups, places, d).

    The d numbers of a patch are ordered by row, column and channel of the kernel; see
    :func:`in_order`.
    """
    size, stride, padding, dilation = (
        tuple(getattr(module, name))
        for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if x.ndim == 3:  # one dimension is two, of which the first has length 1
        x = x[:, :, None]
        size, stride, dilation = (1, *size), (1, *stride), (1, *dilation)
        padding = (0, *padding)
    n, channels = x.shape[:2]
    groups, (down, across) = module.groups, padding
    rows = x.permute(0, 2, 3, 1)
    if down or across:
        rows = functional.pad(rows, (0, 0, across, across, down, down))
    rows = rows.contiguous()
    height, width = rows.shape[1:3]
    out = [
        (side - step * (kernel - 1) - 1) // jump + 1
        for side, kernel, jump, step in zip(
            (height, width), size, stride, dilation, strict=True
        )
    ]
    each, line, column = height * width * channels, width * channels, channels
    view = rows.as_strided(
        (n, groups, *out, *size, channels // groups),
        (
            each,
            channels // groups,
            line * stride[0],
            column * stride[1],
            line * dilation[0],
            column * dilation[1],
            1,
        ),
    )
    return view.reshape(n, groups, out[0] * out[1], -1)


def in_order(module: nn.Conv1d | nn.Conv2d, weights: Tensor) -> Tensor:
    """Numbers by output, row, column and channel, of shape (..., outputs, d), as weights.

    Returns
    -------
    tensor of shape (..., *module.weight.shape)
    """
    outputs, channels, *size = module.weight.shape
    shaped = weights.reshape(*weights.shape[:-2], outputs, *size, channels)
    return shaped.movedim(-1, -1 - len(size))


def flat_weights(module: nn.Conv2d) -> Tensor:
    """The weights by output, row, column and channel, of shape (outputs, d)."""
    return module.weight.detach().permute(0, 2, 3, 1).reshape(module.out_channels, -1)


def takes_products(module: nn.Module) -> bool:
    """Whether the forward pass of a layer is faster as a product with its patches."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels <= FEW
        and module.groups == 1
        and "forward" not in vars(module)
    )


class Convolution(torch.autograd.Function):
    """A convolution by its patches; gradients go to the inputs alone.

    The weights are an argument so that the output belongs to a graph where inputs do not.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, module: nn.Conv2d, patches: Tensor
    ) -> Tensor:
        """Outputs of shape (n, outputs, height, width), channels last in memory."""
        ctx.save_for_backward(x)
        ctx.module = module
        n, _, places, d = patches.shape
        shape = (n, module.out_channels, *_sides(module, x))
        made = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        # Into its place, and not as a view of another tensor: layers may write over it.
        rows = made.permute(0, 2, 3, 1).view(n * places, -1)
        torch.mm(patches.view(n * places, d), flat_weights(module).mT, out=rows)
        if module.bias is not None:
            rows += module.bias.detach()
        return made

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Gradients at the inputs, as torch's convolution takes them."""
        (x,), module = ctx.saved_tensors, ctx.module
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        found = conv_slopes(module, slopes[0], x, inputs=True)
        return found, None, None, None


def conv_slopes(module: Any, slopes: Tensor, x: Tensor, *, inputs: bool) -> Tensor:
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


def convolved(module: nn.Conv2d, x: Tensor, patches: Tensor) -> Tensor:
    """The forward pass of a convolution, by its patches."""
    made: Tensor = Convolution.apply(  # type: ignore[no-untyped-call]
        x, module.weight, module, patches
    )
    return made


def _sides(module: nn.Conv2d, x: Tensor) -> list[int]:
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

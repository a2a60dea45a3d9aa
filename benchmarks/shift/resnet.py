"""Residual networks for images of 32 × 32, for inference.

He et al. 2016 (https://arxiv.org/abs/1512.03385, section 4.2): one convolution, three stages of
n blocks with 16, 32 and 64 channels, a mean over the picture and a linear layer, 6n + 2 layers
in all. Where a stage halves the picture the shortcut takes every second pixel and pads channels
with zeros, half of them on either side ("option A"), so that it has no weights.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veracal._types import Array, Floats

DEPTHS = {"resnet20": 20, "resnet32": 32, "resnet44": 44, "resnet56": 56}
CLASSES = 10
_WIDTHS = (16, 32, 64)
_BATCH = 100  # pictures a network sees at once; larger ones were not faster

# Of ImageNet and not of CIFAR-10: the published weights were trained with these.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.widened = width - channels
        stride = 2 if self.widened else 1
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of shape (n, channels, h, w) to (n, width, h / stride, w / stride)."""
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.widened:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, *[self.widened // 2] * 2))
        return functional.relu(y.add_(x), inplace=True)


class ResNet(nn.Module):
    """A residual network of 6n + 2 layers; names are those of the published weights."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        blocks, left = divmod(depth - 2, 6)
        assert left == 0 and blocks > 0
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        before = (_WIDTHS[0], *_WIDTHS)
        for stage, width in enumerate(_WIDTHS):
            widths = (before[stage], *[width] * blocks)
            parts = [Block(*pair) for pair in pairwise(widths)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*parts))
        self.linear = nn.Linear(_WIDTHS[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Normalized pictures of shape (n, 3, 32, 32) to logits of shape (n, 10)."""
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


def network(name: str, weights: Mapping[str, Tensor]) -> ResNet:
    """Build a network that only answers: weights in, batch norms folded into convolutions."""
    built = ResNet(DEPTHS[name])
    built.load_state_dict(dict(weights))
    built.eval()
    return folded(built).to(memory_format=torch.channels_last)


def folded(built: ResNet) -> ResNet:
    """Fold every batch norm into the convolution before it, in place; the answers stay."""
    for part in [built, *(part for part in built.modules() if isinstance(part, Block))]:
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            if hasattr(part, norm):
                pair = getattr(part, conv), getattr(part, norm)
                setattr(part, conv, nn.utils.fuse_conv_bn_eval(*pair))
                setattr(part, norm, nn.Identity())
    return built


def normalized(images: Array) -> Tensor:
    """Bytes of shape (n, 32, 32, 3) as the networks want them, channels last in memory."""
    # One product and one sum per pixel: (b / 255 - mean) / deviation.
    slope = np.float32(1 / (255 * np.asarray(DEVIATION)))
    start = np.float32(np.asarray(MEAN) / DEVIATION)
    return torch.from_numpy(images * slope - start).permute(0, 3, 1, 2)


def logits_of(built: ResNet, images: Array) -> Floats:
    """Logits of pictures.

    Parameters
    ----------
    built : ResNet
    images : array of bytes of shape (n, 32, 32, 3)

    Returns
    -------
    array of float32 of shape (n, 10)
    """
    starts = range(0, len(images), _BATCH)
    with torch.inference_mode():
        parts = [built(normalized(images[start : start + _BATCH])).numpy() for start in starts]
    return np.concatenate(parts)

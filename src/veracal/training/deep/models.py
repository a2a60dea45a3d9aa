"""Networks of the papers and of the command line, made from public settings alone.

Every function here makes a network with fresh weights from torch's generator, which
:class:`~veracal.training.deep.PrivateNetwork` seeds by itself where it is given the function:
``PrivateNetwork(mnist_cnn)``, or with settings ``PrivateNetwork(partial(mlp, 20, 3))``. All
layers take each example by itself. Numbers of parameters are those of the default settings.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from torch import nn

from veracal import _checks

Activation = Callable[[], nn.Module]


def mnist_cnn(
    classes: int = 10,
    *,
    tanh: bool = False,
    hidden: Sequence[int] = (32,),
    from_zero: bool = False,
) -> nn.Sequential:
    """The small network for digits of the literature on DP-SGD; 26,010 parameters.

    Two convolutions and two dense layers for pictures of shape (1, 28, 28), as in the MNIST
    examples of TensorFlow Privacy and of Opacus.

    Parameters
    ----------
    classes : int
    tanh : bool
        With tanh in place of ReLU, which keeps gradients shorter and is better under clipping
        and noise (Papernot et al. 2021, https://arxiv.org/abs/2007.14191).
    hidden : sequence of int
        Units of the dense layers between; empty, the classes are told from what the
        convolutions see, with 14,394 parameters that noise falls on.
    from_zero : bool
        Whether the last layer begins with weights of zero. Then all classes are equally
        likely at first, and no step is spent on what random weights said.

    Examples
    --------
    >>> sum(one.numel() for one in mnist_cnn().parameters())
    26010
    """
    _checks.whole(least=2, classes=classes)
    for units in hidden:
        _checks.whole(hidden=units)
    activation: Activation = nn.Tanh if tanh else nn.ReLU
    made = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        *_dense(512, hidden, classes, activation),
    )
    if from_zero:
        for one in made[-1].parameters():
            nn.init.zeros_(one)
    return made


def five_layer_cnn(
    classes: int = 10, channels: int = 1, side: int = 28, *, flat: bool = False
) -> nn.Sequential:
    """A network of five layers for small pictures; 23,626 parameters.

    Knolle et al. 2021 (https://arxiv.org/abs/2107.04296) train a convolutional network of five
    layers on MNIST and print nothing more of it. *The details are ours*: three convolutions of
    16, 32 and 32 filters of 3 x 3, each with ReLU and halved by its maxima, and two dense
    layers, the first of 32 units.

    Parameters
    ----------
    classes : int
    channels : int
        One for gray pictures, three for colors.
    side : int >= 8
        Pixels of a side of the picture.
    flat : bool
        Whether pictures come as rows of numbers, channel after channel.
    """
    _checks.whole(least=2, classes=classes)
    _checks.whole(channels=channels)
    _checks.whole(least=8, side=side)
    halved = side // 8  # three times, rounded down each time
    unfolded = [nn.Unflatten(1, (channels, side, side))] if flat else []
    return nn.Sequential(
        *unfolded,
        *_convolutions(channels, (16, "halve", 32, "halve", 32, "halve"), nn.ReLU),
        nn.Flatten(),
        *_dense(32 * halved * halved, (32,), classes, nn.ReLU),
    )


def cifar_cnn(classes: int = 10) -> nn.Sequential:
    """The network for CIFAR-10 that is trained from scratch; 550,570 parameters.

    Six convolutions of 3 x 3 in pairs of 32, 64 and 128 filters, each pair halved by its
    maxima, and two dense layers, all with tanh, for pictures of shape (3, 32, 32) (Papernot et
    al. 2021, https://arxiv.org/abs/2007.14191; Tramèr and Boneh 2021,
    https://arxiv.org/abs/2011.11660).

    Parameters
    ----------
    classes : int
    """
    _checks.whole(least=2, classes=classes)
    plan = (32, 32, "halve", 64, 64, "halve", 128, 128, "halve")
    return nn.Sequential(
        *_convolutions(3, plan, nn.Tanh),
        nn.Flatten(),
        *_dense(2048, (128,), classes, nn.Tanh),
    )


def scatter_cnn(
    classes: int = 10, *, channels: int = 243, side: int = 8, filters: int = 64
) -> nn.Sequential:
    """The network on scattering features of CIFAR-10; 187,210 parameters.

    Two convolutions of 64 filters of 3 x 3 with tanh, the first halved by its maxima, and one
    dense layer, for features of shape (243, 8, 8), which
    :class:`~veracal.training.deep.scattering.Scattering` makes of pictures of shape
    (3, 32, 32), standardized by a
    :class:`~veracal.training.deep.channel_standardizing.PrivateChannelStandardizer`
    (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, and their code).

    Parameters
    ----------
    classes : int
    channels : int
        81 for each color.
    side : int >= 2
        A quarter of a picture's: 7 for digits of 28 x 28.
    filters : int
        Of each convolution; fewer suffer less from noise.
    """
    _checks.whole(least=2, classes=classes, side=side)
    _checks.whole(channels=channels, filters=filters)
    halved = side // 2
    return nn.Sequential(
        *_convolutions(channels, (filters, "halve", filters), nn.Tanh),
        nn.Flatten(),
        nn.Linear(filters * halved * halved, classes),
    )


def mlp(
    features: int,
    classes: int,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: Activation = nn.Tanh,
) -> nn.Sequential:
    """Dense layers for plain rows.

    With d features, k classes and the default layers it has 64 d + 65 k + 4,224 parameters.

    Parameters
    ----------
    features : int
        Columns of a row.
    classes : int
    hidden : sequence of int
        Units of the layers between; empty, for a linear model.
    activation : function that makes a module

    Examples
    --------
    >>> sum(one.numel() for one in mlp(10, 2).parameters())
    4994
    """
    _checks.whole(features=features)
    _checks.whole(least=2, classes=classes)
    for units in hidden:
        _checks.whole(hidden=units)
    return nn.Sequential(*_dense(features, hidden, classes, activation))


def dense_head(
    features: int, classes: int, *, hidden: int = 64, normalized: bool = False
) -> nn.Sequential:
    """Two dense layers for frozen features; (d + 1) 64 + 65 k parameters.

    Knolle et al. 2021 (https://arxiv.org/abs/2107.04296) train two dense layers on the
    features of a network that is not trained further. Their width and activation are not
    printed: 64 and ReLU are ours.

    Parameters
    ----------
    features : int
        Width d of the features.
    classes : int
        Their number k.
    hidden : int
        Units of the first layer.
    normalized : bool
        Whether each row is brought to mean 0 and variance 1 first, by itself: features of
        different networks have different lengths, and learning rates go by them.
    """
    layers = mlp(features, classes, hidden=(hidden,), activation=nn.ReLU)
    if not normalized:
        return layers
    return nn.Sequential(nn.LayerNorm(features, elementwise_affine=False), *layers)


def _convolutions(
    channels: int, plan: Sequence[int | str], activation: Activation
) -> Iterator[nn.Module]:
    """Convolutions of 3 x 3 that keep the sides, with as many filters as the plan says."""
    for filters in plan:
        if isinstance(filters, str):
            yield nn.MaxPool2d(2)
            continue
        yield nn.Conv2d(channels, filters, 3, padding=1)
        yield activation()
        channels = filters


def _dense(
    features: int, hidden: Sequence[int], classes: int, activation: Activation
) -> Iterator[nn.Module]:
    """Dense layers with activations between them."""
    widths = (features, *hidden, classes)
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        if place:
            yield activation()
        yield nn.Linear(inputs, outputs)

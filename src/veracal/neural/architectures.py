"""Networks of the papers and of the command line, made from public settings.

Every function here returns a network with new weights from torch's generator, which
:class:`~veracal.neural.PrivateNetwork` seeds if it is given the function:
``PrivateNetwork(mnist_cnn)``, or with settings ``PrivateNetwork(partial(mlp, 20, 3))``. All
layers treat each example independently. Numbers of parameters are for the default settings.

:class:`KnownNetwork` records the name and the settings of such a network, so that a file can
state which network its weights belong to.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._types import Frozen
from veracal.errors import DataError
from veracal.neural.pretrained import four_axis_mask, load_minilm

Activation = Callable[[], nn.Module]
_WIDTH = 384  # length of MiniLM's vectors
_SCALE = 500.0  # makes the learning rate of the last layer suitable for a zero head, too
_LAYERS = 6  # of MiniLM
_MAX_SETTING, _MAX_LIST = 1_000_000, 64  # largest number, and longest list of numbers
_MAX_PARAMETERS = 100_000_000
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
    "SELU": nn.SELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
}


def mnist_cnn(
    classes: int = 10,
    *,
    tanh: bool = False,
    hidden: Sequence[int] = (32,),
    from_zero: bool = False,
) -> nn.Sequential:
    """The small convolutional network for digits of the DP-SGD literature; 26,010 parameters.

    Two convolutions and two dense layers for images of shape (1, 28, 28), as in the MNIST
    examples of TensorFlow Privacy and of Opacus.

    Parameters
    ----------
    classes : int
    tanh : bool
        Use tanh instead of ReLU, which keeps gradients shorter and is better under clipping and
        noise (Papernot et al. 2021, https://arxiv.org/abs/2007.14191).
    hidden : sequence of int
        Units of the hidden dense layers. If empty, the output layer follows the convolutions
        directly, and noise is added to 14,394 parameters only.
    from_zero : bool
        Whether the last layer starts at zero. Then all classes are equally likely at first, and
        no step is spent on unlearning random weights.

    Examples
    --------
    >>> sum(one.numel() for one in mnist_cnn().parameters())
    26010
    """
    activation: Activation = nn.Tanh if tanh else nn.ReLU
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        *_dense_layers(512, hidden, classes, activation),
    )
    if from_zero:
        for parameter in network[-1].parameters():
            nn.init.zeros_(parameter)
    return network


def five_layer_cnn(
    classes: int = 10, channels: int = 1, side: int = 28, *, flat: bool = False
) -> nn.Sequential:
    """A network of five layers for small images; 23,626 parameters.

    Knolle et al. 2021 (https://arxiv.org/abs/2107.04296) train a convolutional network of five
    layers on MNIST and give no further details. *The details are ours*: three convolutions of
    16, 32 and 32 filters of 3 x 3, each with ReLU and max pooling, and two dense layers, the
    first of 32 units.

    Parameters
    ----------
    classes, channels : int
    side : int >= 8
        Height and width of an image.
    flat : bool
        Whether images are flat rows, channel after channel.
    """
    _checks.whole(channels=channels)
    _checks.whole(least=8, side=side)
    halved = side // 8  # after three poolings, each rounded down
    unfolded = [nn.Unflatten(1, (channels, side, side))] if flat else []
    return nn.Sequential(
        *unfolded,
        *_conv_layers(channels, (16, "halve", 32, "halve", 32, "halve"), nn.ReLU),
        nn.Flatten(),
        *_dense_layers(32 * halved * halved, (32,), classes, nn.ReLU),
    )


def cifar_cnn(classes: int = 10) -> nn.Sequential:
    """The network for CIFAR-10 that is trained from scratch; 550,570 parameters.

    Six convolutions of 3 x 3 in pairs of 32, 64 and 128 filters, each pair with max pooling,
    and two dense layers, all with tanh, for images of shape (3, 32, 32) (Papernot et al. 2021,
    https://arxiv.org/abs/2007.14191; Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660).
    """
    plan = (32, 32, "halve", 64, 64, "halve", 128, 128, "halve")
    return nn.Sequential(
        *_conv_layers(3, plan, nn.Tanh),
        nn.Flatten(),
        *_dense_layers(2048, (128,), classes, nn.Tanh),
    )


def scatter_cnn(
    classes: int = 10, *, channels: int = 243, side: int = 8, filters: int = 64
) -> nn.Sequential:
    """The network on scattering features of CIFAR-10; 187,210 parameters.

    Two convolutions of 64 filters of 3 x 3 with tanh, the first with max pooling, and one dense
    layer, for features of shape (243, 8, 8), which
    :class:`~veracal.neural.scattering.Scattering` computes from images of shape (3, 32, 32),
    standardized by a :class:`~veracal.training.PrivateChannelStandardizer`
    (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, and their code).

    Parameters
    ----------
    classes : int
    channels : int
        81 for each color.
    side : int >= 2
        A quarter of the image side: 7 for digits of 28 x 28.
    filters : int
        Of each convolution; with fewer, the noise is smaller.
    """
    _checks.whole(least=2, side=side)
    _checks.whole(channels=channels, filters=filters)
    halved = side // 2
    return nn.Sequential(
        *_conv_layers(channels, (filters, "halve", filters), nn.Tanh),
        nn.Flatten(),
        *_dense_layers(filters * halved * halved, (), classes, nn.Tanh),
    )


def mlp(
    features: int,
    classes: int,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: Activation = nn.Tanh,
) -> nn.Sequential:
    """Dense layers for tabular rows.

    With d features, k classes and the default layers it has 64 d + 65 k + 4,224 parameters.

    Parameters
    ----------
    features, classes : int
    hidden : sequence of int
        Units of the hidden layers; empty for a linear model.
    activation : callable that returns a module

    Examples
    --------
    >>> sum(one.numel() for one in mlp(10, 2).parameters())
    4994
    """
    _checks.whole(features=features)
    return nn.Sequential(*_dense_layers(features, hidden, classes, activation))


def dense_head(
    features: int, classes: int, *, hidden: int = 64, normalized: bool = False
) -> nn.Sequential:
    """Two dense layers for frozen features; (d + 1) 64 + 65 k parameters.

    Knolle et al. 2021 (https://arxiv.org/abs/2107.04296) train two dense layers on the features
    of a frozen network. They do not report width and activation: 64 and ReLU are ours.

    Parameters
    ----------
    features, classes : int
        Length d of the features, and number k of classes.
    hidden : int
        Units of the first layer.
    normalized : bool
        Whether each row is first standardized to mean 0 and variance 1: features of different
        networks have different lengths, which affect the learning rate.
    """
    layers = mlp(features, classes, hidden=(hidden,), activation=nn.ReLU)
    if not normalized:
        return layers
    return nn.Sequential(nn.LayerNorm(features, elementwise_affine=False), *layers)


def _conv_layers(
    channels: int, plan: Sequence[int | str], activation: Activation
) -> Iterator[nn.Module]:
    """Convolutions of 3 x 3 with padding, by their filters; "halve" stands for max pooling."""
    for filters in plan:
        if isinstance(filters, str):
            yield nn.MaxPool2d(2)
            continue
        yield nn.Conv2d(channels, filters, 3, padding=1)
        yield activation()
        channels = filters


def _dense_layers(
    features: int, hidden: Sequence[int], classes: int, activation: Activation
) -> Iterator[nn.Module]:
    """Dense layers with activations between them."""
    _checks.whole(least=2, classes=classes)
    for units in hidden:
        _checks.whole(hidden=units)
        yield nn.Linear(features, units)
        yield activation()
        features = units
    yield nn.Linear(features, classes)


def mean_pool_logits(hidden: Tensor, mask: Tensor, head: nn.Module, scale: float) -> Tensor:
    r"""Logits of texts, from the mean of their token states, scaled to length 1.

    .. math:: s \left( W \frac{\bar h}{\lVert \bar h \rVert} + b \right)

    Hidden states have shape (n, tokens, width), and the mask (n, tokens) marks tokens. The head
    holds W and b, and the factor s scales its gradients, and so how fast it learns.
    """
    mask_ = mask.to(hidden.dtype)[..., None]
    mean = (hidden * mask_).sum(1) / mask_.sum(1).clamp(min=1.0)
    logits: Tensor = scale * head(nn.functional.normalize(mean, dim=1))
    return logits


def zero_initialized_head(width: int, classes: int) -> nn.Linear:
    """A head of zeros: no step is spent on unlearning random weights."""
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class _MiniLMClassifier(nn.Module):
    """MiniLM without dropout, with a linear head on the mean token vector."""

    def __init__(self, classes: int, layers: int) -> None:
        super().__init__()
        self.encoder: Any = load_minilm()
        self.encoder.requires_grad_(False)
        for block in self.encoder.encoder.layer[_LAYERS - layers :]:
            block.requires_grad_(True)
        self.head = zero_initialized_head(_WIDTH, classes)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of texts as token ids, of shape (n, tokens), padded with zeros."""
        tokens = rows.round().clamp(0, self.encoder.config.vocab_size - 1).long()
        mask = tokens != 0
        hidden = self.encoder(
            input_ids=tokens,
            token_type_ids=torch.zeros_like(tokens),
            attention_mask=four_axis_mask(mask),
        ).last_hidden_state
        return mean_pool_logits(hidden, mask, self.head, _SCALE)


def minilm_texts(classes: int, *, layers: int = 1) -> nn.Module:
    """All-MiniLM-L6-v2 for texts, with its last layers and a new head trained.

    MiniLM was trained on public data such that the mean of its token vectors represents the
    meaning of a sentence; the head reads that mean (:func:`mean_pool_logits`). Rows are tokens
    from :class:`~veracal.neural.MiniLMTokens`.

    Parameters
    ----------
    classes : int
    layers : int from 0 to 6
        Number of encoder layers that are trained, each of 1.77 million parameters.
    """
    _checks.whole(least=2, classes=classes)
    _checks.whole(least=0, layers=layers)
    if layers > _LAYERS:
        raise ValueError(f"Expected at most {_LAYERS} layers, got layers={layers!r}.")
    return _MiniLMClassifier(classes, layers)


_ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (
        mnist_cnn,
        five_layer_cnn,
        cifar_cnn,
        scatter_cnn,
        mlp,
        dense_head,
        minilm_texts,
    )
}


@dataclass(frozen=True)
class KnownNetwork:
    """A network of :mod:`veracal.neural.architectures`, by its name and its settings.

    Calling it returns the network with new weights, so it can be passed instead of the
    function, as in ``PrivateNetwork(KnownNetwork("mlp", {"features": 20, "classes": 3}))``.

    Attributes
    ----------
    name : str
    settings : mapping
        Numbers, booleans, lists of numbers and names of activations.
    """

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, function: object) -> "KnownNetwork | None":
        """Describe a function of this module, or a partial of one; None for any other."""
        if isinstance(function, KnownNetwork):
            return function
        base, args, keywords = function, (), {}
        if isinstance(function, partial):
            base, args, keywords = function.func, function.args, function.keywords
        name = next((name for name, one in _ARCHITECTURES.items() if one is base), None)
        if name is None:
            return None
        arguments = inspect.signature(_ARCHITECTURES[name]).bind(*args, **keywords).arguments
        settings = dict[str, Any]()
        for key, value in arguments.items():
            activations = [word for word, kind in _ACTIVATIONS.items() if kind is value]
            if activations:
                value = activations[0]
            settings[key] = list(value) if isinstance(value, tuple) else value  # as in JSON
        network = cls(name, Frozen(settings))
        return None if network._problem() else network

    def __call__(self) -> nn.Module:
        """Create the network with new weights."""
        if problem := self._problem():
            raise ValueError(f"Expected a known network, got {problem}.")
        return self._build()

    @property
    def published(self) -> bool:
        """Whether its frozen weights are published, so that they need not be saved."""
        return self.name == minilm_texts.__name__

    def to_json(self) -> dict[str, Any]:
        """Name and settings, as JSON values."""
        return {"name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, content: Any, where: str) -> "KnownNetwork":
        """Read untrusted JSON; nothing large is created before it is checked.

        Raises
        ------
        DataError
            For an unknown name or setting, and for a network that is too large.
        """
        actual = repr(content)
        valid = isinstance(content, Mapping) and set(content) == {"name", "settings"}
        if valid and isinstance(content["settings"], Mapping):
            network = cls(content["name"], Frozen(content["settings"]))
            actual = network._problem()
            if not actual:
                return network
        raise DataError(
            where,
            f"one of the networks {', '.join(_ARCHITECTURES)}, with its settings",
            actual[:200],
            "Update Veracal.",
        )

    def _problem(self) -> str:
        """Describe what is wrong with it; empty if nothing is."""
        if not isinstance(self.name, str) or self.name not in _ARCHITECTURES:
            return f"the name {self.name!r}"
        for key, value in self.settings.items():
            if key == "activation" and isinstance(value, str) and value in _ACTIVATIONS:
                continue
            if not isinstance(key, str) or not _is_valid_setting(value):
                return f"{key}={value!r}"
        if self.published:  # settings hardly change its size
            try:
                inspect.signature(minilm_texts).bind(**self.settings)
            except TypeError as cause:
                return f"{self.name}: {cause}"
            layers, classes = self.settings.get("layers", 1), self.settings["classes"]
            if type(layers) is not int or layers > _LAYERS:
                return f"layers={layers!r}"
            # A head with some hundreds of features has so many classes.
            valid = type(classes) is int and 2 <= classes <= _MAX_PARAMETERS // 1000
            return "" if valid else f"classes={classes!r}"
        try:
            # On the meta device no memory is allocated, whatever the settings are.
            with torch.device("meta"):
                network = self._build()
        except (ArithmeticError, TypeError, ValueError, RuntimeError) as cause:
            return f"{self.name} with {dict(self.settings)!r}: {cause}"
        size = sum(parameter.numel() for parameter in network.parameters())
        return f"{size:,} parameters" if size > _MAX_PARAMETERS else ""

    def _build(self) -> nn.Module:
        """Create the network from checked settings."""
        settings = {
            key: _ACTIVATIONS[value] if key == "activation" else value
            for key, value in self.settings.items()
        }
        return _ARCHITECTURES[self.name](**settings)


def _is_valid_setting(value: Any) -> bool:
    """Return whether a value is possible for a setting."""
    if isinstance(value, list):
        return len(value) <= _MAX_LIST and all(
            type(one) is int and _is_valid_setting(one) for one in value
        )
    return type(value) is bool or (type(value) is int and 0 <= value <= _MAX_SETTING)

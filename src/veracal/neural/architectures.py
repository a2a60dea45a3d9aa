"""Networks of the papers and of the command line, made from public settings alone.

Every function here makes a network with fresh weights from torch's generator, which
:class:`~veracal.neural.PrivateNetwork` seeds by itself where it is given the function:
``PrivateNetwork(mnist_cnn)``, or with settings ``PrivateNetwork(partial(mlp, 20, 3))``. All
layers take each example by itself. Numbers of parameters are those of the default settings.

A network for texts whose last layers are trained, on top of frozen ones.

Networks that have a name, so that a file can say which one it holds the weights of.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._types import Frozen
from veracal.errors import DataError
from veracal.neural.pretrained import load_minilm

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
        *_dense_layers(512, hidden, classes, activation),
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
        *_conv_layers(channels, (16, "halve", 32, "halve", 32, "halve"), nn.ReLU),
        nn.Flatten(),
        *_dense_layers(32 * halved * halved, (32,), classes, nn.ReLU),
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
        *_conv_layers(3, plan, nn.Tanh),
        nn.Flatten(),
        *_dense_layers(2048, (128,), classes, nn.Tanh),
    )


def scatter_cnn(
    classes: int = 10, *, channels: int = 243, side: int = 8, filters: int = 64
) -> nn.Sequential:
    """The network on scattering features of CIFAR-10; 187,210 parameters.

    Two convolutions of 64 filters of 3 x 3 with tanh, the first halved by its maxima, and one
    dense layer, for features of shape (243, 8, 8), which
    :class:`~veracal.neural.scattering.Scattering` makes of pictures of shape
    (3, 32, 32), standardized by a
    :class:`~veracal.neural.channel_standardizer.PrivateChannelStandardizer`
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
        *_conv_layers(channels, (filters, "halve", filters), nn.Tanh),
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
    return nn.Sequential(*_dense_layers(features, hidden, classes, activation))


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


def _conv_layers(
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


def _dense_layers(
    features: int, hidden: Sequence[int], classes: int, activation: Activation
) -> Iterator[nn.Module]:
    """Dense layers with activations between them."""
    widths = (features, *hidden, classes)
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        if place:
            yield activation()
        yield nn.Linear(inputs, outputs)


_WIDTH = 384  # of MiniLM's vectors
_SCALE = (
    500.0  # with it, the rate at which the last layer learns is also one for a head of zeros
)


def mean_pool_logits(hidden: Tensor, here: Tensor, head: nn.Module, scale: float) -> Tensor:
    r"""Logits of texts, by the mean of the states of their tokens, scaled to length 1.

    .. math:: s \left( W \frac{\bar h}{\lVert \bar h \rVert} + b \right)

    Parameters
    ----------
    hidden : tensor of shape (n, tokens, width)
    here : tensor of shape (n, tokens)
        Where there is a token, and not padding.
    head : torch.nn.Module
        With W and b.
    scale : float
        The factor s. The head learns as much faster, and its gradients are as much longer.
    """
    weight = here.to(hidden.dtype)[..., None]
    mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1.0)
    logits: Tensor = scale * head(nn.functional.normalize(mean, dim=1))
    return logits


def zero_initialized_head(width: int, classes: int) -> nn.Linear:
    """A head that tells nothing apart yet: first steps are not spent on forgetting chance."""
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class MiniLMTextClassifier(nn.Module):
    """All-MiniLM-L6-v2 with a linear head on the mean of the token vectors (:func:`pooled`).

    MiniLM was trained in public to put what a sentence means into that mean, so that a head on
    it begins where frozen features end. Everything but the last layers and the head is frozen,
    and there is no dropout.

    Parameters
    ----------
    classes : int
    layers : int from 0 to 6
        Of the encoder, the last ones, that are trained; each has 1.77 million parameters.
    """

    def __init__(self, classes: int, layers: int = 1) -> None:
        super().__init__()
        self.encoder: Any = load_minilm()
        self.encoder.requires_grad_(False)
        blocks = self.encoder.encoder.layer
        for block in blocks[len(blocks) - layers :]:
            block.requires_grad_(True)
        self.head = zero_initialized_head(_WIDTH, classes)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of texts as numbers of tokens, of shape (n, tokens), padded with zeros."""
        most = self.encoder.config.vocab_size - 1
        tokens = rows.round().clamp(0, most).long()
        mask = (tokens != 0).to(torch.float32)
        # Of four axes: one of two is dropped when no text of the batch is padded, and the
        # choice of kernel would depend on the company.
        attend = mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        kinds = torch.zeros_like(tokens)
        hidden = self.encoder(
            input_ids=tokens, token_type_ids=kinds, attention_mask=attend
        ).last_hidden_state
        return mean_pool_logits(hidden, mask, self.head, _SCALE)


def minilm_texts(classes: int, *, layers: int = 1) -> MiniLMTextClassifier:
    """All-MiniLM-L6-v2 for texts as rows of tokens, its last layers trained.

    Rows come from :class:`~veracal.neural.MiniLMTokens`.

    Parameters
    ----------
    classes : int
    layers : int from 0 to 6
        Layers of the encoder that are trained, beside the head.
    """
    _checks.whole(least=2, classes=classes)
    _checks.whole(least=0, layers=layers)
    if layers > 6:
        raise ValueError(f"Expected at most 6 layers, got layers={layers!r}.")
    return MiniLMTextClassifier(classes, layers)


_ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = {
    maker.__name__: maker
    for maker in (
        mnist_cnn,
        five_layer_cnn,
        cifar_cnn,
        scatter_cnn,
        mlp,
        dense_head,
        minilm_texts,
    )
}
_PUBLISHED = ("minilm_texts",)  # whose frozen weights come with a package
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
    "SELU": nn.SELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
}
_MAX_SETTING, _MAX_LIST = 1_000_000, 64  # of a setting, and of a list of them
_MAX_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class KnownNetwork:
    """A network of :mod:`veracal.neural.architectures`, by its name and its settings.

    Called, it makes the network with fresh weights: so it may stand in place of the function,
    as in ``PrivateNetwork(KnownNetwork("mlp", {"features": 20, "classes": 3}))``.

    Attributes
    ----------
    name : str
    settings : mapping
        Numbers, yes or no, lists of numbers and names of activations.
    """

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, maker: object) -> "KnownNetwork | None":
        """The name of a function of ours with settings, if it is one.

        Parameters
        ----------
        maker : object
            One of the functions, a ``functools.partial`` of one, or a known network.
        """
        if isinstance(maker, KnownNetwork):
            return maker
        bare, args, more = maker, (), {}
        if isinstance(maker, partial):
            bare, args, more = maker.func, maker.args, maker.keywords
        name = next((name for name, one in _ARCHITECTURES.items() if one is bare), None)
        if name is None:
            return None
        given = inspect.signature(_ARCHITECTURES[name]).bind(*args, **more).arguments
        named = {value: word for word, value in _ACTIVATIONS.items()}
        written = {
            key: named.get(value, value) if isinstance(value, type) else _plain(value)
            for key, value in given.items()
        }
        found = cls(name, Frozen(written))
        return None if found._problem() else found

    def __call__(self) -> nn.Module:
        """Make the network."""
        if problem := self._problem():
            raise ValueError(f"Expected a known network, got {problem}.")
        return self._made()

    @property
    def published(self) -> bool:
        """Whether its frozen weights are published, so that nobody needs to keep them."""
        return self.name in _PUBLISHED

    def to_json(self) -> dict[str, Any]:
        """Name and settings, as what JSON can hold."""
        return {"name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, written: Any, where: str) -> "KnownNetwork":
        """Read what a stranger may have written; nothing large is made before it is checked.

        Raises
        ------
        DataError
            For a name or a setting that is not known, and for a network that is too large.
        """
        right = isinstance(written, Mapping) and set(written) == {"name", "settings"}
        if not right or not isinstance(written["settings"], Mapping):
            raise _unknown_network_error(where, repr(written))
        found = cls(written["name"], Frozen(written["settings"]))
        if problem := found._problem():
            raise _unknown_network_error(where, problem)
        return found

    def _problem(self) -> str:
        """What is wrong with it, if anything."""
        if not isinstance(self.name, str) or self.name not in _ARCHITECTURES:
            return f"the name {self.name!r}"
        for key, value in self.settings.items():
            if key == "activation" and isinstance(value, str) and value in _ACTIVATIONS:
                continue
            if not isinstance(key, str) or not _is_valid_setting(value):
                return f"{key}={value!r}"
        if self.published:  # of a size that settings hardly change
            return _setting_problem(self.name, self.settings)
        try:
            # Without memory for the weights, whatever numbers a stranger has written.
            with torch.device("meta"):
                made = self._made()
        except (ArithmeticError, TypeError, ValueError, RuntimeError) as cause:
            return f"{self.name} with {dict(self.settings)!r}: {cause}"
        size = sum(one.numel() for one in made.parameters())
        return f"{size:,} parameters" if size > _MAX_PARAMETERS else ""

    def _made(self) -> nn.Module:
        """Make the network of settings that are known to be usual."""
        settings = {
            key: _ACTIVATIONS[value] if key == "activation" else value
            for key, value in self.settings.items()
        }
        return _ARCHITECTURES[self.name](**settings)


def _plain(value: Any) -> Any:
    """A setting as what JSON can hold: tuples are lists there."""
    return list(value) if isinstance(value, tuple) else value


def _is_valid_setting(value: Any) -> bool:
    """Whether it is a setting that one of the networks could have."""
    if isinstance(value, list):
        return len(value) <= _MAX_LIST and all(
            type(one) is int and _is_valid_setting(one) for one in value
        )
    return type(value) is bool or (type(value) is int and 0 <= value <= _MAX_SETTING)


def _setting_problem(name: str, settings: Mapping[str, Any]) -> str:
    """What is wrong with settings, by their names and range."""
    try:
        inspect.signature(_ARCHITECTURES[name]).bind(**settings)
    except TypeError as cause:
        return f"{name}: {cause}"
    layers, classes = settings.get("layers", 1), settings["classes"]
    if type(layers) is not int or layers > 6:
        return f"layers={layers!r}"
    most = _MAX_PARAMETERS // 1000  # of a head, with some hundreds of features
    return "" if type(classes) is int and 2 <= classes <= most else f"classes={classes!r}"


def _unknown_network_error(where: str, found: str) -> DataError:
    """Error for a network that is not known."""
    names = ", ".join(_ARCHITECTURES)
    return DataError(
        where, f"one of the networks {names}, with its settings", found[:200], "Update Veracal."
    )

"""Train a PyTorch module with one call, without a classifier."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset as Examples
from torch.utils.data import IterableDataset, TensorDataset

from veracal import _checks
from veracal._types import Array
from veracal.accounting import Event, NotPrivate, Relation, Statement, Unit
from veracal.data import Dataset, Label
from veracal.ledger import Ledger, check_ledger
from veracal.mechanisms import ClipRule, FullBatch, Langevin, Optimizer, Poisson, Schedule
from veracal.neural.examples import Augment, LossFunction
from veracal.neural.gradients.choice import EngineName
from veracal.neural.network import Hook, PrivateNetwork
from veracal.neural.run import InternalFigures, SelfCheck
from veracal.queries import Curator, mark_charged
from veracal.training import Ablation, Average

Data = Dataset | Curator | Examples[Any] | tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class TrainedModule:
    """A trained module and its guarantee.

    Attributes
    ----------
    module : torch.nn.Module
        Without wrappers, in evaluation mode.
    event : Event or None
        Its cost; None for an ablation.
    statement : Statement or NotPrivate
        The guarantee, or why there is none.
    self_check : SelfCheck
    model : PrivateNetwork
        The same as a classifier, for calibration, an audit or a report.
    """

    module: nn.Module = field(repr=False)
    event: Event | None
    statement: Statement | NotPrivate
    self_check: SelfCheck
    model: PrivateNetwork = field(repr=False)

    @property
    def internal(self) -> InternalFigures:
        """Counts over the records. *Internal*: they must not be released."""
        return self.model.internal_


def train(
    module: nn.Module | Callable[[], nn.Module],
    data: Data,
    *,
    clip: float | ClipRule = 1.0,
    optimizer: float | Optimizer | None = None,
    sampler: Poisson | FullBatch = Poisson(0.1),  # noqa: B008 - frozen
    noise: float | Schedule | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    steps: int | None = None,
    epochs: float | None = None,
    weight_decay: float = 0.0,
    average: Average = 0.0,
    loss: LossFunction | None = None,
    prepare: Callable[[Array], Tensor] | None = None,
    augment: Augment | None = None,
    gradients: EngineName | None = None,
    block: int = 128,
    classes: Sequence[Label] | None = None,
    size: int | None = None,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
    ledger: Ledger | None = None,
    purpose: str = "training",
    request: str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    not_private: Ablation | None = None,
    on_step: Hook | None = None,
    verbose: bool = False,
    random_state: int | np.random.Generator | None = None,
) -> TrainedModule:
    r"""Train a module with differential privacy.

    It is :class:`~veracal.neural.PrivateNetwork` in one call: the same DP-SGD run (clip rule ×
    optimizer × sampler), event and noise.

    Parameters
    ----------
    module : torch.nn.Module, or a function that returns one
        It is not changed; a copy is trained.
    data : Dataset, Curator, pair of arrays or tensors, or torch.utils.data.Dataset
        Records. A pair is inputs of shape (n, ...) and labels of shape (n,). A torch data set
        has a length and returns such pairs by index; all are read once, into memory. It must be
        deterministic: ``augment`` makes views of an example.
    clip, optimizer
        Rules, or a number for ``Flat`` and ``SGD``.
    sampler : Poisson or FullBatch
        Draws the batch of a step.
    noise : float > 0 or Schedule, optional
        The noise multiplier. By default it is computed from ``epsilon`` and ``delta``; with
        both, the run ends when these are spent.
    epsilon, delta : float
    classes, size
        Declared, unless a data set declares them. If one is read from records, the result is
        not private, which is rejected with a ledger.
    ledger : Ledger, optional
        Charged for the run before its first step. A :class:`~veracal.queries.Curator` has one.
    purpose, request : str
        As of :meth:`veracal.queries.Curator.fit`.
    steps, epochs, weight_decay, average, loss, prepare, augment, gradients, block, relation, \
    unit, checkpoint, checkpoint_every, not_private, on_step, verbose, random_state
        As of :class:`~veracal.neural.PrivateNetwork`.

    Guarantees
    ----------
    Those of :class:`~veracal.neural.PrivateNetwork`. With a ledger, settings and the format of
    the records are checked first, including that rows are finite and labels declared, as for a
    :class:`~veracal.data.Dataset`; then the cost is charged; then gradients are computed.

    Examples
    --------
    >>> import torch
    >>> X, y = torch.randn(200, 3), torch.arange(200) % 2
    >>> settings = {"classes": [0, 1], "size": 200, "steps": 5}
    >>> result = train(nn.Linear(3, 2), (X, y), noise=2.0, sampler=Poisson(0.2), **settings)
    >>> result.module
    Linear(in_features=3, out_features=2, bias=True)
    >>> result.event
    Repeated(event=PoissonGaussian(noise=2.0, sensitivity=1.0, ..., rate=0.2), times=5)
    """
    if ledger is not None:
        check_ledger(ledger)
    _checks.positive_or("a Schedule", Schedule | None, noise=noise)
    if noise is None and epsilon is None and not isinstance(optimizer, Langevin):
        raise ValueError("Expected noise=..., epsilon=... or both, got neither.")
    if not isinstance(sampler, Poisson | FullBatch):
        raise ValueError(
            "Expected a sampler of veracal.mechanisms with a known cost (Poisson(rate) or "
            f"FullBatch()), got {sampler!r}."
        )
    model = PrivateNetwork(
        module,
        epsilon,
        delta,
        noise_multiplier=noise,
        epochs=epochs,
        steps=steps,
        sampling_rate=sampler.rate if isinstance(sampler, Poisson) else 1.0,
        clip=clip,
        optimizer=optimizer,
        weight_decay=weight_decay,
        average=average,
        loss=loss,
        prepare=prepare,
        augment=augment,
        gradients=gradients,
        block=block,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        not_private=not_private,
        on_step=on_step,
        verbose=verbose,
        classes=classes,
        size=size,
        relation=relation,
        unit=unit,
        random_state=random_state,
    )
    if ledger is not None and isinstance(data, Curator):
        raise ValueError("Expected no ledger with a Curator, which has one, got both.")
    if ledger is not None and isinstance(data, Dataset):
        data = Curator(data, ledger)
    if isinstance(data, Curator):
        data.fit(model, purpose=purpose, request=request)
    elif ledger is not None:
        _fit_arrays_with_ledger(model, _to_arrays(data), ledger, purpose, request)
    elif request is not None:
        raise ValueError(f"Expected a ledger for request={request!r}, got none.")
    elif isinstance(data, Dataset):
        model.fit_records(data)
    else:
        model.fit(*_to_arrays(data))
    return TrainedModule(
        model.module_, model.event_, model.statement_, model.self_check_, model
    )


def _fit_arrays_with_ledger(
    model: PrivateNetwork,
    arrays: tuple[Array, Array],
    ledger: Ledger,
    purpose: str,
    request: str | None,
) -> None:
    """Charge a ledger, and fit to arrays."""
    if model.checkpoint is not None or request is not None:
        raise ValueError(
            "Expected a veracal.data.Dataset, whose name identifies the records, for a run "
            "that resumes under one charge (checkpoint=..., request=...), got arrays."
        )
    unit = ledger.budget.unit
    if unit.max_contributions > 1 or unit != (model.unit or Unit()):
        raise ValueError(
            f"Expected a veracal.data.Dataset with unit ids for a ledger that protects "
            f"{unit!r}, got arrays and unit={model.unit!r}. Nothing was charged."
        )
    event, data = model.event(), model._training_data(*arrays)
    if data.reasons:
        raise ValueError(
            "Expected complete declarations with a ledger, but "
            f"{' and '.join(data.reasons)}. Nothing was charged."
        )
    ledger.charge(event, purpose)
    with mark_charged(ledger):
        model._fit_data(data)
    if model.event_ != event:
        raise ValueError(
            f"{purpose!r} was charged as {event!r}, but the fit reports {model.event_!r}. Do "
            "not release this model: its cost is not the one that was paid."
        )


def _to_arrays(data: Any) -> tuple[Array, Array]:
    """Inputs and labels as arrays; all examples of a torch data set are read."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if not isinstance(data, Examples):
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ValueError(
                "Expected data to be a Dataset or Curator of veracal, a pair (inputs, labels), "
                f"or a torch.utils.data.Dataset of such pairs, got {_describe_type(data)}."
            )
        inputs, labels = (_to_array(one) for one in data)
        return inputs, labels
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        raise ValueError(
            "Expected a data set with a length and indices, got "
            f"{_describe_type(data)}: batches cannot be sampled from a stream."
        )
    pairs = [data[i] for i in range(len(data))]
    if not pairs or not all(isinstance(one, tuple | list) and len(one) == 2 for one in pairs):
        raise ValueError(
            "Expected one example or more, each a pair (input, label), got a data set of "
            f"{_describe_type(pairs[0]) if pairs else 'none'}."
        )
    rows = [_to_array(one) for one, _ in pairs]
    if any(one.shape != rows[0].shape for one in rows):
        raise ValueError(
            "Expected inputs of one shape, got several. Pad or crop them to a public shape."
        )
    return np.stack(rows), np.stack([_to_array(label) for _, label in pairs])


def _to_array(values: Any) -> Array:
    """Values as an array, from any device."""
    try:
        tensor = isinstance(values, Tensor)
        array: Array = values.detach().cpu().numpy() if tensor else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            "Expected values that convert to one dense numpy array, got "
            f"{_describe_type(values)}. Use to_dense() or float(), and rows of one shape."
        ) from error
    return array


def _describe_type(value: object) -> str:
    """Type and length of a value, without its content."""
    sized = isinstance(value, tuple | list)
    return type(value).__name__ + (f" of {len(value)}" if sized else "")  # type: ignore[arg-type]

"""Privacy arguments of a fine-tuning, and the DP-SGD run that training arguments describe."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from transformers import (
    DataCollatorWithPadding,
    DefaultDataCollator,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from veracal import _checks, _random
from veracal.accounting import RELATIONS, Relation, Unit
from veracal.mechanisms import DPSGD, SGD, Adam, ClipRule, Flat, Schedule
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.choice import ENGINE_NAMES, EngineName
from veracal.training import TrainingSpec


@dataclass(frozen=True)
class PrivacyArguments:
    """Privacy settings of a :class:`PrivateTrainer`, in addition to ``TrainingArguments``.

    Parameters
    ----------
    epsilon : float > 0, optional
        Budget of the training, from which the noise is computed.
    noise_multiplier : float > 0 or Schedule, optional
        Noise on a clipped sum, divided by the clip bound, in place of ``epsilon``.
    delta : float in (0, 1)
        Below 1 / ``size``.
    size : int, optional
        Declared number of records. By default it is counted: the training is then *not private*
        under add-remove, and ``not_private_because_`` says so. This is rejected with a ledger,
        since the charged sampling rate would reveal the real number.
    clip : float > 0 or ClipRule, optional
        Bound on the gradient of each example; a number c stands for ``Flat(c)``. By default
        ``TrainingArguments.max_grad_norm``, which is not applied to whole batches here.
    sampling_rate : float in (0, 1], optional
        Probability that a record enters a batch. By default the expected batch,
        ``per_device_train_batch_size * gradient_accumulation_steps``, divided by the size.
    max_length : int, optional
        Tokens to which every text is padded or truncated. Required unless the records were
        tokenized to a declared length (``tokenize``).
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        The unit of protection; by default one record. Without ``unit_column``, the limit of
        ``unit.max_contributions`` rows per unit is assumed and not checked, and ``statement_``
        says so.
    unit_column : str, optional
        Name of the field with the unit id of a row. Of every unit the first
        ``unit.max_contributions`` rows are then used, and the others contribute nothing. Arrays
        have no such field: pass rows.
    gradients : {"ghost", "functional", "hooks"}, optional
        The engine for per-example gradients. By default "ghost" if it is correct for the model,
        else "functional". The two are tried in this order and not timed.
    random_state : int or Generator, optional
        Makes a run repeatable for tests, and therefore *not private*. None is fresh secret
        entropy, the only choice under which the guarantee holds.

    Examples
    --------
    >>> PrivacyArguments(epsilon=8.0, delta=1e-6, size=67_349, max_length=64).relation
    'add-remove'
    """

    epsilon: float | None = None
    noise_multiplier: float | Schedule | None = None
    delta: float = 1e-5
    size: int | None = None
    clip: float | ClipRule | None = None
    sampling_rate: float | None = None
    max_length: int | None = None
    relation: Relation = "add-remove"
    unit: Unit | None = None
    unit_column: str | None = None
    gradients: EngineName | None = None
    random_state: int | np.random.Generator | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "Expected either epsilon or noise_multiplier, got "
                f"epsilon={self.epsilon!r} and noise_multiplier={self.noise_multiplier!r}. "
                "TrainingArguments fix the number of steps, so one determines the other."
            )
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        _checks.positive(delta=self.delta)
        _checks.fraction(delta=self.delta)
        for name in ("size", "max_length"):
            if getattr(self, name) is not None:
                _checks.whole(**{name: getattr(self, name)})
        if self.sampling_rate is not None:
            _checks.positive(sampling_rate=self.sampling_rate)
            _checks.fraction(sampling_rate=self.sampling_rate)
        _checks.positive_or("a clip rule, such as Flat(1.0)", ClipRule | None, clip=self.clip)
        noise = self.noise_multiplier
        _checks.positive_or("a Schedule", Schedule | None, noise_multiplier=noise)
        _checks.one_of(RELATIONS, relation=self.relation)
        if not isinstance(self.unit, Unit | None):
            raise ValueError(f"Expected unit to be a Unit or None, got {self.unit!r}.")
        column = self.unit_column
        if column is not None and not (isinstance(column, str) and column):
            raise ValueError(f"Expected unit_column to be a name or None, got {column!r}.")
        if column is not None and (self.unit is None or self.unit.name == "record"):
            raise ValueError(
                f"Expected the unit that the ids in unit_column={column!r} identify, got "
                f"unit={self.unit!r}. Pass unit=Unit('patient', max_contributions=...), or "
                "leave out the column if single rows are to be protected."
            )
        if self.gradients is not None:
            _checks.one_of(ENGINE_NAMES, gradients=self.gradients)
        _random.check_state(self.random_state)


Decay = Literal["constant", "linear", "cosine"]
_DECAYS: dict[str, Decay] = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
}


@dataclass(frozen=True)
class WarmupSchedule(Schedule):
    r"""A learning rate with linear warmup that then stays constant or decays to zero.

    .. math:: r \, t / W \text{ for } t < W, \text{ then } r, \;
        r \, (1 - u) \text{ or } r \, (1 + \cos \pi u) / 2
        \text{ for } u = (t - W) / \max(1, T - W)

    at step t, as in ``transformers.get_scheduler``.

    The peak is r, W the number of warmup steps, and T the number of all steps.
    """

    peak: float
    warmup: int
    steps: int
    decay: Decay

    def at(self, step: int) -> float:
        """The rate at one step."""
        if step < self.warmup:
            return self.peak * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        if self.decay == "linear":
            return self.peak * (1 - done)
        if self.decay == "cosine":
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        return self.peak


@dataclass(frozen=True)
class DecoupledWeightDecay:
    r"""An optimizer that also shrinks some of the weights, by :math:`\alpha_t \lambda w`.

    Like Hugging Face's, it does not decay biases and normalizations.

    The rule has no weight decay of its own. Spans are the starts and ends of the decayed weights
    in the vector.
    """

    rule: SGD | Adam
    weight_decay: float
    spans: tuple[tuple[int, int], ...]

    def start(self, weights: Any) -> Any:
        """Initial state of the optimizer."""
        return self.rule.start(weights)

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """Take a step of the optimizer, and decay."""
        moved, state = self.rule.step(weights, gradient, state, t)
        rate = self.rule.learning_rate
        share = (rate.at(t) if isinstance(rate, Schedule) else rate) * self.weight_decay
        for start, end in self.spans:
            moved[start:end] -= share * weights[start:end]
        return moved, state

    def part(self, start: int, end: int) -> "DecoupledWeightDecay":
        """The optimizer for some of the weights."""
        cut = [(max(a, start) - start, min(b, end) - start) for a, b in self.spans]
        return replace(self, spans=tuple((a, b) for a, b in cut if a < b))


def build_dp_sgd(
    args: TrainingArguments,
    privacy: PrivacyArguments,
    size: int,
    layout: Layout,
    decayed: Collection[str],
) -> DPSGD:
    """The DP-SGD run that the arguments describe, with a declared number of records.

    ``layout`` is that of the trained parameters, and ``decayed`` names those with weight decay.
    """
    if privacy.delta * size >= 1:
        raise ValueError(
            f"Expected delta below 1 / size, got delta={privacy.delta!r} with size={size}: it "
            "would allow the publication of whole records. Choose a smaller delta."
        )
    clip = float(args.max_grad_norm) if privacy.clip is None else privacy.clip
    clip = clip if isinstance(clip, ClipRule) else Flat(clip)
    if privacy.sampling_rate is not None:
        rate = float(privacy.sampling_rate)
    else:
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        if batch > size:
            raise ValueError(
                f"Expected a batch of at most {size} records, the declared size, got "
                f"per_device_train_batch_size={args.per_device_train_batch_size} times "
                f"gradient_accumulation_steps={args.gradient_accumulation_steps}."
            )
        rate = batch / size
    limited = args.max_steps > 0
    spec = TrainingSpec(
        privacy.epsilon,
        privacy.delta,
        privacy.noise_multiplier,
        args.max_steps if limited else None,
        None if limited else args.num_train_epochs,
        rate,
        clip,
        SGD(1.0),  # placeholder until the number of steps is known; it affects no cost
        0.0,
        privacy.relation,
        privacy.unit or Unit(),
    )
    resolved = spec.dp_sgd(rate * size)
    schedule = learning_rate_schedule(args, int(resolved.steps))
    betas = (args.adam_beta1, args.adam_beta2)
    if args.optim == "sgd":
        optimizer: Any = SGD(schedule)
    else:
        optimizer = Adam(schedule, betas=betas, stability=args.adam_epsilon)
    if args.weight_decay:
        if not 0 < args.weight_decay < math.inf:
            raise ValueError(f"Expected weight_decay >= 0, got {args.weight_decay!r}.")
        spans = tuple((one.start, one.end) for one in layout.slices if one.name in decayed)
        optimizer = DecoupledWeightDecay(optimizer, float(args.weight_decay), spans)
    return replace(resolved, optimizer=optimizer)


def learning_rate_schedule(args: TrainingArguments, steps: int) -> WarmupSchedule:
    """The learning rate of every step."""
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    warmup = 0 if kind == "constant" else args.get_warmup_steps(steps)
    rate = WarmupSchedule(float(args.learning_rate), int(warmup), steps, _DECAYS[kind])
    if not rate.values(steps).max() > 0:
        raise ValueError(
            f"Expected steps with a learning rate above zero, got {steps} steps with "
            f"warmup_steps={args.warmup_steps!r}. Use more steps, or less warmup."
        )
    return rate


_UNSET = (None, False, "", ())
_PRECISE = "gradients are clipped and summed in float32 and float64"
_ONE_PASS = "per-example gradients need one plain pass through the model"  # noqa: S105
_POISSON = "records are drawn into batches independently (Poisson sampling)"
_PLAIN = "training runs on the CPU of one machine"
_SCHEDULED = "learning rates are fixed before the first step, independent of the records"
_ARGUMENT_RULES: tuple[tuple[str, tuple[object, ...], str], ...] = (  # name, allowed, reason
    ("fp16", _UNSET, _PRECISE),
    ("bf16", _UNSET, _PRECISE),
    ("torch_compile", _UNSET, _ONE_PASS),
    ("gradient_checkpointing", _UNSET, _ONE_PASS),
    ("use_liger_kernel", _UNSET, _ONE_PASS),
    ("neftune_noise_alpha", _UNSET, "noise is added to sums of gradients, not to inputs"),
    ("train_sampling_strategy", ("random",), f"{_POISSON}, whatever their length"),
    ("data_seed", _UNSET, f"{_POISSON}, without a seed"),
    ("full_determinism", _UNSET, "noise and batches are secret, and cannot be repeated"),
    ("dataloader_drop_last", _UNSET, f"{_POISSON}: there is no last batch to drop"),
    ("auto_find_batch_size", _UNSET, "the expected batch is fixed before a record is read"),
    (
        "load_best_model_at_end",
        _UNSET,
        "choosing a model by its score on records would cost privacy that is not charged",
    ),
    (
        "save_strategy",
        ("no", "steps", "epoch"),
        "choosing the best model by its score would cost privacy that is not charged",
    ),
    ("include_num_input_tokens_seen", ("no",), "it counts the tokens of the records"),
    ("optim", ("adamw_torch", "adamw_torch_fused", "sgd"), "Veracal uses its own optimizer"),
    ("lr_scheduler_type", tuple(_DECAYS), _SCHEDULED),
    ("optim_args", _UNSET, "Veracal uses its own optimizer"),
    ("optim_target_modules", _UNSET, "Veracal uses its own optimizer"),
    ("lr_scheduler_kwargs", _UNSET, "Veracal uses its own schedule"),
    ("label_names", (None, ["labels"]), "the labels are classes"),
    ("push_to_hub", _UNSET, "nothing is sent anywhere; use save_model and push yourself"),
    ("enable_jit_checkpoint", _UNSET, "a run cannot be resumed"),
    ("resume_from_checkpoint", _UNSET, "a run cannot be resumed"),
    ("deepspeed", _UNSET, _PLAIN),
    ("fsdp", _UNSET, _PLAIN),
    ("world_size", (1,), _PLAIN),
)
_OWN_LOOP = (
    "compute_loss",
    "create_optimizer",
    "create_scheduler",
    "get_batch_samples",
    "get_train_dataloader",
    "training_step",
    "_get_train_sampler",
)


def check_arguments(args: TrainingArguments, privacy: PrivacyArguments) -> None:
    """Reject arguments that the training cannot honor.

    Raises
    ------
    ValueError
        It names the argument, its allowed values, and the reason.
    """
    for name, allowed, reason in _ARGUMENT_RULES:
        value = getattr(args, name, allowed[0])
        value = getattr(value, "value", value)  # of an enumeration
        if not any(value == one and type(value) is type(one) for one in allowed):
            values = " or ".join(repr(one) for one in allowed if one not in _UNSET)
            raise ValueError(
                f"Expected {f'{name}={values}' if values else f'no {name}'} in a private "
                f"training, got {name}={value!r}: {reason}."
            )
    if args.device.type != "cpu":
        raise ValueError(f"Expected training on the CPU, got {args.device}. Set use_cpu=True.")
    _checks.positive(learning_rate=args.learning_rate)
    # No two arguments may set the same quantity.
    if privacy.sampling_rate is not None and args.gradient_accumulation_steps != 1:
        raise ValueError(
            "Expected sampling_rate or gradient_accumulation_steps, which both set the "
            f"expected batch, got sampling_rate={privacy.sampling_rate!r} and "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps!r}. Remove one."
        )
    bound = getattr(privacy.clip, "bound", privacy.clip)
    default = TrainingArguments.max_grad_norm  # the default need not be a choice
    if bound is None:
        if not args.max_grad_norm or args.max_grad_norm <= 0:
            raise ValueError(
                "Expected max_grad_norm > 0, which bounds the gradient of each example without "
                f"clip, got max_grad_norm={args.max_grad_norm!r}."
            )
    elif args.max_grad_norm not in (default, 0, 0.0, None, bound):
        raise ValueError(
            "Expected one bound on gradients, got "
            f"clip={privacy.clip!r} and max_grad_norm={args.max_grad_norm!r}, which would "
            "bound those of whole batches. Remove max_grad_norm."
        )


def check_trainer(trainer: Trainer) -> None:
    """Reject a trainer with parts that the private training loop does not use.

    Raises
    ------
    ValueError
        It names the part, and the alternative.
    """
    for name in _OWN_LOOP:
        if getattr(type(trainer), name, None) is not getattr(Trainer, name, None):
            raise ValueError(
                f"Expected an unmodified PrivateTrainer, got {type(trainer).__name__}, which "
                f"overrides {name}: it would never be called."
            )
    given = {
        "optimizers": trainer.optimizer or trainer.lr_scheduler,
        "optimizer_cls_and_kwargs": trainer.optimizer_cls_and_kwargs,
        "compute_loss_func": trainer.compute_loss_func,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"Expected no {name}: the loss is cross-entropy and the optimizer follows "
                f"TrainingArguments (optim, learning_rate, weight_decay), got {value!r}."
            )
    mixed = getattr(trainer.accelerator, "mixed_precision", "no")
    if mixed != "no":  # ACCELERATE_MIXED_PRECISION; an evaluation would wrap the model
        raise ValueError(
            f"Expected no mixed precision: {_PRECISE}; got mixed_precision={mixed!r} of "
            "accelerate. Unset ACCELERATE_MIXED_PRECISION."
        )
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback):
            raise ValueError(
                "Expected no EarlyStoppingCallback: a run stopped by scores on records has no "
                "guarantee. Fix the number of steps beforehand."
            )
    collator = trainer.data_collator
    usual = isinstance(collator, DataCollatorWithPadding | DefaultDataCollator)
    if not usual and collator is not default_data_collator:
        raise ValueError(
            "Expected no data_collator, or one that pads, got "
            f"{type(collator).__name__}, which combines several examples. Each text is padded "
            "to max_length separately."
        )
    config = getattr(trainer.model, "config", None)
    classes = getattr(config, "num_labels", None)
    if classes is None or classes < 2:
        raise ValueError(
            "Expected a model for sequence classification with two classes or more, got "
            f"{type(trainer.model).__name__} with num_labels={classes!r}."
        )
    problem = getattr(config, "problem_type", None)
    if problem not in (None, "single_label_classification"):
        raise ValueError(
            "Expected problem_type=None or 'single_label_classification', got "
            f"problem_type={problem!r}."
        )

"""From Hugging Face's arguments to a descent of our own, by public knowledge alone."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import TrainingArguments

from veracal.privacy import SGD, Adam, Clip, Descent, Flat, Schedule, Unit, Update
from veracal.training.deep.hugging_face.arguments import PrivacyArguments
from veracal.training.deep.layout import Layout
from veracal.training.descents import Goal

Falls = Literal["constant", "linear", "cosine"]
_FALLS: dict[str, Falls] = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
}
SCHEDULES = tuple(_FALLS)


@dataclass(frozen=True)
class Warmed(Schedule):
    r"""A learning rate that rises first, and then stays or falls to zero.

    .. math:: r \, t / W \text{ for } t < W, \text{ then } r, \;
        r \, (1 - u) \text{ or } r \, (1 + \cos \pi u) / 2
        \text{ for } u = (t - W) / \max(1, T - W)

    at step t, as ``transformers.get_scheduler`` has it.

    Attributes
    ----------
    peak : float
        The rate r.
    warmup : int
        The number W of steps in which it rises.
    steps : int
        The number T of all steps.
    falls : {"constant", "linear", "cosine"}
        How it falls, if at all.
    """

    peak: float
    warmup: int
    steps: int
    falls: Falls

    def at(self, step: int) -> float:
        """The rate at one step."""
        if step < self.warmup:
            return self.peak * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        if self.falls == "linear":
            return self.peak * (1 - done)
        if self.falls == "cosine":
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        return self.peak


@dataclass(frozen=True)
class Decayed:
    r"""An update rule that also shrinks some of the weights, by :math:`\alpha_t \lambda w`.

    Hugging Face decays neither biases nor normalizations.

    Attributes
    ----------
    rule : SGD or Adam
        Without a decay of its own.
    weight_decay : float
        The factor :math:`\lambda`.
    spans : tuple of (int, int)
        Where the weights that shrink start and end in the vector.
    """

    rule: SGD | Adam
    weight_decay: float
    spans: tuple[tuple[int, int], ...]

    def start(self, weights: Any) -> Any:
        """What the rule remembers."""
        return self.rule.start(weights)

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """Follow the rule, and shrink."""
        moved, state = self.rule.step(weights, gradient, state, t)
        rate = self.rule.rate
        share = (rate.at(t) if isinstance(rate, Schedule) else rate) * self.weight_decay
        for start, end in self.spans:
            moved[start:end] -= share * weights[start:end]
        return moved, state

    def part(self, start: int, end: int) -> "Decayed":
        """The rule for some of the weights."""
        cut = [(max(a, start) - start, min(b, end) - start) for a, b in self.spans]
        return replace(self, spans=tuple((a, b) for a, b in cut if a < b))


def sampling_rate(args: TrainingArguments, privacy: PrivacyArguments, size: int) -> float:
    """Probability that a record enters a batch, from declared numbers alone."""
    if privacy.sampling_rate is not None:
        return float(privacy.sampling_rate)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if batch > size:
        raise ValueError(
            f"Expected a batch of at most {size} records, the declared size, got "
            f"per_device_train_batch_size={args.per_device_train_batch_size} times "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}."
        )
    return batch / size


def descent_for(
    args: TrainingArguments,
    privacy: PrivacyArguments,
    size: int,
    layout: Layout,
    decayed: Collection[str],
) -> Descent:
    """The descent that the arguments describe.

    Parameters
    ----------
    args : TrainingArguments
    privacy : PrivacyArguments
    size : int
        Declared number of records.
    layout : Layout
        Of the parameters that are trained.
    decayed : collection of str
        Names of the parameters that weight decay applies to.
    """
    if privacy.delta * size >= 1:
        raise ValueError(
            f"Expected delta below 1 / size, got delta={privacy.delta!r} with size={size}: it "
            "would allow publishing some record whole. Choose a smaller delta."
        )
    rate = sampling_rate(args, privacy, size)
    limited = args.max_steps > 0
    goal = Goal(
        privacy.epsilon,
        privacy.delta,
        privacy.noise_multiplier,
        args.max_steps if limited else None,
        None if limited else args.num_train_epochs,
        rate,
        _clip(args, privacy),
        SGD(1.0),  # stands in until the number of steps is known; it costs nothing
        0.0,
        privacy.relation,
        privacy.unit or Unit(),
    )
    found = goal.descent(rate * size)
    update = _update(args, int(found.steps), layout, decayed)
    return Descent(
        found.sampler,
        found.clip,
        update,
        found.noise_multiplier,
        found.steps,
        found.expected_batch,
        found.relation,
    )


def _clip(args: TrainingArguments, privacy: PrivacyArguments) -> Clip:
    """The clip rule."""
    if privacy.clip is None:
        return Flat(float(args.max_grad_norm))
    return privacy.clip if isinstance(privacy.clip, Clip) else Flat(privacy.clip)


def _update(
    args: TrainingArguments, steps: int, layout: Layout, decayed: Collection[str]
) -> Update:
    """The update rule, with its schedule."""
    rate = learning_rate(args, steps)
    rule: SGD | Adam
    if args.optim == "sgd":
        rule = SGD(rate)
    else:
        betas = (args.adam_beta1, args.adam_beta2)
        rule = Adam(rate, betas=betas, stability=args.adam_epsilon)
    if not args.weight_decay:
        return rule
    if not 0 < args.weight_decay < math.inf:
        raise ValueError(f"Expected weight_decay >= 0, got {args.weight_decay!r}.")
    spans = tuple((one.start, one.end) for one in layout.places if one.name in decayed)
    return Decayed(rule, float(args.weight_decay), spans)


def learning_rate(args: TrainingArguments, steps: int) -> Warmed:
    """The learning rate of every step."""
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    warmup = 0 if kind == "constant" else args.get_warmup_steps(steps)
    rate = Warmed(float(args.learning_rate), int(warmup), steps, _FALLS[kind])
    if not rate.values(steps).max() > 0:
        raise ValueError(
            f"Expected steps with a learning rate above zero, got {steps} steps with "
            f"warmup_steps={args.warmup_steps!r}. Take more steps, or less warmup."
        )
    return rate

"""Refusals of what a private training could not honor, before anything is read."""

from dataclasses import dataclass
from typing import Any

from transformers import (
    DataCollatorWithPadding,
    DefaultDataCollator,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from veracal import _checks
from veracal.training.deep.hugging_face.arguments import PrivacyArguments
from veracal.training.deep.hugging_face.translating import SCHEDULES


@dataclass(frozen=True)
class _Only:
    """An argument, the values it may have, and why it may have no others."""

    name: str
    allowed: tuple[object, ...]
    why: str


_NONE = (None, False, "", ())
_PRECISE = "gradients are clipped and summed in float32 and float64"
_ONE_PASS = "gradients of examples are taken in one plain pass through the model"  # noqa: S105
_COINS = "every record enters a batch by its own secret coin"
_PLAIN = "it trains on the CPU of one machine"
_SCHEDULED = "rates are settled before the first step, and by no figure of the records"
_ONLY = (
    _Only("fp16", _NONE, _PRECISE),
    _Only("bf16", _NONE, _PRECISE),
    _Only("torch_compile", _NONE, _ONE_PASS),
    _Only("gradient_checkpointing", _NONE, _ONE_PASS),
    _Only("use_liger_kernel", _NONE, _ONE_PASS),
    _Only("neftune_noise_alpha", _NONE, "noise is added to sums of gradients, not to inputs"),
    _Only("train_sampling_strategy", ("random",), f"{_COINS}, whatever its length"),
    _Only("data_seed", _NONE, f"{_COINS}, which no seed repeats"),
    _Only("full_determinism", _NONE, "noise and batches are secret, and cannot be repeated"),
    _Only("dataloader_drop_last", _NONE, f"{_COINS}: there is no last batch to drop"),
    _Only("auto_find_batch_size", _NONE, "the expected batch is fixed before a record is read"),
    _Only(
        "load_best_model_at_end",
        _NONE,
        "choosing a model by its score on records would cost privacy that nobody charged",
    ),
    _Only(
        "save_strategy",
        ("no", "steps", "epoch"),
        "the best model by its score on records is a choice that nobody charged",
    ),
    _Only("include_num_input_tokens_seen", ("no",), "it counts the tokens of the records"),
    _Only("optim_args", _NONE, "the update rule is our own"),
    _Only("optim_target_modules", _NONE, "the update rule is our own"),
    _Only("lr_scheduler_kwargs", _NONE, "the schedule is our own"),
    _Only("label_names", (None, ["labels"]), "the labels are classes"),
    _Only("push_to_hub", _NONE, "nothing is sent anywhere; use save_model and push yourself"),
    _Only("enable_jit_checkpoint", _NONE, "a run cannot be resumed"),
    _Only("resume_from_checkpoint", _NONE, "a run cannot be resumed"),
    _Only("deepspeed", _NONE, _PLAIN),
    _Only("fsdp", _NONE, _PLAIN),
    _Only("world_size", (1,), _PLAIN),
)
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
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
    """Refuse arguments that the training could not keep to.

    Raises
    ------
    ValueError
        Which names the argument, what it may be, and why.
    """
    for only in _ONLY:
        found = _value(getattr(args, only.name, only.allowed[0]))
        if not any(found == one and type(found) is type(one) for one in only.allowed):
            raise ValueError(
                f"Expected {_shown(only)} in a private training, got {only.name}={found!r}: "
                f"{only.why}."
            )
    _check_choice("optim", args.optim, _OPTIMIZERS, "the update rule is our own")
    _check_choice("lr_scheduler_type", args.lr_scheduler_type, SCHEDULES, _SCHEDULED)
    if args.device.type != "cpu":
        raise ValueError(
            f"Expected a training on the CPU, got {args.device}. Set use_cpu=True."
        )
    _checks.positive(learning_rate=args.learning_rate)
    _check_once(args, privacy)


def _check_once(args: TrainingArguments, privacy: PrivacyArguments) -> None:
    """Refuse what is said twice, in two ways."""
    if privacy.sampling_rate is not None and args.gradient_accumulation_steps != 1:
        raise ValueError(
            "Expected sampling_rate or gradient_accumulation_steps, which both fix the "
            f"expected batch, got sampling_rate={privacy.sampling_rate!r} and "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps!r}. Leave one out."
        )
    bound = getattr(privacy.clip, "bound", privacy.clip)
    usual = TrainingArguments.max_grad_norm  # which nobody may have chosen
    if bound is None:
        if not args.max_grad_norm or args.max_grad_norm <= 0:
            raise ValueError(
                "Expected max_grad_norm > 0, which bounds the gradient of each example where "
                f"clip is not given, got max_grad_norm={args.max_grad_norm!r}."
            )
    elif args.max_grad_norm not in (usual, 0, 0.0, None, bound):
        raise ValueError(
            "Expected one bound on gradients, got "
            f"clip={privacy.clip!r} and max_grad_norm={args.max_grad_norm!r}, which would "
            "bound those of whole batches. Leave out max_grad_norm."
        )


def check_trainer(trainer: Trainer) -> None:
    """Refuse a trainer with parts that its own loop has no use for.

    Raises
    ------
    ValueError
        Which names the part, and what to do.
    """
    for name in _OWN_LOOP:
        if getattr(type(trainer), name, None) is not getattr(Trainer, name, None):
            raise ValueError(
                f"Expected a PrivateTrainer as it is, got {type(trainer).__name__}, which "
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
                f"Expected no {name}: the loss is cross-entropy and the update follows "
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
                "Expected no EarlyStoppingCallback: a run that scores on records have ended "
                "promises nothing. Fix the number of steps beforehand."
            )
    _check_collator(trainer.data_collator)
    _check_task(trainer.model)


def _check_collator(collator: Any) -> None:
    """Refuse a collator that would see examples together."""
    usual = isinstance(collator, DataCollatorWithPadding | DefaultDataCollator)
    if not usual and collator is not default_data_collator:
        raise ValueError(
            "Expected no data_collator, or one that pads, got "
            f"{type(collator).__name__}: it sees several examples at once. Texts are padded to "
            "max_length here, each by itself."
        )


def _check_task(model: Any) -> None:
    """Refuse a model that does not choose one of several classes."""
    config = getattr(model, "config", None)
    classes = getattr(config, "num_labels", None)
    if classes is None or classes < 2:
        raise ValueError(
            "Expected a model for sequence classification with two classes or more, got "
            f"{type(model).__name__} with num_labels={classes!r}."
        )
    problem = getattr(config, "problem_type", None)
    if problem not in (None, "single_label_classification"):
        raise ValueError(
            "Expected problem_type=None or 'single_label_classification', got "
            f"problem_type={problem!r}."
        )


def _check_choice(name: str, found: Any, allowed: tuple[str, ...], why: str) -> None:
    """Refuse a word that is not among those allowed."""
    if _value(found) not in allowed:
        raise ValueError(
            f"Expected {name} to be one of {', '.join(map(repr, allowed))}, got "
            f"{name}={_value(found)!r}: {why}. Choose one of these."
        )


def _value(found: Any) -> Any:
    """What an enumeration stands for."""
    return getattr(found, "value", found)


def _shown(only: _Only) -> str:
    """What an argument may be, as one would write it."""
    words = [repr(one) for one in only.allowed if one not in _NONE]
    return f"{only.name}={' or '.join(words)}" if words else f"no {only.name}"

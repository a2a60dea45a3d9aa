"""Hugging Face's trainer with differential privacy."""

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput, rotate_checkpoints, speed_metrics

from veracal import _random
from veracal._threads import threadpool_limits
from veracal._types import Floats
from veracal.accounting import (
    REPEATABLE,
    UNCHARGED,
    UNFINISHED,
    Event,
    NotPrivate,
    Statement,
    Unit,
    statement,
)
from veracal.errors import DataError
from veracal.ledger import Ledger, check_ledger, ledger_total
from veracal.mechanisms import DPSGD, Poisson, Step, TrainingResult
from veracal.neural.examples import (
    Block,
    LossFunction,
    cross_entropy,
    replace_each,
    replace_halves,
)
from veracal.neural.gradient_sums import GradientEngine, Layout, NetworkSums
from veracal.neural.gradients.choice import EngineName, EngineTrial, choose_engine
from veracal.neural.huggingface.arguments import (
    PrivacyArguments,
    build_dp_sgd,
    check_arguments,
    check_trainer,
    learning_rate_schedule,
)
from veracal.neural.huggingface.data import (
    SequenceClassifierModule,
    TextFormat,
    as_dataset,
    check_columns,
    load_records,
    synthetic_texts,
    text_format,
)
from veracal.neural.module_checks import check_behavior, check_module, set_train_mode
from veracal.neural.run import InternalFigures, NoisySumMonitor, SelfCheck
from veracal.training import check_size, describe_initial_weights, record_trained_weights

_FEW = 3  # synthetic examples on which a model and its gradients are tried
_RELEASED = ("step", "epoch", "grad_norm", "learning_rate")  # in the log of a step
# Tried in this order and not timed, since timing needs more memory.
_ENGINES: tuple[EngineName, ...] = ("ghost", "functional")
_UNTRAINED = "this trainer has not trained it"
_UNDECLARED = "the number of records was read from them; declare size=..."
_ENDED = "its run was ended by a hook, which may have seen records"


class CallbackNotifier:
    """Called after every step; logs, evaluates and saves where the callbacks ask for it.

    The log contains released values only: the norm of the noisy gradient and the learning rate.
    The training loss is not private, so it is not computed. The trainer's model is inside the
    trained module.
    """

    def __init__(
        self, trainer: Any, module: nn.Module, dp_sgd: DPSGD, ignore_keys: list[str] | None
    ) -> None:
        self._trainer, self._module, self._layout = trainer, module, Layout(module)
        self._batch, self._ignore_keys = dp_sgd.expected_batch, ignore_keys
        self._share = dp_sgd.sampler.rate if isinstance(dp_sgd.sampler, Poisson) else 1.0
        self._epoch = max(1, math.ceil(1 / self._share * (1 - 1e-12)))
        self._steps, self._logged = int(dp_sgd.steps), 0
        self.rate = learning_rate_schedule(trainer.args, self._steps)

    def begin(self) -> None:
        """Call the callbacks at the start of training."""
        trainer = self._trainer
        objects = [*trainer.callback_handler.callbacks, trainer.control]
        exportable: list[Any] = [one for one in objects if isinstance(one, ExportableState)]
        trainer.state = state = TrainerState(
            max_steps=self._steps,
            num_train_epochs=math.ceil(self._steps * self._share),
            train_batch_size=trainer.args.per_device_train_batch_size,
            is_local_process_zero=trainer.is_local_process_zero(),
            is_world_process_zero=trainer.is_world_process_zero(),
            stateful_callbacks=exportable,
        )
        state.compute_steps(trainer.args, self._steps)  # type: ignore[no-untyped-call]
        trainer.is_in_train = True
        self.notify("on_train_begin")
        if trainer.args.eval_on_start:
            trainer.evaluate(ignore_keys=self._ignore_keys)
        self.notify("on_epoch_begin")
        self.notify("on_step_begin")
        set_train_mode(self._module)

    def __call__(self, step: Step) -> bool:
        """Call the callbacks after a step; return whether one of them ends the training."""
        self._layout.share(step.weights, self._module)
        trainer, last = self._trainer, step.number + 1 == self._steps
        trainer.state.global_step = step.number + 1
        trainer.state.epoch = (step.number + 1) * self._share
        self.notify("on_step_end")
        self._run_requests(step)
        if last or trainer.control.should_epoch_stop or (step.number + 1) % self._epoch == 0:
            self.notify("on_epoch_end")
            self._run_requests(step)
            if not last:
                self.notify("on_epoch_begin")
        stop = bool(trainer.control.should_training_stop)
        if not stop:
            self.notify("on_step_begin")
        set_train_mode(self._module)  # a callback may have changed the mode
        return stop

    def notify(self, event: str) -> None:
        """Call all callbacks for an event."""
        trainer = self._trainer
        handler = getattr(trainer.callback_handler, event)
        trainer.control = handler(trainer.args, trainer.state, trainer.control)

    def _run_requests(self, step: Step) -> None:
        """Log, evaluate or save if a callback requested it."""
        trainer = self._trainer
        if trainer.control.should_log and step.number >= self._logged:
            self._logged = step.number + 1
            norm = float(np.linalg.norm(step.noisy_sum)) / self._batch
            rate = self.rate.at(step.number)
            trainer.log({"grad_norm": norm, "learning_rate": rate})
        if trainer.control.should_evaluate:
            trainer.evaluate(ignore_keys=self._ignore_keys)
        if trainer.control.should_save:
            trainer._save_checkpoint(trainer.model, None)
            self.notify("on_save")


class _TrainingPlan(NamedTuple):
    """A checked training, before a record is read."""

    module: SequenceClassifierModule
    form: TextFormat
    dp_sgd: DPSGD
    reasons: tuple[str, ...]


class PrivateTrainer(Trainer):
    """A ``transformers.Trainer`` for sequence classification, with differential privacy.

    A script changes by its import and one argument, ``privacy=PrivacyArguments(...)``. At every
    step each record is drawn into the batch independently; the gradient of each record is
    clipped, the clipped gradients are summed, Gaussian noise is added, and the optimizer
    updates the weights (Abadi et al. 2016, https://arxiv.org/abs/1607.00133; Li et al. 2022,
    https://arxiv.org/abs/2110.05679, for language models).

    ``TrainingArguments`` keep their meaning, with these exceptions:
    ``per_device_train_batch_size`` is the number of examples in memory at a time, and times
    ``gradient_accumulation_steps`` the *expected* batch size; ``max_grad_norm`` bounds the
    gradient of each example unless ``privacy`` has a clip rule. Arguments that cannot be
    honored are rejected.

    Parameters
    ----------
    *inherited, **settings
        Everything that ``transformers.Trainer`` accepts. ``train_dataset`` is a
        :class:`~veracal.neural.Tokens`, a mapping of names to arrays, or an indexable sequence
        of rows, each a mapping with ``input_ids`` and ``labels``, and with
        ``privacy.unit_column`` if that is given.
    privacy : PrivacyArguments
    ledger : Ledger, optional
        Charged before a record is read.
    purpose : str
        For the ledger.
    partition : str, optional
        The part of the ledger that holds the records.

    Attributes
    ----------
    event_ : Event or None
        Cost of the training.
    private_ : bool
        Whether the guarantee of ``event_`` holds.
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate
        The guarantee of the training, in words and as JSON.
    trial_ : EngineTrial
        The chosen gradient engine, and why those before it were rejected. The first correct
        engine is used, ghost before functional, and none is timed, whereas ``PrivateNetwork``
        tries and times them all: for a model of this size, materializing the gradients of a
        block would take more memory than its training.
    self_check_ : SelfCheck
        Checks of the training: noise, and outputs that differ. Problems also give a warning.
    internal_ : InternalFigures
        Number of examples whose gradients were clipped or not finite, and of excluded records.
        *Internal*: it is about the records, and must not be released.

    Guarantees
    ----------
    The weights after all steps cost what :meth:`event` states, which depends on arguments
    alone: one record moves the sum that noise is added to by at most the clip bound, and a
    record whose gradient is not finite moves nothing. The contribution of a record does not
    depend on the others, not even by rounding
    (:class:`~veracal.neural.gradient_sums.NetworkSums`); under a discontinuous clip rule, every
    record is therefore computed individually, which is slow. Noise comes from a secret
    generator seeded by the system's entropy, which no seed of ``TrainingArguments`` reaches.
    The initial weights of the model are assumed to be public. Evaluations are for the user who
    trains: they are not charged, so they stay in ``state`` and are written to no file beside
    the weights. No error depends on a record: records with labels or tokens out of range,
    records without a unit id, and rows of a unit beyond the first ``unit.max_contributions``
    contribute nothing, and ``internal_.excluded`` counts them. :meth:`check_records` finds them
    beforehand.

    Notes
    -----
    It trains once: training that continues from these weights is another release and needs
    another trainer, whose cost is added to this one's.

    The model's parameters are those of the training loop, and not a copy: values that a
    callback writes into them are trained on. That costs no privacy if the callback has seen no
    record.
    """

    model: Any
    train_dataset: Any

    # All arguments of Hugging Face's trainer are passed on.
    def __init__(
        self,
        *inherited: Any,
        privacy: PrivacyArguments,
        ledger: Ledger | None = None,
        purpose: str = "training",
        partition: str | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(privacy, PrivacyArguments):
            raise ValueError(f"Expected privacy to be PrivacyArguments, got {privacy!r}.")
        if ledger is not None:
            check_ledger(ledger)
        model = settings.get("model", inherited[0] if inherited else None)
        if isinstance(model, nn.Module) and any(one.is_meta for one in model.parameters()):
            check_module(model)  # before Hugging Face's trainer fails to move it
        super().__init__(*inherited, **settings)
        self.privacy, self.ledger, self.purpose, self.partition = (
            privacy,
            ledger,
            purpose,
            partition,
        )
        self.train_dataset = as_dataset(self.train_dataset)
        self.eval_dataset = as_dataset(self.eval_dataset)
        self.event_: Event | None = None
        self._ledger_total: str | None = None
        self.not_private_because_: tuple[str, ...] = (_UNTRAINED,)
        self._check()

    def _check(self) -> None:
        """Reject what cannot be honored, by the settings alone."""
        check_arguments(self.args, self.privacy)
        check_trainer(self)
        check_module(self.model)
        unit = self.privacy.unit or Unit()
        if self.ledger is not None and self.ledger.budget.unit != unit:
            raise ValueError(
                f"Expected unit={self.ledger.budget.unit!r}, which the ledger protects, got "
                f"unit={unit!r}."
            )
        undeclared = self.privacy.size is None and self.privacy.relation == "add-remove"
        if self.ledger is not None and undeclared:
            # The event contains the rate, which would reveal the real number in the ledger.
            raise ValueError(
                "Expected a declared size with a ledger, got size=None: the number of records "
                "would be read from them, and revealed by the charged sampling rate. Pass "
                "PrivacyArguments(size=...). Nothing was charged."
            )

    def event(self) -> Event:
        """Cost of the training, known before any record is read."""
        return self._plan().dp_sgd.event()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and leave the weights in ``model``.

        A run cannot be resumed, and a hyperparameter search on the records would cost more than
        one run. The loss of the output is NaN: it is neither computed nor charged.
        """
        self._check_fresh(resume_from_checkpoint, trial)
        plan = self._plan()
        event = plan.dp_sgd.event()
        engine, self.trial_ = self._choose_engine(plan)
        if self.ledger is not None:
            self.ledger.charge(event, self.purpose, partition=self.partition)
            self._ledger_total = ledger_total(self.ledger)
        # From here on records are read. No guarantee is stated until the end.
        self.not_private_because_ = (UNFINISHED,)
        started = time.time()
        result = self._run_steps(plan, engine, ignore_keys_for_eval)
        early_stop = (_ENDED,) if result.steps < plan.dp_sgd.steps else ()
        self.not_private_because_ = plan.reasons + early_stop
        self.event_ = event
        metrics = speed_metrics(  # type: ignore[no-untyped-call]
            "train", started, num_steps=result.steps
        )
        return TrainOutput(result.steps, float("nan"), metrics)

    def check_records(self) -> None:
        """Raise a DataError that counts the records a training would exclude, if there are any.

        It reads records and is not charged, so its result is *internal*: for the data holder.
        """
        plan, privacy = self._plan(), self.privacy
        kept = load_records(self.train_dataset, plan.form, privacy.unit, privacy.unit_column)
        excluded = len(self.train_dataset) - len(kept)
        if excluded:
            raise DataError(
                "train_dataset",
                f"rows of whole numbers, labels from 0 to {plan.form.classes - 1}, tokens from "
                f"0 to {plan.form.vocabulary - 1} and no more rows of a unit than declared",
                f"{excluded} invalid ones",
                "Correct them before the training, which would exclude them. Do not publish "
                "this number.",
            )

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "A trainer holds records and cannot be copied or pickled. Save the model with "
            "save_model(folder)."
        )

    def _check_fresh(self, resume_from_checkpoint: Any, trial: Any) -> None:
        """Reject a resumed or repeated run, or one of a hyperparameter search."""
        self._check()
        if resume_from_checkpoint:
            raise ValueError(
                "Expected resume_from_checkpoint=None, got "
                f"{resume_from_checkpoint!r}: a run cannot be resumed."
            )
        if trial is not None:
            raise ValueError(
                "Expected no hyperparameter search: choosing settings by runs on the records "
                "costs more than one run. Use veracal.training.search."
            )
        if self.not_private_because_ != (_UNTRAINED,):
            raise ValueError(
                "Expected a trainer that has not trained yet. Load the model again and create "
                "another trainer; their costs add up."
            )

    def _plan(self) -> _TrainingPlan:
        """Plan the training from public information."""
        self._check()
        privacy, tokenizer = self.privacy, self.processing_class
        pad = getattr(tokenizer, "pad_token_id", None)
        form = text_format(self.train_dataset, self.model, privacy.max_length, pad)
        check_columns(self.train_dataset, privacy.unit_column)
        reasons: tuple[str, ...] = ()
        size, n = privacy.size, len(self.train_dataset)
        if size is None:
            reasons += (_UNDECLARED,) if privacy.relation == "add-remove" else ()
            size = max(1, n)
        check_size(size, n, privacy.relation)
        if not _random.is_secret(_random.generator(privacy.random_state)):
            reasons += (REPEATABLE,)
        module = SequenceClassifierModule(self.model)
        decayed = {f"model.{name}" for name in self.get_decay_parameter_names(self.model)}
        dp_sgd = build_dp_sgd(self.args, privacy, int(size), Layout(module), decayed)
        return _TrainingPlan(module, form, dp_sgd, reasons)

    def _choose_engine(self, plan: _TrainingPlan) -> tuple[GradientEngine, EngineTrial]:
        """Try the model on synthetic texts; return the requested or the first correct engine."""
        form, module = plan.form, plan.module
        many = self.args.per_device_train_batch_size
        # Blocks of a few texts, each replaced in turn, then full ones.
        every = [(_FEW, replace_each), *([(many, replace_halves)] if many > _FEW else [])]
        trials = []
        for n, replacement in every:
            texts = synthetic_texts(form.names, form.length, 2 * n, self.model.config)
            trials.append(
                [
                    Block(
                        {name: one[indices] for name, one in texts.items()},
                        torch.arange(n) % form.classes,
                    )
                    for indices in replacement(n)
                ]
            )
        texts = synthetic_texts(form.names, form.length, 2 * _FEW, self.model.config)
        with torch.random.fork_rng(devices=[]):
            module.choose_mask_shape(texts)
            check_behavior(module, trials[0], form.classes, *trials[1:])
            set_train_mode(module)
            try:
                return choose_engine(
                    module,
                    self._losses(),
                    trials[0][0],
                    None,
                    block_size=max(_FEW, many),
                    requested=self.privacy.gradients,
                    among=_ENGINES,
                )
            except ValueError as error:
                raise ValueError(
                    f"{error} Train only adapters or supported layers: add_lora(model), or "
                    "train_only(model, 'classifier.*') with the names of its parameters."
                ) from error

    def _losses(self) -> LossFunction:
        """Loss of each example."""
        smoothing = float(self.args.label_smoothing_factor)
        if not smoothing:
            return cross_entropy
        return partial(nn.functional.cross_entropy, reduction="none", label_smoothing=smoothing)

    def _run_steps(
        self, plan: _TrainingPlan, engine: GradientEngine, ignore_keys: list[str] | None
    ) -> TrainingResult:
        """Read the records and train."""
        rng = _random.generator(self.privacy.random_state)
        (slot_rng,) = rng.spawn(1)
        module, form, dp_sgd, _ = plan
        records = load_records(
            self.train_dataset, form, self.privacy.unit, self.privacy.unit_column
        )
        block = self.args.per_device_train_batch_size
        sums = NetworkSums([engine], records, dp_sgd.expected_batch, block, rng=slot_rng)
        notifier = CallbackNotifier(self, module, dp_sgd, ignore_keys)
        layout = Layout(module)
        monitor = NoisySumMonitor(dp_sgd, layout.size)

        def on_step(step: Step) -> bool:
            monitor.record(step)
            return notifier(step)

        self._initial_weights_note = describe_initial_weights(
            one.detach().to(torch.float32).numpy() for one in module.parameters()
        )
        initial_weights = layout.read(module)
        digests = layout.digests(initial_weights)
        layout.share(initial_weights, module)
        # numpy's BLAS threads and torch's would wait for each other.
        with threadpool_limits(1, user_api="blas"), torch.random.fork_rng(devices=[]):
            notifier.begin()
            result = dp_sgd.run(
                initial_weights, sums, len(records), rng=rng, on_step=on_step, in_place=True
            )
        layout.share(result.weights, module)
        trained = (one for one in module.parameters() if one.requires_grad)
        record_trained_weights((one.detach().numpy() for one in trained), "train_dataset")
        counts, excluded = sums.counts, len(self.train_dataset) - len(records)
        self.internal_ = InternalFigures(
            counts.examples, counts.clipped, counts.nonfinite, excluded
        )
        if notifier.rate.values(result.steps).any():
            _check_all_moved(layout, digests, result.weights)
        texts = synthetic_texts(form.names, form.length, 2 * _FEW, self.model.config)
        with torch.no_grad():
            logits = module.eval()(**texts)
        set_train_mode(module)  # restore the mode
        noise, least_noise, noise_only = monitor.figures()
        constant = bool((logits == logits[0]).all())
        self.self_check_ = SelfCheck(noise, least_noise, (), constant, noise_only)
        self.is_in_train = False
        notifier.notify("on_train_end")
        self.self_check_.warn()
        return result

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save the weights after a step, which its event covers, and no optimizer state."""
        folder = Path(self.args.output_dir or ".") / f"checkpoint-{self.state.global_step}"
        self.save_model(str(folder), _internal_call=True)
        self._save_state(folder)
        rotate_checkpoints(str(folder.parent), save_total_limit=self.args.save_total_limit)

    def save_state(self) -> None:
        """Save ``trainer_state.json``, without evaluation results."""
        if self.is_world_process_zero():
            self._save_state(Path(self.args.output_dir or "."))

    def _save_state(self, folder: Path) -> None:
        """Write the released values of steps, and the arguments.

        Evaluation results, and what callbacks and the choice of a best step derive from them,
        are about records and were not charged; a folder with weights is passed on.
        """
        steps = [
            {name: entry[name] for name in _RELEASED if name in entry}
            for entry in self.state.log_history
            if "grad_norm" in entry
        ]
        state = replace(
            self.state,
            log_history=steps,
            best_metric=None,
            best_global_step=None,
            best_model_checkpoint=None,
            stateful_callbacks=[],
        )
        state.save_to_json(str(folder / "trainer_state.json"))

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this training."""
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """The guarantee of this training; computed on access."""
        if self.event_ is None or self.not_private_because_:
            return NotPrivate(self.not_private_because_)
        unit, claims = self.privacy.unit or Unit(), list[str]()
        if unit != Unit() and self.privacy.unit_column is None:
            rows = (
                "one row" if unit.max_contributions == 1 else f"{unit.max_contributions} rows"
            )
            claims.append(
                f"any {unit.name} with more than {rows}: the rows had no ids, so that the bound "
                "was declared and not checked"
            )
        charged = () if self.ledger is not None else (UNCHARGED,)
        return statement(
            self.event_,
            self.privacy.delta,
            self.privacy.unit,
            covers=("the weights of the classifier, after every step",),
            not_covered=(*charged, *self._initial_weights_note, *claims),
            ledger_total=self._ledger_total,
        )


def _check_all_moved(layout: Layout, first: tuple[bytes, ...], last: Floats) -> None:
    """Raise if a trained parameter did not change.

    Noise alone changes every one of them: a parameter that stays was not trained, whatever the
    model's scores (https://github.com/pytorch/opacus/issues/820).
    """
    unchanged = [name.removeprefix("model.") for name in layout.unchanged(first, last)]
    if unchanged:
        raise RuntimeError(
            f"Expected every trained parameter to change, but {', '.join(unchanged[:5])} did "
            "not. Raise learning_rate, or freeze unused parameters; otherwise report a bug. Do "
            "not rely on this model."
        )

"""Tells Hugging Face's callbacks about the steps of a descent.

Hugging Face's trainer, with differential privacy.
"""

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

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
from veracal.neural.gradient_sums import GradientWorker, Layout, NetworkSums
from veracal.neural.gradients.blocks import Block, GradientEngine, LossFunction, cross_entropy
from veracal.neural.gradients.choice import EngineName, EngineTrial, choose_engine
from veracal.neural.huggingface.arguments import (
    PrivacyArguments,
    WarmupSchedule,
    build_dp_sgd,
    check_arguments,
    check_trainer,
    learning_rate_schedule,
)
from veracal.neural.huggingface.data import (
    SequenceClassifierModule,
    TextFormat,
    as_dataset,
    check_column_names,
    check_unit_column,
    load_records,
    synthetic_texts,
    text_format,
)
from veracal.neural.module_checks import check_behavior, check_module, set_train_mode
from veracal.neural.run import InternalFigures, NoisySumMonitor, SelfCheck
from veracal.neural.synthetic_inputs import replace_each, replace_halves
from veracal.training import check_size, not_covered, remember


class CallbackNotifier:
    """Called after every step; logs, evaluates and saves where the callbacks ask for it.

    What is logged is noisy already: the length of the gradient that was followed, and the
    learning rate. The loss on the records is not, so nobody computes it.

    Parameters
    ----------
    trainer : PrivateTrainer
    module : torch.nn.Module
        That is trained, with the trainer's model inside.
    descent : Descent
    rate : Warmed
        The learning rate.
    ignore : list of str, optional
        What an evaluation leaves out.
    """

    def __init__(
        self,
        trainer: Any,
        module: nn.Module,
        descent: DPSGD,
        rate: WarmupSchedule,
        ignore: list[str] | None,
    ) -> None:
        self._trainer, self._module, self._rate = trainer, module, rate
        self._batch, self._ignore = descent.expected_batch, ignore
        self._layout = Layout(module)
        self._share = descent.sampler.rate if isinstance(descent.sampler, Poisson) else 1.0
        self._epoch = max(1, math.ceil(1 / self._share * (1 - 1e-12)))
        self._steps, self._logged = int(descent.steps), 0

    def begin(self) -> None:
        """Say that a training begins."""
        trainer = self._trainer
        every = [*trainer.callback_handler.callbacks, trainer.control]
        kept: list[Any] = [one for one in every if isinstance(one, ExportableState)]
        trainer.state = state = TrainerState(
            max_steps=self._steps,
            num_train_epochs=math.ceil(self._steps * self._share),
            train_batch_size=trainer.args.per_device_train_batch_size,
            is_local_process_zero=trainer.is_local_process_zero(),
            is_world_process_zero=trainer.is_world_process_zero(),
            stateful_callbacks=kept,
        )
        state.compute_steps(trainer.args, self._steps)  # type: ignore[no-untyped-call]
        trainer.is_in_train = True
        self._tell("on_train_begin")
        if trainer.args.eval_on_start:
            trainer.evaluate(ignore_keys=self._ignore)
        self._tell("on_epoch_begin")
        self._tell("on_step_begin")
        set_train_mode(self._module)

    def __call__(self, step: Step) -> bool:
        """Tell of a step; whether a callback ends the training."""
        self._layout.share(step.weights, self._module)
        trainer, last = self._trainer, step.number + 1 == self._steps
        trainer.state.global_step = step.number + 1
        trainer.state.epoch = (step.number + 1) * self._share
        self._tell("on_step_end")
        self._do(step)
        if last or trainer.control.should_epoch_stop or (step.number + 1) % self._epoch == 0:
            self._tell("on_epoch_end")
            self._do(step)
            if not last:
                self._tell("on_epoch_begin")
        ended = bool(trainer.control.should_training_stop)
        if not ended:
            self._tell("on_step_begin")
        set_train_mode(self._module)  # whoever was told may have set another mode
        return ended

    def end(self) -> None:
        """Say that the training has ended."""
        self._trainer.is_in_train = False
        self._tell("on_train_end")

    def _tell(self, what: str) -> None:
        """Call all callbacks."""
        trainer = self._trainer
        told = getattr(trainer.callback_handler, what)
        trainer.control = told(trainer.args, trainer.state, trainer.control)

    def _do(self, step: Step) -> None:
        """What the callbacks asked for."""
        trainer = self._trainer
        if trainer.control.should_log and step.number >= self._logged:
            self._logged = step.number + 1
            length = float(np.linalg.norm(step.noisy_sum)) / self._batch
            rate = self._rate.at(step.number)
            trainer.log({"grad_norm": length, "learning_rate": rate})
        if trainer.control.should_evaluate:
            trainer.evaluate(ignore_keys=self._ignore)
        if trainer.control.should_save:
            trainer._save_checkpoint(trainer.model, None)
            self._tell("on_save")


_FEW = 3  # made-up examples on which a model and its gradients are tried
_TARGETS = torch.arange(_FEW)
_RELEASED = ("step", "epoch", "grad_norm", "learning_rate")  # in the log of a step
_ENGINES: tuple[EngineName, ...] = (
    "ghost",
    "functional",
)  # in turn, and not timed: that takes room
_UNTRAINED = "it was not trained here"
_UNDECLARED = "the number of records was read from them; declare size=..."
_ENDED = "its run was ended by a hook, which may have looked at records"


@dataclass(frozen=True, eq=False, repr=False)
class _TrainingPlan:
    """A training that is settled and tried, before a record is read."""

    module: SequenceClassifierModule
    form: TextFormat
    descent: DPSGD
    reasons: tuple[str, ...]


class PrivateTrainer(Trainer):
    r"""A ``transformers.Trainer`` for sequence classification, with differential privacy.

    A script changes by its import and one argument, ``privacy=PrivacyArguments(...)``. At every
    step each record enters the batch by a secret coin; the gradient of each record is clipped,
    the clipped gradients are summed, Gaussian noise is added, and the weights follow (Abadi et
    al. 2016, https://arxiv.org/abs/1607.00133; Li et al. 2022,
    https://arxiv.org/abs/2110.05679, for language models).

    ``TrainingArguments`` mean what they mean elsewhere, with these exceptions:
    ``per_device_train_batch_size`` is how many examples are in memory at a time, and times
    ``gradient_accumulation_steps`` how many are *expected* in a batch; ``max_grad_norm`` bounds
    the gradient of each example where ``privacy`` has no clip. What could not be honored is
    refused.

    Parameters
    ----------
    *inherited, **settings
        All that ``transformers.Trainer`` takes. ``train_dataset`` is a
        :class:`~veracal.neural.Tokens`, a mapping of names to arrays, or
        rows by number, each a mapping with ``input_ids`` and ``labels``, and with
        ``privacy.unit_column`` if there is one.
    privacy : PrivacyArguments
    ledger : Ledger, optional
        Charged before a record is read.
    purpose : str
        For the ledger.
    part : str, optional
        Part of the ledger that the records are.

    Attributes
    ----------
    event_ : Event or None
        What the training cost.
    private_ : bool
        Whether the guarantee of ``event_`` holds.
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate
        What the training promises, in words and as JSON.
    trial_ : Trial
        Which way of taking gradients was chosen, and what was wrong with those before it. The
        first that is right is taken, ghost before functional, and none is timed, where
        ``PrivateNetwork`` tries and times them all: for a model of this size, writing the
        gradients of a block down would take more memory than its training.
    self_check_ : SelfCheck
        What the training shows of itself: noise, and outputs that differ. What is wrong is
        also warned of.
    internal_ : Internal
        Of how many examples gradients were clipped, how many were not finite, and how many
        records were left out. *Internal*: it is about the records, and must not leave.

    Guarantees
    ----------
    The weights after all steps cost what :meth:`event` says, which depends on arguments alone:
    one record moves the sum that noise is added to by at most the clip bound, and a record
    whose gradient is not finite moves nothing. What a record adds does not depend on the
    others, not even by a rounding (:class:`~veracal.neural.gradient_sums.NetworkSums`); under a
    clip rule that jumps, every record is therefore computed by itself, which is slow. Noise
    comes from a secret generator of the system's entropy, which no seed of
    ``TrainingArguments`` reaches. The weights that the model came with are taken to be public.
    Evaluations are figures for whoever trains: nobody charged them, so they stay in ``state``
    and no file beside the weights has them. No error depends on a record: one with a label or
    a token that there is not, one that does not say whose it is and rows of a unit beyond the
    first ``unit.at_most`` contribute nothing, and ``internal_.left_out`` counts them.
    :meth:`check_records` finds them beforehand.

    Notes
    -----
    It trains once: what would follow from weights that were trained here is another release
    and asks for another trainer, whose cost adds to this one's.

    Weights of the model are those of the descent, and not a copy: what a callback writes into
    them is trained on. That costs no privacy as long as the callback has seen no record.
    """

    model: Any
    train_dataset: Any

    # Whatever Hugging Face's trainer takes is passed on: scripts use all of it.
    def __init__(
        self,
        *inherited: Any,
        privacy: PrivacyArguments,
        ledger: Ledger | None = None,
        purpose: str = "training",
        part: str | None = None,
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
        self.privacy, self.ledger, self.purpose, self.part = privacy, ledger, purpose, part
        self.train_dataset = as_dataset(self.train_dataset)
        self.eval_dataset = as_dataset(self.eval_dataset)
        self.event_: Event | None = None
        self._ledger_total: str | None = None
        self.not_private_because_: tuple[str, ...] = (_UNTRAINED,)
        self._check()

    def _check(self) -> None:
        """Refuse what could not be honored, by the settings alone."""
        check_arguments(self.args, self.privacy)
        check_trainer(self)
        check_module(self.model)
        unit = self.privacy.unit or Unit()
        if self.ledger is not None and self.ledger.budget.unit != unit:
            raise ValueError(
                f"Expected unit={self.ledger.budget.unit!r}, whom the ledger protects, got "
                f"unit={unit!r}."
            )
        undeclared = self.privacy.size is None and self.privacy.relation == "add-remove"
        if self.ledger is not None and undeclared:
            # The event has the rate, by which whoever reads the ledger knows the real number.
            raise ValueError(
                "Expected a declared size for what a ledger pays for, got size=None: the "
                "number of records would be read from them, and charged as a sampling rate. "
                "Give PrivacyArguments(size=...). Nothing was charged."
            )

    def event(self) -> Event:
        """Cost of the training, known before any record is read."""
        return self._planned().descent.event()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and leave the weights in ``model``.

        Parameters
        ----------
        resume_from_checkpoint, trial
            None: a run cannot be resumed, and settings that are chosen by trying them on the
            records would cost more than one run.
        ignore_keys_for_eval : list of str, optional

        Returns
        -------
        TrainOutput
            Its loss is NaN: nobody computes, and nobody charges, the loss on the records.
        """
        self._check_fresh(resume_from_checkpoint, trial)
        plan = self._planned()
        event = plan.descent.event()
        engine, self.trial_ = self._engine(plan)
        if self.ledger is not None:
            self.ledger.charge(event, self.purpose, part=self.part)
            self._ledger_total = ledger_total(self.ledger)
        # From here on records are read. What is claimed waits until the end.
        self.not_private_because_ = (UNFINISHED,)
        started = time.time()
        done = self._descended(plan, engine, ignore_keys_for_eval)
        ended = (_ENDED,) if done.steps < plan.descent.steps else ()
        self.not_private_because_ = plan.reasons + ended
        self.event_ = event
        metrics = speed_metrics(  # type: ignore[no-untyped-call]
            "train", started, num_steps=done.steps
        )
        return TrainOutput(done.steps, float("nan"), metrics)

    def check_records(self) -> None:
        """Look for records that a training would leave out; for the data holder alone.

        It reads records and nothing is charged for it, so that what it says is *internal*.

        Raises
        ------
        DataError
            If there are any; it says how many.
        """
        plan, privacy = self._planned(), self.privacy
        kept = load_records(self.train_dataset, plan.form, privacy.unit, privacy.unit_column)
        left_out = len(self.train_dataset) - len(kept)
        if left_out:
            raise DataError(
                "train_dataset",
                f"rows of whole numbers, labels from 0 to {plan.form.classes - 1}, tokens from "
                f"0 to {plan.form.vocabulary - 1} and no more rows of a unit than declared",
                f"{left_out} that are not so",
                "Correct them before the training, which would leave them out. Do not publish "
                "this number.",
            )

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "Expected a trainer to stay where the records are, which it holds, got an attempt "
            "to copy or pickle it. Save the model by save_model(folder)."
        )

    def _check_fresh(self, resume_from_checkpoint: Any, trial: Any) -> None:
        """Refuse a run that is not the first, or not a run of its own."""
        self._check()
        if resume_from_checkpoint:
            raise ValueError(
                "Expected resume_from_checkpoint=None, got "
                f"{resume_from_checkpoint!r}: a run cannot be resumed."
            )
        if trial is not None:
            raise ValueError(
                "Expected no search for hyperparameters: settings that are chosen by trying "
                "them on the records cost more than one run. Use veracal.training.search."
            )
        if self.not_private_because_ != (_UNTRAINED,):
            raise ValueError(
                "Expected a trainer that has not trained yet. Load the model again and make "
                "another trainer; what both cost adds up."
            )

    def _planned(self) -> _TrainingPlan:
        """Everything about a training but the records."""
        self._check()
        privacy, tokenizer = self.privacy, self.processing_class
        pad = getattr(tokenizer, "pad_token_id", None)
        form = text_format(self.train_dataset, self.model, privacy.max_length, pad)
        check_unit_column(self.train_dataset, privacy.unit_column)
        check_column_names(self.train_dataset, privacy.unit_column)
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
        descent = build_dp_sgd(self.args, privacy, int(size), Layout(module), decayed)
        return _TrainingPlan(module, form, descent, reasons)

    def _engine(self, plan: _TrainingPlan) -> tuple[GradientEngine, EngineTrial]:
        """Try the model on made-up texts, and choose how gradients are taken."""
        form, module = plan.form, plan.module
        texts = synthetic_texts(form.names, form.length, 2 * _FEW, self.model.config)
        blocks = [
            Block({name: one[places] for name, one in texts.items()}, _TARGETS % form.classes)
            for places in replace_each(_FEW)
        ]
        many = self.args.per_device_train_batch_size
        longer = synthetic_texts(form.names, form.length, 2 * many, self.model.config)
        usual = [
            Block({name: one[places] for name, one in longer.items()}, torch.zeros(many))
            for places in replace_halves(many)
        ]
        with torch.random.fork_rng(devices=[]):
            module.settle(texts)
            check_behavior(module, blocks, form.classes, usual if many > _FEW else ())
            set_train_mode(module)
            return self._taken(module, blocks[0])

    def _taken(
        self, module: SequenceClassifierModule, few: Block
    ) -> tuple[GradientEngine, EngineTrial]:
        """The way that is asked for, or the first that is right."""
        try:
            return choose_engine(
                module,
                self._losses(),
                few,
                None,
                usual=max(_FEW, self.args.per_device_train_batch_size),
                way=self.privacy.gradients,
                among=_ENGINES,
            )
        except ValueError as error:
            raise ValueError(
                f"{error} Train adapters or some layers alone, of kinds that are known: "
                "with_lora(model), or train_only(model, 'classifier.*') with names of its own."
            ) from error

    def _losses(self) -> LossFunction:
        """The loss of each example."""
        smoothing = float(self.args.label_smoothing_factor)
        if not smoothing:
            return cross_entropy
        return partial(nn.functional.cross_entropy, reduction="none", label_smoothing=smoothing)

    def _descended(
        self, plan: _TrainingPlan, engine: GradientEngine, ignore: list[str] | None
    ) -> TrainingResult:
        """Read the records and descend."""
        rng = _random.generator(self.privacy.random_state)
        (lots,) = rng.spawn(1)
        records = load_records(
            self.train_dataset, plan.form, self.privacy.unit, self.privacy.unit_column
        )
        module, descent = plan.module, plan.descent
        block = self.args.per_device_train_batch_size
        lanes = [GradientWorker(module, engine)]
        sums = NetworkSums(lanes, records, descent.expected_batch, block, rng=lots)
        rate = learning_rate_schedule(self.args, int(descent.steps))
        telling = CallbackNotifier(self, module, descent, rate, ignore)
        layout = Layout(module)
        watched = NoisySumMonitor(descent, layout.size)

        def noted(step: Step) -> bool:
            watched.note(step)
            return telling(step)

        self._began_with = not_covered(
            one.detach().to(torch.float32).numpy() for one in module.parameters()
        )
        first = layout.read(module)
        marks = layout.marks(first)
        layout.share(first, module)
        # Threads of numpy's linear algebra would wait for those of torch, and these for them.
        with threadpool_limits(1, user_api="blas"), torch.random.fork_rng(devices=[]):
            telling.begin()
            done = descent.run(first, sums, len(records), rng=rng, on_step=noted, in_place=True)
        layout.share(done.weights, module)
        remember(layout.split(done.weights).values(), "train_dataset")
        tally, left_out = sums.tally, len(self.train_dataset) - len(records)
        self.internal_ = InternalFigures(tally.seen, tally.clipped, tally.broken, left_out)
        if rate.values(done.steps).any():
            _check_all_moved(layout, marks, done.weights)
        self.self_check_ = self._self_checked(plan, watched)
        telling.end()
        self.self_check_.warn()
        return done

    def _self_checked(self, plan: _TrainingPlan, watched: NoisySumMonitor) -> SelfCheck:
        """What the run shows of itself, by its noisy sums and its logits of made-up texts."""
        form, module = plan.form, plan.module
        texts = synthetic_texts(form.names, form.length, 2 * _FEW, self.model.config)
        with torch.no_grad():
            logits = module.eval()(**texts)
        set_train_mode(module)  # as it was
        constant = bool((logits == logits[0]).all())
        return SelfCheck(*watched.noise(), (), constant, watched.silent())

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save the weights after a step, which its event covers, and nothing to resume from."""
        folder = Path(self.args.output_dir or ".") / f"checkpoint-{self.state.global_step}"
        self.save_model(str(folder), _internal_call=True)
        self._save_state(folder)
        rotate_checkpoints(str(folder.parent), save_total_limit=self.args.save_total_limit)

    def save_state(self) -> None:
        """Save ``trainer_state.json``, without what evaluations found."""
        if self.is_world_process_zero():
            self._save_state(Path(self.args.output_dir or "."))

    def _save_state(self, folder: Path) -> None:
        """Write what steps have released, and what arguments say.

        Figures of evaluations, and what callbacks and the choice of a best step have made of
        them, are of records that nobody charged; a folder with weights is passed on.
        """
        steps = [
            {name: one[name] for name in _RELEASED if name in one}
            for one in self.state.log_history
            if "grad_norm" in one
        ]
        kept = replace(
            self.state,
            log_history=steps,
            best_metric=None,
            best_global_step=None,
            best_model_checkpoint=None,
            stateful_callbacks=[],
        )
        kept.save_to_json(str(folder / "trainer_state.json"))

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this training."""
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this training promises; computed when asked for."""
        if self.event_ is None or self.not_private_because_:
            return NotPrivate(self.not_private_because_)
        charged = () if self.ledger is not None else (UNCHARGED,)
        return statement(
            self.event_,
            self.privacy.delta,
            self.privacy.unit,
            covers=("the weights of the classifier, after every step",),
            not_covered=(*charged, *self._began_with, *_unchecked_claims(self.privacy)),
            ledger_total=self._ledger_total,
        )


def _unchecked_claims(privacy: PrivacyArguments) -> tuple[str, ...]:
    """What nobody has counted: rows without ids do not say whose they are."""
    unit = privacy.unit or Unit()
    if unit == Unit() or privacy.unit_column is not None:
        return ()
    rows = "one row" if unit.at_most == 1 else f"{unit.at_most} rows"
    return (
        f"any {unit.name} with more than {rows}: the rows did not say whose they are, so that "
        "the bound was declared and not checked",
    )


def _check_all_moved(layout: Layout, first: tuple[bytes, ...], last: Floats) -> None:
    """Raise if a parameter that was to be trained is what it was.

    Noise alone moves every one of them: a model that stays was never trained, whatever its
    scores are (https://github.com/pytorch/opacus/issues/820).
    """
    still = [name.removeprefix("model.") for name in layout.unmoved(first, last)]
    if still:
        raise RuntimeError(
            f"Expected every trained parameter to move, got {', '.join(map(repr, still[:5]))} "
            "as before: it was not trained. Raise learning_rate, or freeze what is not used; "
            "if neither is it, report a bug. Do not rely on this model."
        )

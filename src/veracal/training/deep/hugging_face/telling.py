"""Tells Hugging Face's callbacks about the steps of a descent."""

import math
from typing import Any

import numpy as np
from torch import nn
from transformers import TrainerState
from transformers.trainer_callback import ExportableState

from veracal.privacy import Descent, Poisson, Step
from veracal.training.deep.checks import train_mode
from veracal.training.deep.hugging_face.translating import Warmed
from veracal.training.deep.layout import Layout


class Telling:
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
        descent: Descent,
        rate: Warmed,
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
        train_mode(self._module)

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
        train_mode(self._module)  # whoever was told may have set another mode
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

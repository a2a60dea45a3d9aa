"""Networks trained with DP-SGD as scikit-learn classifiers, on one process or several ranks."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import nn

from veracal import _checks, _random
from veracal._threads import threadpool_limits
from veracal._types import Array, Floats
from veracal.accounting import Relation, Unit, event_to_json
from veracal.data import Dataset, Label
from veracal.errors import DataError
from veracal.mechanisms import DPSGD, ClipRule, Langevin, Optimizer, Schedule, Step
from veracal.neural.architectures import KnownNetwork
from veracal.neural.checkpoints import (
    Checkpoint,
    check_resumable,
    check_writable,
    describe_callable,
    training_settings,
)
from veracal.neural.distributed import (
    Follower,
    Leader,
    RankConnection,
    RankFacts,
    Ranks,
    SingleProcess,
    Strategy,
    agree_on_fit,
    describe_module,
)
from veracal.neural.gradient_sums import GradientWorker, Layout, NetworkSums
from veracal.neural.gradients.blocks import Block, GradientEngine, LossFunction, cross_entropy
from veracal.neural.gradients.choice import ENGINE_NAMES, EngineName, EngineTrial, choose_engine
from veracal.neural.gradients.engines import GhostEngine, PreNoise
from veracal.neural.module_checks import (
    build_checked_blocks,
    check_behavior,
    check_copyable,
    check_loss,
    check_module,
    copy_module,
    set_train_mode,
)
from veracal.neural.precision import full_precision
from veracal.neural.predictions import SCORING_BLOCK, NetworkPredictions, NetworkScores
from veracal.neural.run import TrainingRun, progress_bar
from veracal.neural.synthetic_inputs import (
    BLOCK,
    Augment,
    IndexedRecords,
    as_tensor,
    full_block_size,
    synthetic_block,
    synthetic_blocks,
    synthetic_rows,
)
from veracal.training import (
    Ablation,
    Average,
    DPSGDClassifier,
    StepCallback,
    TrainingData,
    check_numeric,
    describe_initial_weights,
    record_trained_weights,
)


class DistributedClassifier(DPSGDClassifier):
    """A private classifier that all ranks of ``torch.distributed`` may train together.

    A final class stores ``across`` among its parameters, and takes its steps with the strategy
    of :meth:`_strategy`.
    """

    across: Ranks | None

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.across is None:
            return
        if not isinstance(self.across, Ranks):
            raise ValueError(f"Expected across to be Ranks(...) or None, got {self.across!r}.")
        if self.size is None:
            raise ValueError(
                "Expected a declared size in a distributed fit, got size=None. Pass size=..., "
                "the public number of records on all ranks together."
            )
        if self.random_state is not None:
            raise ValueError(
                "Expected random_state=None in a distributed fit, since a common seed would "
                f"repeat the draws on every rank, got random_state={self.random_state!r}."
            )

    @abstractmethod
    def _shared_settings(self, facts: TrainingData) -> dict[str, Any]:
        """Settings of a fit that must be equal on all ranks, as JSON values."""

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by its public facts.

        In a distributed fit, also reject settings that differ between ranks. Every rank but
        rank 0 waits here until rank 0 has paid and starts.
        """
        if self.across is None:
            super().check_records(dataset)
            return
        unit, size = self.unit or Unit(), int(self.size or 0)
        self._received_module = agree_on_fit(
            self._connect(), lambda: self._rank_facts(dataset), unit, self.across, size
        )

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, using its declared classes, size and norm.

        In a distributed fit, a failure on another rank is reported to rank 0, which stops all
        ranks.
        """
        try:
            return super().fit_records(dataset)
        except Exception:
            if self.across is not None:
                self._connect().report_failure()
            raise

    def _rank_facts(self, dataset: Dataset) -> RankFacts:
        """Check that this rank can fit its records, and return its public facts."""
        super().check_records(dataset)
        return RankFacts(
            self._shared_settings(self._public(dataset)),
            # Replacing a record keeps the number of records on every rank: it is public.
            len(dataset) if self.relation == "replace-one" else None,
            None if dataset.units is None else dataset.max_contributions,
            (*dataset.split_keys, *dataset.split_draws),
        )

    def check_paying(self, unit: Unit) -> None:
        """Reject a ledger on another rank than rank 0, or one that protects another unit."""
        connection = self._connect()
        if not connection.leads:
            raise ValueError(
                f"Expected the ledger on rank 0, got one on rank {connection.rank}. Call "
                "fit_records(dataset) here: it waits until rank 0 has paid."
            )
        connection.over = False
        if unit != (self.unit or Unit()):
            problem = ValueError(
                f"Expected unit={unit!r}, which the ledger protects on all ranks, got "
                f"unit={self.unit!r}."
            )
            connection.stop(problem)
            raise problem

    def cancel(self, problem: BaseException) -> None:
        """Tell all other ranks that the fit was cancelled."""
        self._connect().stop(problem)

    def _connect(self) -> RankConnection:
        """Return the connection to the other ranks."""
        if "_connection" not in self.__dict__:
            self._connection = RankConnection()
        return self._connection

    def _note_charge(self) -> None:
        if self.across is None or self._leads:
            super()._note_charge()
        else:
            connection = self._connect()
            self.charged_, self._ledger_total = connection.charged, connection.ledger_total

    @property
    def _all_here(self) -> bool:
        return self.across is None

    @property
    def _leads(self) -> bool:
        """Whether this process takes the steps and writes checkpoints."""
        return self.across is None or self._connect().leads

    def _strategy(self) -> Strategy:
        """Return the strategy: a single process, the leader or a follower."""
        if self.across is None:
            return SingleProcess()
        connection = self._connect()
        given = self.__dict__.pop("_received_module", None)
        return Leader(connection) if given is None else Follower(connection, given)


_TRIAL_EXAMPLES = 4  # examples on which gradient engines are compared
_PASSED_TRIALS = set[str]()  # of Veracal's own networks, whose outcomes do not change
_SMALL = 1 << 21  # weights up to which two blocks at a time fit into memory
Hook = Callable[["PrivateNetwork", Step], bool | None]


class PrivateNetwork(NetworkPredictions, DistributedClassifier):
    """Any PyTorch module as a classifier that is trained with DP-SGD.

    At every step each record is drawn into the batch independently; the gradient of each record
    of the batch is clipped, the clipped gradients are summed, Gaussian noise is added, and the
    optimizer updates the weights (Abadi et al. 2016, https://arxiv.org/abs/1607.00133).

    Parameters
    ----------
    module : torch.nn.Module, or a function that returns one
        Returns one logit for each class (or a single one for two classes). A module is copied
        for each fit, with its weights, which must be public; a function makes new weights.
        Parameters with ``requires_grad=False`` are not trained.
    epsilon, delta, noise_multiplier, epochs, steps, sampling_rate
        As of :class:`~veracal.training.PrivateLogisticRegression`.
    clip : float > 0 or ClipRule
        A number c stands for ``Flat(c)``. Under discontinuous rules (``GlobalV1``,
        ``GlobalV2``, ``GlobalAdapt``, and user-defined rules) every record is computed
        individually, which is slow: a step takes about 15 times as long for a small
        convolutional network, and 90 times for a perceptron.
    optimizer : float > 0, Optimizer or None
        The optimizer. A number r stands for ``SGD(r)``; None, for ``SGD(0.5)``.
    weight_decay : float >= 0
    average : float in [0, 1] or Moving
        Fraction of the last steps whose weights are averaged, or a moving average; 0 uses the
        last weights.
    loss : callable, optional
        ``loss(outputs, targets)`` returns the loss of each example, of shape (n,). By default
        cross-entropy.
    prepare : callable, optional
        Turns an array of rows, each independently, into the input tensor of the module. By
        default image bytes become floats from 0 to 1 with channels first, integers stay, and
        everything else becomes float32.
    augment : Augment, optional
        Makes several views of every example; their gradients are averaged before the clip (De
        et al. 2022, https://arxiv.org/abs/2204.13650).
    gradients : {"ghost", "functional", "hooks"}, optional
        The engine for per-example gradients. By default the fastest in a trial on synthetic
        examples.
    block : int
        Maximum number of examples of a batch in memory at a time. With 1, every record is
        computed individually under any rule.
    checkpoint : path, optional
        File from which an interrupted fit resumes, written every ``checkpoint_every`` steps; it
        belongs to one run on one set of records. A :class:`~veracal.queries.Curator` charges
        such a fit once, by its ``request``, and then keeps the file: the same request returns
        the model that was paid for. Without a curator the file is removed after the fit.
    checkpoint_every : int
    not_private : {"clipping only", "noise only", "neither"}, optional
        Keep only that part of the protection, for an ablation.
    on_step : callable, optional
        As of :class:`~veracal.training.PrivateLogisticRegression`.
    across : Ranks, optional
        Train on the records of all ranks of ``torch.distributed``. Rank 0 pays, adds the noise,
        calls the hook and writes the checkpoint; ``size`` is that of all ranks together.
    verbose : bool
        Show a progress bar with the remaining time on the standard error stream.
    classes, size, relation, unit, random_state
        As of :class:`~veracal.training.PrivateLogisticRegression`.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network.
    trial_ : EngineTrial
        The chosen gradient engine, and why.
    self_check_ : SelfCheck
        Checks of the run: noise, parameters that changed, outputs that differ. Problems also
        give a warning.
    internal_ : InternalFigures
        Number of examples whose gradients were clipped or not finite. *Internal*: it is about
        the records, and must not be released. On rank 0, of all ranks; on another, its own.
    classes_, n_iter_, noise_multipliers_, event_, private_, not_private_because_, statement_
        As of :class:`~veracal.training.PrivateLogisticRegression`.

    Guarantees
    ----------
    The weights after all steps cost what :meth:`event` states, which depends on the settings
    alone: one record moves the sum that noise is added to by at most the clip bound, and a
    record whose gradient is not finite, or for which the module fails, moves nothing. The
    contribution of a record does not depend on the others, not even by rounding:
    :class:`~veracal.neural.gradient_sums.NetworkSums` states how, and under which assumptions.
    Noise comes from a secret generator seeded by the system's entropy, never from torch's,
    whose random numbers (for dropout and initial weights) carry no guarantee. The real number
    of records affects nothing but the Poisson draws. Sums and their noise are rounded to a
    public grid before they are added; noise and gradients are in floating point, treated as
    real numbers. The assumptions about several ranks are stated by
    :class:`~veracal.neural.Ranks`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([[-1.0, 0.5], [1.0, 0.5]], 500, axis=0)
    >>> y = np.repeat(["well", "ill"], 500)
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> model = PrivateNetwork(network, epsilon=2.0, classes=["ill", "well"], size=1000)
    >>> model.fit(X, y).private_
    True
    >>> float(model.score(X, y)) > 0.9
    True
    """

    _learning_rate = 0.5
    rows_independent = True  # each row is scored independently, see logits
    any_row_shape = True  # including images and integers

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        noise_multiplier: float | Schedule | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        sampling_rate: float = 0.1,
        clip: float | ClipRule = 1.0,
        optimizer: float | Optimizer | None = None,
        weight_decay: float = 0.0,
        average: Average = 0.0,
        loss: LossFunction | None = None,
        prepare: Callable[[Array], torch.Tensor] | None = None,
        augment: Augment | None = None,
        gradients: EngineName | None = None,
        block: int = BLOCK,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 50,
        not_private: Ablation | None = None,
        on_step: Hook | None = None,
        across: Ranks | None = None,
        verbose: bool = False,
        classes: Sequence[Label] | None = None,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.module = module
        self.epsilon = epsilon
        self.delta = delta
        self.noise_multiplier = noise_multiplier
        self.epochs = epochs
        self.steps = steps
        self.sampling_rate = sampling_rate
        self.clip = clip
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.average = average
        self.loss = loss
        self.prepare = prepare
        self.augment = augment
        self.gradients = gradients
        self.block = block
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.not_private = not_private
        self.on_step = on_step
        self.across = across
        self.verbose = verbose
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.whole(block=self.block, checkpoint_every=self.checkpoint_every)
        if self.gradients is not None:
            _checks.one_of(ENGINE_NAMES, gradients=self.gradients)
        if isinstance(self.module, nn.Module) or not callable(self.module):
            check_module(self.module)
        for name in ("loss", "prepare", "augment"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"Expected {name} to be callable, got {value!r}.")
        if self.checkpoint is not None:
            check_resumable(self.checkpoint, self.module, self.on_step)
        if self._pre_noise and self.gradients == "ghost":
            raise ValueError(
                "Expected an engine with materialized gradients, for noise on each of them "
                f"before the clip (pre_noise={self._pre_noise!r}), got gradients='ghost'. Use "
                "'functional' or 'hooks', or leave it out."
            )

    @property
    def _pre_noise(self) -> float:
        """Standard deviation of the noise on each gradient before the clip."""
        optimizer = self._optimizer()
        return optimizer.pre_noise if isinstance(optimizer, Langevin) else 0.0

    def _noise(self, rng: np.random.Generator) -> PreNoise | None:
        """Noise before the clip, if the optimizer requests it."""
        return PreNoise(self._pre_noise, rng) if self._pre_noise else None

    def _check_form(self, facts: TrainingData) -> None:
        """Reject what would fail after the charge, by a trial on synthetic rows."""
        self._check_delta(facts.size)
        if self.checkpoint is not None and self._leads:
            check_writable(Path(self.checkpoint))
        module, k = self._build_module(np.random.default_rng(0)), len(facts.classes)
        trial = self._trial_key(facts)
        if trial in _PASSED_TRIALS:
            return
        # Dropout draws from the caller's generator.
        with full_precision(), torch.random.fork_rng(devices=[]):
            full = full_block_size(self._block_size, self.sampling_rate * facts.size)
            # Veracal's own networks do not depend on the number of examples.
            many = full if trial is None else _TRIAL_EXAMPLES
            rows = partial(synthetic_blocks, facts.X, module, k, self._prepare_rows)
            few, full_blocks = build_checked_blocks(rows, (_TRIAL_EXAMPLES, many), self.augment)
            outputs = check_behavior(module, few, k, full_blocks)
            set_train_mode(module)
            if self.loss is not None:
                check_loss(self.loss, outputs, k, 2 * self._block_size)
            self._try_engines(module, few[0], None, self._noise(np.random.default_rng(0)))
        if trial is not None:
            _PASSED_TRIALS.add(trial)

    def _trial_key(self, facts: TrainingData) -> str | None:
        """Everything a trial depends on, or None if any of it is user code."""
        known = KnownNetwork.of(self.module)
        if known is None or (self.prepare, self.loss, self.augment) != (None, None, None):
            return None
        rows = str(facts.X.dtype), facts.X.shape[1:], len(facts.classes)
        settings = self._block_size, self.gradients, bool(self._pre_noise)
        return repr((known.to_json(), rows, *settings))

    @property
    def _block_size(self) -> int:
        """Number of examples of a block, or of a trial."""
        return max(int(self.block), _TRIAL_EXAMPLES)

    @property
    def _prepare_rows(self) -> Callable[[Array], torch.Tensor]:
        """Function that turns rows into tensors."""
        return as_tensor if self.prepare is None else self.prepare

    def _build_module(self, rng: np.random.Generator) -> nn.Module:
        """The network before training: a copy, or with new weights."""
        if isinstance(self.module, nn.Module):
            copied: nn.Module = copy_module(self.module, shares=False)
            return copied
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            module = self.module()
        check_module(module)
        return module

    def settled(self, dataset: Dataset) -> Self:
        """Return a copy with all searches and trials resolved, for repeated runs.

        The noise multiplier is the one for ``epsilon``, and gradients are computed by the first
        correct engine, regardless of its speed on this machine, so that seeded runs agree on
        all machines.

        Parameters
        ----------
        dataset : Dataset
            Only its public facts are read.
        """
        self._check_settings()
        _checks.reject_unsplittable_fit(model=self)
        facts = self._public(dataset)
        dp_sgd = self._dp_sgd(facts.size)
        module = self._build_module(np.random.default_rng(0))
        set_train_mode(module)
        with torch.random.fork_rng(devices=[]):
            few = synthetic_block(
                facts.X, module, _TRIAL_EXAMPLES, len(facts.classes), self._prepare_rows
            )
            _, trial = self._try_engines(
                module, few, None, self._noise(np.random.default_rng(0))
            )
        resolved: Self = clone(self).set_params(gradients=trial.chosen)
        if self.noise_multiplier is None and not isinstance(self._optimizer(), Langevin):
            noise = float(dp_sgd.noise_multipliers()[0])
            steps = int(dp_sgd.steps)
            resolved.set_params(noise_multiplier=noise, epsilon=None, steps=steps, epochs=None)
        return resolved

    def has_begun(self) -> bool:
        """Return whether there is a checkpoint from which a fit would resume."""
        return self.checkpoint is not None and Path(self.checkpoint).exists()

    def paid(self, by: str) -> None:
        """Set the payment of the next fit; a checkpoint resumes only with the same payment."""
        self._paid = by

    def _shared_settings(self, facts: TrainingData) -> dict[str, Any]:
        dp_sgd, module = (
            self._resolve_run(facts)[0],
            self._build_module(np.random.default_rng(0)),
        )
        return {
            "event": event_to_json(dp_sgd.event()),
            **training_settings(dp_sgd, Layout(module)),
            **self._run_settings(facts.classes),
            **{name: repr(getattr(self, name)) for name in ("not_private", "delta", "unit")},
            "across": repr(self.across),
            "size": facts.size,
            "rows": [str(facts.X.dtype), list(facts.X.shape[1:])],
            "module": describe_module(module),
        }

    def _learn(self, facts: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        init_rng, slot_rng, augment_rng = rng.spawn(3)
        module, strategy = self._build_module(init_rng), self._strategy()
        with strategy.session(module), torch.random.fork_rng(devices=[]):
            set_train_mode(module)
            self._blank = copy.deepcopy(module)  # never sees a record
            self._form = synthetic_rows(facts.X, module, SCORING_BLOCK)
            self._outputs = len(facts.classes)
            records = IndexedRecords(
                facts.X, facts.codes, self._prepare_rows, self.augment, augment_rng
            )
            if KnownNetwork.of(self.module) is None:  # Veracal's own have new weights
                self._initial_weights_note = describe_initial_weights(
                    one.detach().to(torch.float32).numpy() for one in module.parameters()
                )
            return self._run_steps(facts, module, records, strategy, slot_rng, rng)

    def _run_steps(
        self,
        facts: TrainingData,
        module: nn.Module,
        records: IndexedRecords,
        strategy: Strategy,
        slot_rng: np.random.Generator,
        rng: np.random.Generator,
    ) -> tuple[str, ...]:
        """Take all steps, and store the results."""
        dp_sgd, reasons = self._resolve_run(facts)
        run = self._start_run(module, dp_sgd, strategy)
        show_progress = bool(self.verbose) and strategy.leads
        # A paid run writes its file before the engines are tried, which takes a while.
        # numpy's BLAS threads and torch's would wait for each other.
        with (
            run.session(),
            threadpool_limits(1, user_api="blas"),
            progress_bar(int(dp_sgd.steps), visible=show_progress) as run.report_progress,
        ):
            workers = self._build_workers(module, dp_sgd, slot_rng, rng)
            expected = dp_sgd.expected_batch / strategy.world
            sums = NetworkSums(workers, records, expected, int(self.block), rng=slot_rng)
            with sums.threads():
                final = strategy.run_steps(dp_sgd, run, sums, len(records), rng)
        self._set_weights(final.model_weights)
        trained = (one for one in self.module_.parameters() if one.requires_grad)
        record_trained_weights((one.detach().numpy() for one in trained), self._records_name)
        self.internal_, last = final.internal, final.result.weights
        self.self_check_ = run.self_check(final.noise, last, self._scores.forward(self._form))
        del self._blank
        if self.not_private is None:
            self.self_check_.warn()
        return reasons + self._record_run(dp_sgd, final.result)

    def _build_workers(
        self,
        module: nn.Module,
        dp_sgd: DPSGD,
        slot_rng: np.random.Generator,
        rng: np.random.Generator,
    ) -> list[GradientWorker]:
        """The network, and a copy of it if two threads are faster than one."""
        engine, self.trial_ = self._choose_engine(
            module, dp_sgd, self._noise(*slot_rng.spawn(1))
        )
        workers = [GradientWorker(module, engine)]
        threads = torch.get_num_threads() if _random.is_secret(rng) else 1
        if isinstance(engine, GhostEngine) and engine.size <= _SMALL and threads > 1:
            # Not with a seed: the order in which threads draw dropout masks varies.
            second = copy.deepcopy(module)
            workers.append(
                GradientWorker(
                    second,
                    GhostEngine(second, self._losses, self._block_size, engine.channels_last),
                )
            )
        return workers

    def _choose_engine(
        self, module: nn.Module, dp_sgd: DPSGD, noise: PreNoise | None
    ) -> tuple[GradientEngine, EngineTrial]:
        """Choose the gradient engine on synthetic examples."""
        many = int(min(self.block, max(1.0, dp_sgd.expected_batch)))
        few, more = (
            synthetic_block(self._form, module, n, self._outputs, self._prepare_rows)
            for n in (_TRIAL_EXAMPLES, many)
        )
        return self._try_engines(module, few, more, noise)

    def _try_engines(
        self, module: nn.Module, few: Block, many: Block | None, noise: PreNoise | None
    ) -> tuple[GradientEngine, EngineTrial]:
        """Try the requested or all engines; return the fastest correct one."""
        return choose_engine(
            module,
            self._losses,
            few,
            many,
            block_size=self._block_size,
            requested=self.gradients,
            noise=noise,
        )

    def _start_run(self, module: nn.Module, dp_sgd: DPSGD, strategy: Strategy) -> TrainingRun:
        """The work between the steps: averages, hook, checkpoints."""
        layout, checkpoint = Layout(module), None
        if self.checkpoint is not None and strategy.leads:
            paid = self.__dict__.pop("_paid", None)
            settings = self._run_settings(self.classes_)
            checkpoint = Checkpoint(Path(self.checkpoint), dp_sgd, layout, settings, paid)
        watch, every = StepCallback(self, int(dp_sgd.steps)), int(self.checkpoint_every)
        return TrainingRun(watch, dp_sgd, layout, layout.read(module), checkpoint, every)

    def _run_settings(self, classes: Array) -> dict[str, Any]:
        """Other settings that must be equal to resume a run."""
        names = ("loss", "prepare", "augment")
        return {
            "average": repr(self.average),
            "module": repr(self.module),
            "classes": [str(one) for one in classes.tolist()],
            **{name: describe_callable(getattr(self, name)) for name in names},
        }

    @property
    def _losses(self) -> LossFunction:
        """Loss of each example."""
        return cross_entropy if self.loss is None else self.loss

    def _set_weights(self, weights: Floats) -> None:
        trained = copy.deepcopy(self._blank)
        Layout(trained).write(weights, trained)
        self.module_ = trained.eval()
        self._scores = NetworkScores(self.module_, self._form, self._prepare_rows)

    def _validated(self, X: Any, y: Any) -> tuple[Any, Array]:
        if self.across is not None:
            raise ValueError(
                "Expected fit_records(dataset) in a distributed fit, got fit(X, y), which "
                "reads records before rank 0 has paid."
            )
        rows, labels = validate_data(
            self, X, y, allow_nd=True, dtype=None, ensure_min_samples=1
        )
        if rows.dtype.kind not in "fiub":
            raise ValueError(f"Expected numeric rows, got {rows.dtype}.")
        check_classification_targets(labels)
        return rows, labels

    def _check_kind(self, dataset: Dataset) -> None:
        if not isinstance(dataset, Dataset):
            check_numeric(dataset)
        if dataset.X.dtype.kind not in "fiub":
            raise DataError(
                f"{dataset.name}: features",
                "numbers",
                f"{dataset.X.dtype}",
                "Turn text into tokens or frozen features first.",
            )

    def __sklearn_clone__(self) -> Self:
        if isinstance(self.module, nn.Module):
            check_copyable(self.module)  # its error says more than torch's
        cloned: Self = super().__sklearn_clone__()
        return cloned

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

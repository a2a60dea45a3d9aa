"""Networks trained with DP-SGD as scikit-learn classifiers, on one process or several ranks."""

import copy
import math
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from veracal import _checks, _random
from veracal._threads import threadpool_limits
from veracal._types import Array, Floats
from veracal.accounting import Unit, event_to_json
from veracal.data import Dataset, MappedRows
from veracal.errors import DataError
from veracal.mechanisms import (
    DPSGD,
    ClipRule,
    Langevin,
    Optimizer,
    Schedule,
    Step,
    hook_exposes_weights,
)
from veracal.neural.architectures import KnownNetwork
from veracal.neural.distributed import (
    Follower,
    Leader,
    RankConnection,
    RankFacts,
    Ranks,
    agree_on_fit,
)
from veracal.neural.examples import (
    BLOCK,
    Augment,
    IndexedRecords,
    LossFunction,
    NetworkScores,
    as_tensor,
    cross_entropy,
    replace_each,
    replace_halves,
    synthetic_block,
    synthetic_rows,
)
from veracal.neural.gradient_sums import GradientEngine, Layout, NetworkSums
from veracal.neural.gradients.choice import ENGINE_NAMES, EngineName, EngineTrial, choose_engine
from veracal.neural.gradients.engines import GhostEngine, PreNoise
from veracal.neural.module_checks import (
    check_augment,
    check_behavior,
    check_copyable,
    check_loss,
    check_module,
    check_prepare,
    copy_module,
    set_train_mode,
)
from veracal.neural.precision import full_precision
from veracal.neural.run import Checkpoint, TrainingRun, progress_bar, training_settings
from veracal.training import (
    Ablation,
    Average,
    DPSGDClassifier,
    StepCallback,
    TrainingData,
    check_dataset,
    describe_initial_weights,
    record_trained_weights,
)

_TRIAL_EXAMPLES = 4  # examples on which gradient engines are compared
_PASSED_TRIALS = set[str]()  # of Veracal's own networks, whose outcomes do not change
_SMALL = 1 << 21  # weights up to which two blocks at a time fit into memory
_CALLABLES = ("loss", "prepare", "augment")
Hook = Callable[["PrivateNetwork", Step], bool | None]


@dataclass(eq=False, repr=False)
class PrivateNetwork(DPSGDClassifier):
    """Any PyTorch module as a classifier that is trained with DP-SGD.

    At every step each record enters the batch independently; the gradients of the batch are
    clipped and summed, Gaussian noise is added, and the optimizer updates the weights (Abadi et
    al. 2016, https://arxiv.org/abs/1607.00133).

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
        A number r stands for ``SGD(r)``; None, for ``SGD(0.5)``.
    weight_decay : float >= 0
    average : float in [0, 1] or ExponentialAverage
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

    module: nn.Module | Callable[[], nn.Module]
    epsilon: float | None = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    noise_multiplier: float | Schedule | None = None
    epochs: float | None = None
    steps: int | None = None
    sampling_rate: float = 0.1
    clip: float | ClipRule = 1.0
    optimizer: float | Optimizer | None = None
    weight_decay: float = 0.0
    average: Average = 0.0
    loss: LossFunction | None = None
    prepare: Callable[[Array], torch.Tensor] | None = None
    augment: Augment | None = None
    gradients: EngineName | None = None
    block: int = BLOCK
    checkpoint: str | Path | None = None
    checkpoint_every: int = 50
    not_private: Ablation | None = None
    on_step: Hook | None = None
    across: Ranks | None = None
    verbose: bool = False

    _learning_rate = 0.5
    rows_independent = True  # each row is scored independently, see logits
    any_row_shape = True  # including images and integers

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.whole(block=self.block, checkpoint_every=self.checkpoint_every)
        if self.gradients is not None:
            _checks.one_of(ENGINE_NAMES, gradients=self.gradients)
        if isinstance(self.module, nn.Module) or not callable(self.module):
            check_module(self.module)
        for name in _CALLABLES:
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"Expected {name} to be callable, got {value!r}.")
        if self._pre_noise and self.gradients == "ghost":
            raise ValueError(
                "Expected an engine with materialized gradients, for noise on each of them "
                f"before the clip (pre_noise={self._pre_noise!r}), got gradients='ghost'. Use "
                "'functional' or 'hooks', or leave it out."
            )
        # A resumed run must not differ from an uninterrupted one.
        if not isinstance(self.checkpoint, str | os.PathLike | None):
            raise ValueError(f"Expected checkpoint to name a file, got {self.checkpoint!r}.")
        if self.checkpoint is not None and hook_exposes_weights(self.on_step):
            raise ValueError(
                "Expected no hook with a checkpoint, got both: a step that is repeated after an "
                "interruption would be released twice with different noise, and is paid once."
            )
        if self.checkpoint is not None and not isinstance(self.module, nn.Module):
            raise ValueError(
                "Expected a module with a checkpoint, got a function that returns one: its "
                "frozen weights would change when the run resumes. Call it, and pass its result."
            )
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

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by its public facts.

        In a distributed fit, also reject settings that differ between ranks. Every rank but
        rank 0 waits here until rank 0 has paid and starts.
        """
        if self.across is None:
            super().check_records(dataset)
            return

        def check() -> RankFacts:
            """Check that this rank can fit its records, and return its public facts."""
            super(PrivateNetwork, self).check_records(dataset)
            return RankFacts(
                self._shared_settings(self._public(dataset)),
                # Replacing a record keeps the number of records on every rank: it is public.
                len(dataset) if self.relation == "replace-one" else None,
                None if dataset.units is None else dataset.max_contributions,
                (*dataset.split_keys, *dataset.split_draws),
            )

        unit, size = self.unit or Unit(), int(self.size or 0)
        self._received_module = agree_on_fit(self._connect(), check, unit, self.across, size)

    def _shared_settings(self, data: TrainingData) -> dict[str, Any]:
        """Settings of a fit that must be equal on all ranks, as JSON values."""
        dp_sgd, _ = self._resolve_run(data)
        module = self._build_module(np.random.default_rng(0))
        tensors = (*module.named_parameters(), *module.named_buffers())
        return {
            "event": event_to_json(dp_sgd.event()),
            **training_settings(dp_sgd, Layout(module)),
            **self._run_settings(data.classes),
            **{name: repr(getattr(self, name)) for name in ("not_private", "delta", "unit")},
            "across": repr(self.across),
            "size": data.size,
            "rows": [str(data.X.dtype), list(data.X.shape[1:])],
            "module": [
                repr(module),
                *(
                    f"{name} {one.dtype} {[*one.shape]} {one.requires_grad}"
                    for name, one in tensors
                ),
            ],
        }

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

    def check_paying(self, unit: Unit) -> None:
        """Reject a ledger on another rank than rank 0, or one that protects another unit."""
        connection = self._connect()
        if connection.rank:
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

    @property
    def _all_here(self) -> bool:
        return self.across is None

    @property
    def _leads(self) -> bool:
        """Whether this process takes the steps and writes checkpoints."""
        return self.across is None or not self._connect().rank

    def _note_charge(self) -> None:
        if self._leads:
            super()._note_charge()
        else:
            connection = self._connect()
            self.charged_, self._ledger_total = connection.charged, connection.ledger_total

    def _check_form(self, data: TrainingData) -> None:
        """Reject what would fail after the charge, by a trial on synthetic rows."""
        self._check_delta(data.size)
        if self.checkpoint is not None and self._leads:
            folder = Path(self.checkpoint).parent
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise ValueError(
                    "Expected checkpoint to name a file in an existing, writable folder, got "
                    f"{str(self.checkpoint)!r}. Create the folder first."
                )
        module, k = self._build_module(np.random.default_rng(0)), len(data.classes)
        known, trial = KnownNetwork.of(self.module), None
        if known is not None and (self.prepare, self.loss, self.augment) == (None, None, None):
            # Nothing else affects the trial of a network of Veracal's own.
            form = str(data.X.dtype), data.X.shape[1:], k
            settings = self._block_size, self.gradients, bool(self._pre_noise)
            trial = repr((known.to_json(), form, *settings))
            if trial in _PASSED_TRIALS:
                return
        many = _TRIAL_EXAMPLES
        if trial is None:  # Veracal's own networks do not depend on the number of examples
            batch = self.sampling_rate * data.size
            largest_batch = math.ceil(batch + 10 * math.sqrt(batch) + 10)
            many = min(self._block_size, max(BLOCK, largest_batch))
        trials = []
        # Dropout draws from the caller's generator.
        with full_precision(), torch.random.fork_rng(devices=[]):
            for n, replacement in ((_TRIAL_EXAMPLES, replace_each), (many, replace_halves)):
                rows, prepare = synthetic_rows(data.X, module, 2 * n), self._prepare_rows
                blocks = [synthetic_block(rows[one], k, prepare) for one in replacement(n)]
                check_prepare(blocks, replacement)
                if self.augment is not None:
                    check_augment(self.augment, blocks, replacement)
                trials.append(blocks)
            few, full_blocks = trials
            outputs = check_behavior(module, few, k, full_blocks)
            set_train_mode(module)
            if self.loss is not None:
                check_loss(self.loss, outputs, k, 2 * self._block_size)
            self._choose_engine(module, data.X, k)
        if trial is not None:
            _PASSED_TRIALS.add(trial)

    def _choose_engine(
        self,
        module: nn.Module,
        rows: Any,
        classes: int,
        rng: np.random.Generator | None = None,
        dp_sgd: DPSGD | None = None,
    ) -> tuple[GradientEngine, EngineTrial]:
        """Try the requested or all engines on synthetic examples; return a correct one.

        It is the first one, or for a run the fastest one.
        """
        sizes = [_TRIAL_EXAMPLES]
        if dp_sgd is not None:
            sizes.append(int(min(self.block, max(1.0, dp_sgd.expected_batch))))
        few, *many = (
            synthetic_block(synthetic_rows(rows, module, n), classes, self._prepare_rows)
            for n in sizes
        )
        noise_rng = np.random.default_rng(0) if rng is None else rng
        return choose_engine(
            module,
            self._losses,
            few,
            many[0] if many else None,
            block_size=self._block_size,
            requested=self.gradients,
            noise=PreNoise(self._pre_noise, noise_rng) if self._pre_noise else None,
        )

    @property
    def _pre_noise(self) -> float:
        """Standard deviation of the noise on each gradient before the clip."""
        optimizer = self._optimizer()
        return optimizer.pre_noise if isinstance(optimizer, Langevin) else 0.0

    @property
    def _block_size(self) -> int:
        """Number of examples of a block, or of a trial."""
        return max(int(self.block), _TRIAL_EXAMPLES)

    @property
    def _prepare_rows(self) -> Callable[[Array], torch.Tensor]:
        """Function that turns rows into tensors."""
        return as_tensor if self.prepare is None else self.prepare

    @property
    def _losses(self) -> LossFunction:
        """Loss of each example."""
        return cross_entropy if self.loss is None else self.loss

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

    def resolve_settings(self, dataset: Dataset) -> Self:
        """Return a copy with all searches and trials resolved, for repeated runs.

        The noise multiplier is the one for ``epsilon``, and gradients are computed by the first
        correct engine, regardless of its speed on this machine, so that seeded runs agree on
        all machines. Of the data set only public facts are read.
        """
        self._check_settings()
        _checks.reject_unsplittable_fit(model=self)
        data = self._public(dataset)
        dp_sgd = self._dp_sgd(data.size)
        module = self._build_module(np.random.default_rng(0))
        set_train_mode(module)
        with torch.random.fork_rng(devices=[]):
            _, trial = self._choose_engine(module, data.X, len(data.classes))
        resolved: Self = clone(self).set_params(gradients=trial.chosen)
        if self.noise_multiplier is None and not isinstance(self._optimizer(), Langevin):
            noise, steps = float(dp_sgd.noise_multipliers()[0]), int(dp_sgd.steps)
            resolved.set_params(noise_multiplier=noise, epsilon=None, steps=steps, epochs=None)
        return resolved

    def has_begun(self) -> bool:
        """Return whether there is a checkpoint from which a fit would resume."""
        return self.checkpoint is not None and Path(self.checkpoint).exists()

    def set_payment(self, payment: str) -> None:
        """Set the payment of the next fit; a checkpoint resumes only with the same payment."""
        self._paid = payment

    def _run_settings(self, classes: Array) -> dict[str, Any]:
        """Other settings that must be equal to resume a run."""
        functions = {name: getattr(self, name) for name in _CALLABLES}
        return {
            "average": repr(self.average),
            "module": repr(self.module),
            "classes": [str(one) for one in classes.tolist()],
            **{
                name: getattr(function, "__qualname__", None) or repr(function)
                for name, function in functions.items()
            },
        }

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        init_rng, slot_rng, augment_rng = rng.spawn(3)
        module = self._build_module(init_rng)
        strategy: Leader | Follower = Leader()
        if self.across is not None:
            given = self.__dict__.pop("_received_module", None)
            connection = self._connect()
            strategy = Leader(connection) if given is None else Follower(connection, given)
        with strategy.session(module), torch.random.fork_rng(devices=[]):
            set_train_mode(module)
            self._blank = copy.deepcopy(module)  # never sees a record
            self._form = np.empty((0, *data.X.shape[1:]), data.X.dtype)
            if KnownNetwork.of(self.module) is None:  # Veracal's own have new weights
                self._initial_weights_note = describe_initial_weights(
                    one.detach().to(torch.float32).numpy() for one in module.parameters()
                )
            dp_sgd, reasons = self._resolve_run(data)
            records = IndexedRecords(
                data.X, data.codes, self._prepare_rows, self.augment, augment_rng
            )
            layout, checkpoint = Layout(module), None
            if self.checkpoint is not None and strategy.leads:
                paid, settings = (
                    self.__dict__.pop("_paid", None),
                    self._run_settings(self.classes_),
                )
                checkpoint = Checkpoint(Path(self.checkpoint), dp_sgd, layout, settings, paid)
            run = TrainingRun(
                StepCallback(self, int(dp_sgd.steps)),
                dp_sgd,
                layout,
                layout.read(module),
                checkpoint,
                int(self.checkpoint_every),
            )
            visible = bool(self.verbose) and strategy.leads
            # A paid run writes its file before the engines are tried, which takes a while.
            # numpy's BLAS threads and torch's would wait for each other.
            with (
                run.session(),
                threadpool_limits(1, user_api="blas"),
                progress_bar(int(dp_sgd.steps), visible=visible) as run.report_progress,
            ):
                engine, self.trial_ = self._choose_engine(
                    module, self._form, len(data.classes), slot_rng.spawn(1)[0], dp_sgd
                )
                engines = [engine]
                threads = torch.get_num_threads() if _random.is_secret(rng) else 1
                if isinstance(engine, GhostEngine) and engine.size <= _SMALL and threads > 1:
                    # Not with a seed: the order in which threads draw dropout masks varies.
                    second, last = copy.deepcopy(module), engine.channels_last
                    engines.append(GhostEngine(second, self._losses, self._block_size, last))
                expected = dp_sgd.expected_batch / strategy.world
                sums = NetworkSums(engines, records, expected, int(self.block), rng=slot_rng)
                with sums.threads():
                    result, weights, noise, self.internal_ = strategy.run_steps(run, sums, rng)
        self._set_weights(weights)
        trained = (one for one in self.module_.parameters() if one.requires_grad)
        record_trained_weights((one.detach().numpy() for one in trained), self._records_name)
        logits = self._scores.try_synthetic()
        self.self_check_ = run.self_check(noise, result.weights, logits)
        del self._blank
        if self.not_private is None:
            self.self_check_.warn()
        return reasons + self._record_run(dp_sgd, result)

    def _set_weights(self, weights: Floats) -> None:
        trained = copy.deepcopy(self._blank)
        Layout(trained).share(np.array(weights, np.float32), trained)
        self.module_ = trained.eval()
        self._scores = NetworkScores(self.module_, self._form, self._prepare_rows)

    def _validate(self, X: Any, y: Any) -> tuple[Any, Array]:
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
        check_dataset(dataset)
        if dataset.X.dtype.kind not in "fiub":
            raise DataError(
                f"{dataset.name}: features",
                "numbers",
                f"{dataset.X.dtype}",
                "Turn text into tokens or frozen features first.",
            )

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`.

        Rows are scored in blocks of one shape, so that the logits of a row depend on that row
        only (:func:`veracal.data.score_independently`).
        """
        check_is_fitted(self)
        if isinstance(X, MappedRows):  # finite already
            return self._scores(X)
        return self._scores(validate_data(self, X, allow_nd=True, dtype=None, reset=False))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Logits of the second class, of shape (n,), for two classes; else of shape (n, k)."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: ArrayLike) -> Array:
        """Most likely class of each row."""
        labels: Array = self.classes_[self.logits(X).argmax(axis=1)]
        return labels

    def __sklearn_clone__(self) -> Self:
        if isinstance(self.module, nn.Module):
            check_copyable(self.module)  # its error says more than torch's
        cloned: Self = super().__sklearn_clone__()
        return cloned

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

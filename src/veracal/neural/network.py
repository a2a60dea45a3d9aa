"""What a classifier needs that is trained on the records of several ranks.

Networks that are trained by noisy gradient descent, as scikit-learn's classifiers.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from veracal.mechanisms import DPSGD, ClipRule, Langevin, Schedule, Step, Update
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
    DescentClassifier,
    TrainingData,
    Watch,
    check_numbers,
    not_covered,
    remember,
)


class DistributedClassifier(DescentClassifier):
    """A private classifier that may be trained by all ranks of ``torch.distributed``.

    A final class stores ``across`` among its parameters, and descends as :meth:`_course` says.
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
                "Expected a declared size across ranks, got size=None. Give size=..., the "
                "public number of records on all ranks together."
            )
        if self.random_state is not None:
            raise ValueError(
                "Expected random_state=None across ranks, since with one seed for all of them "
                f"the coins of all would be the same, got random_state={self.random_state!r}."
            )

    def _check_alone(self) -> None:
        """Refuse arrays across ranks."""
        if self.across is not None:
            raise ValueError(
                "Expected fit_records(dataset) across ranks, got fit(X, y), which looks at "
                "records before rank 0 has paid."
            )

    @abstractmethod
    def _told(self, facts: TrainingData) -> dict[str, Any]:
        """Settings of a fit that must be the same on all ranks, as what JSON can hold."""

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        Across ranks, also settings that are not the same on all of them; and every rank but
        rank 0 waits here until rank 0 has paid and begins.
        """
        if self.across is None:
            super().check_records(dataset)
            return
        unit, size = self.unit or Unit(), int(self.size or 0)
        self._given = agree_on_fit(
            self._linked(), lambda: self._share(dataset), unit, self.across, size
        )

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken.

        Across ranks, rank 0 hears of whatever fails on another one, and stops all of them.
        """
        try:
            return super().fit_records(dataset)
        except Exception:
            if self.across is not None:
                self._linked().excuse()
            raise

    def _share(self, dataset: Dataset) -> RankFacts:
        """What is public about the records of this rank, if they can be fitted."""
        super().check_records(dataset)
        return RankFacts(
            self._told(self._public(dataset)),
            # Replacing a record leaves every rank as many as it has: that is public then.
            len(dataset) if self.relation == "replace-one" else None,
            None if dataset.units is None else dataset.at_most,
            (*dataset.dealt_by, *dataset.drawn_by),
        )

    def check_paying(self, unit: Unit) -> None:
        """Refuse a ledger elsewhere than on rank 0, or one that protects another unit."""
        link = self._linked()
        if not link.leads:
            raise ValueError(
                f"Expected the ledger on rank 0, got one on rank {link.rank}. Call "
                "fit_records(dataset) here: it waits until rank 0 has paid."
            )
        link.over = False
        if unit != (self.unit or Unit()):
            problem = ValueError(
                f"Expected unit={unit!r}, which the ledger protects on all ranks, got "
                f"unit={self.unit!r}."
            )
            link.stop(problem)
            raise problem

    def called_off(self, problem: BaseException) -> None:
        """Tell all other ranks that there will be no fit."""
        self._linked().stop(problem)

    def _linked(self) -> RankConnection:
        """The way to other ranks."""
        if "_link" not in self.__dict__:
            self._link = RankConnection()
        return self._link

    def _note_charge(self) -> None:
        if self.across is None or self._leads:
            super()._note_charge()
        else:
            link = self._linked()
            self.charged_, self._ledger_total = link.charged, link.ledger_total

    @property
    def _all_here(self) -> bool:
        return self.across is None

    @property
    def _leads(self) -> bool:
        """Whether steps are taken, and checkpoints written, in this process."""
        return self.across is None or self._linked().leads

    def _course(self) -> Strategy:
        """Whether there are other ranks, and who leads."""
        if self.across is None:
            return SingleProcess()
        link = self._linked()
        given = self.__dict__.pop("_given", None)
        return Leader(link) if given is None else Follower(link, given)


_TRIAL_EXAMPLES = 4  # examples on which ways of taking gradients are compared
_PASSED_TRIALS = set[str]()  # trials of networks of ours, which have one outcome each
_SMALL = 1 << 21  # weights up to which two blocks at a time take no more room than one may
Hook = Callable[["PrivateNetwork", Step], bool | None]


class PrivateNetwork(NetworkPredictions, DistributedClassifier):
    r"""Any network of PyTorch as a classifier that is trained with differential privacy.

    At every step each record enters the batch by a secret coin; the gradient of each record
    of the batch is clipped, the clipped gradients are summed, Gaussian noise is added, and the
    weights follow (Abadi et al. 2016, https://arxiv.org/abs/1607.00133).

    Parameters
    ----------
    module : torch.nn.Module, or a function that makes one
        Gives one logit for each class (or, for two classes, a single one). A module is copied
        for each fit, with the weights it has, which must be public; a function makes new ones.
        Parameters that are not to be trained have ``requires_grad`` off.
    epsilon, delta, noise_multiplier, epochs, steps, sampling_rate
        As of :class:`~veracal.training.PrivateLogisticRegression`.
    clip : float > 0 or Clip
        A number c stands for ``Flat(c)``. Under rules that jump (``GlobalV1``, ``GlobalV2``,
        ``GlobalAdapt``, and rules of your own) every record is computed by itself, which is
        slow: a step takes some 15 times as long for a small convolutional network, and 90
        times for a perceptron.
    update : float > 0, Update or None
        A number r stands for ``SGD(r)``; None, for ``SGD(0.5)``.
    weight_decay : float >= 0
    average : float in [0, 1] or Moving
        Share of the last steps whose weights are averaged, or a moving average; 0 takes the
        last weights.
    loss : callable, optional
        ``loss(outputs, targets)`` gives the loss of each example, of shape (n,). By default
        cross-entropy.
    prepare : callable, optional
        Turns an array of rows, each by itself, into the tensor that the module takes. By
        default bytes of pictures become floats from 0 to 1 with channels first, whole numbers
        stay, and everything else becomes float32.
    augment : Augment, optional
        Makes several views of every example; their gradients are averaged before the clip (De
        et al. 2022, https://arxiv.org/abs/2204.13650).
    gradients : {"ghost", "functional", "hooks"}, optional
        How gradients of examples are taken. By default whichever is fastest in a trial on
        made-up examples.
    block : int
        Examples of a batch that are in memory at a time, at most. With 1, every record is
        computed by itself under any rule.
    checkpoint : path, optional
        File from which a fit goes on that was broken off, written every ``checkpoint_every``
        steps; it belongs to one run on one set of records. A
        :class:`~veracal.queries.Curator` charges such a fit once, by its ``request``, and then
        the file stays: whoever asks for the same fit again gets the model that was paid for.
        After a fit of your own it is removed.
    checkpoint_every : int
    not_private : {"clipping only", "noise only", "neither"}, optional
        Keep only that part of the protection, for an ablation.
    on_step : callable, optional
        As of :class:`~veracal.training.PrivateLogisticRegression`.
    across : Ranks, optional
        Train on the records of all ranks of ``torch.distributed``, of which rank 0 pays, adds
        the noise, calls the hook and writes the checkpoint; ``size`` is that of all together.
    verbose : bool
        Show on the standard error stream how many steps are done, and the time that is left.
    classes, size, relation, unit, random_state
        As of :class:`~veracal.training.PrivateLogisticRegression`.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network.
    trial_ : Trial
        Which way of taking gradients was chosen, and why.
    self_check_ : SelfCheck
        What the run shows of itself: noise, weights that moved, outputs that differ. What is
        wrong is also warned of.
    internal_ : Internal
        Of how many examples gradients were clipped, and how many were not finite. *Internal*:
        it is about the records, and must not leave. On rank 0, those of all ranks; on another,
        its own.
    classes_, n_iter_, noise_multipliers_, event_, private_, not_private_because_, statement_
        As of :class:`~veracal.training.PrivateLogisticRegression`.

    Guarantees
    ----------
    The weights after all steps cost what :meth:`event` says, which depends on the settings
    alone: one record moves the sum that noise is added to by at most the clip bound, and a
    record whose gradient is not finite, or for which the module fails, moves nothing. What a
    record adds does not depend on the others, not even by a rounding:
    :class:`~veracal.neural.gradient_sums.NetworkSums` says how, and what it takes for granted.
    Noise comes from a secret generator of the system's entropy, never from torch's, whose
    random numbers (for dropout and first weights) promise nothing. The real number of records
    enters nowhere but the coins. Sums and their noise are rounded to a public grid before they
    are added; noise and gradients are in floating point, taken for real numbers. What several
    ranks take for granted, :class:`~veracal.neural.Ranks` says.

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

    _rate = 0.5
    rows_apart = True  # see logits: each row is scored by itself
    any_rows = True  # pictures, too, and whole numbers as they are

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
        update: float | Update | None = None,
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
        self.update = update
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
                "Expected gradients that are written down, for noise on each of them before "
                f"the clip (pre_noise={self._pre_noise!r}), got gradients='ghost', which does "
                "not. Take 'functional' or 'hooks', or leave it out."
            )

    @property
    def _pre_noise(self) -> float:
        """Standard deviation of noise on each gradient before it is clipped."""
        update = self._update()
        return update.pre_noise if isinstance(update, Langevin) else 0.0

    def _noise(self, rng: np.random.Generator) -> PreNoise | None:
        """That noise, if there is to be any."""
        return PreNoise(self._pre_noise, rng) if self._pre_noise else None

    def _check_form(self, facts: TrainingData) -> None:
        """Refuse before anything is charged what would fail afterwards, on made-up rows."""
        self._check_delta(facts.size)
        if self.checkpoint is not None and self._leads:
            check_writable(Path(self.checkpoint))
        module, k = self._fresh(np.random.default_rng(0)), len(facts.classes)
        trial = self._known_trial(facts)
        if trial in _PASSED_TRIALS:
            return
        # The generator is the caller's, from which dropout draws.
        with full_precision(), torch.random.fork_rng(devices=[]):
            whole = full_block_size(self._usual, self.sampling_rate * facts.size)
            many = (
                whole if trial is None else _TRIAL_EXAMPLES
            )  # nothing of ours goes by their number
            rows = partial(synthetic_blocks, facts.X, module, k, self._prepared)
            few, usual = build_checked_blocks(rows, (_TRIAL_EXAMPLES, many), self.augment)
            made = check_behavior(module, few, k, usual)
            set_train_mode(module)
            if self.loss is not None:
                check_loss(self.loss, made, k, 2 * self._usual)
            self._tried(module, few[0], None, self._noise(np.random.default_rng(0)))
        if trial is not None:
            _PASSED_TRIALS.add(trial)

    def _known_trial(self, facts: TrainingData) -> str | None:
        """All that a trial depends on, if nothing of it is the caller's own; else None."""
        known, own = KnownNetwork.of(self.module), (self.prepare, self.loss, self.augment)
        if known is None or own != (None, None, None):
            return None
        form = str(facts.X.dtype), facts.X.shape[1:], len(facts.classes)
        return repr((known.to_json(), form, self._usual, self.gradients, bool(self._pre_noise)))

    @property
    def _usual(self) -> int:
        """Examples of a block, or of a trial."""
        return max(int(self.block), _TRIAL_EXAMPLES)

    @property
    def _prepared(self) -> Callable[[Array], torch.Tensor]:
        """What turns rows into tensors."""
        return as_tensor if self.prepare is None else self.prepare

    def _fresh(self, rng: np.random.Generator) -> nn.Module:
        """The network before it is trained: a copy, or new weights."""
        if isinstance(self.module, nn.Module):
            whole: nn.Module = copy_module(self.module, shares=False)
            return whole
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            module = self.module()
        check_module(module)
        return module

    def settled(self, dataset: Dataset) -> Self:
        """The same with nothing left to be found or tried, for many runs of it.

        The noise is that for ``epsilon``, and gradients are taken in the first way that is
        right, whatever is faster on a machine: so runs with a seed are the same on all of
        them.

        Parameters
        ----------
        dataset : Dataset
            Of which only what is public is read.
        """
        self._check_settings()
        _checks.as_part(model=self)
        facts = self._public(dataset)
        descent, module = self._descent(facts.size), self._fresh(np.random.default_rng(0))
        set_train_mode(module)
        with torch.random.fork_rng(devices=[]):
            few = synthetic_block(
                facts.X, module, _TRIAL_EXAMPLES, len(facts.classes), self._prepared
            )
            _, trial = self._tried(module, few, None, self._noise(np.random.default_rng(0)))
        found: Self = clone(self).set_params(gradients=trial.chosen)
        if self.noise_multiplier is None and not isinstance(self._update(), Langevin):
            noise = float(descent.noise_multipliers()[0])
            steps = int(descent.steps)
            found.set_params(noise_multiplier=noise, epsilon=None, steps=steps, epochs=None)
        return found

    def has_begun(self) -> bool:
        """Whether there is a checkpoint from which a fit would go on."""
        return self.checkpoint is not None and Path(self.checkpoint).exists()

    def paid(self, by: str) -> None:
        """Take note of what pays for the next fit, which only goes on if it is the same."""
        self._paid = by

    def _told(self, facts: TrainingData) -> dict[str, Any]:
        descent, module = self._settled(facts)[0], self._fresh(np.random.default_rng(0))
        return {
            "event": event_to_json(descent.event()),
            **training_settings(descent, Layout(module)),
            **self._about_run(facts.classes),
            **{name: repr(getattr(self, name)) for name in ("not_private", "delta", "unit")},
            "across": repr(self.across),
            "size": facts.size,
            "rows": [str(facts.X.dtype), list(facts.X.shape[1:])],
            "module": describe_module(module),
        }

    def _learn(self, facts: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        first, lots, views = rng.spawn(3)
        module, course = self._fresh(first), self._course()
        with course.begun(module), torch.random.fork_rng(devices=[]):
            set_train_mode(module)
            self._blank = copy.deepcopy(module)  # of which nothing has seen a record
            self._form = synthetic_rows(facts.X, module, SCORING_BLOCK)
            self._outputs = len(facts.classes)
            records = IndexedRecords(facts.X, facts.codes, self._prepared, self.augment, views)
            if KnownNetwork.of(self.module) is None:  # one of ours begins with fresh weights
                self._began_with = not_covered(_arrays(module))
            return self._descended(facts, module, records, course, lots, rng)

    def _descended(
        self,
        facts: TrainingData,
        module: nn.Module,
        records: IndexedRecords,
        course: Strategy,
        lots: np.random.Generator,
        rng: np.random.Generator,
    ) -> tuple[str, ...]:
        """Take all steps, and write down what became of them."""
        descent, reasons = self._settled(facts)
        run, shown = self._run(module, descent, course), bool(self.verbose) and course.leads
        # A run that is paid for has its file before ways are tried, which takes a while.
        # Threads of numpy's linear algebra would wait for those of torch, and these for them.
        with (
            run.begun(),
            threadpool_limits(1, user_api="blas"),
            progress_bar(int(descent.steps), shown=shown) as run.tell,
        ):
            lanes = self._lanes(module, descent, lots, rng)
            expected = descent.expected_batch / course.world
            sums = NetworkSums(lanes, records, expected, int(self.block), rng=lots)
            with sums.threads():
                ended = course.descend(descent, run, sums, len(records), rng)
        self._show(ended.shown)
        remember(_trained(self.module_), self._records_name)
        self.internal_, last = ended.internal, ended.done.weights
        self.self_check_ = run.checked(ended.noise, last, self._scores.forward(self._form))
        del self._blank
        if self.not_private is None:
            self.self_check_.warn()
        return reasons + self._done(descent, ended.done)

    def _lanes(
        self,
        module: nn.Module,
        descent: DPSGD,
        lots: np.random.Generator,
        rng: np.random.Generator,
    ) -> list[GradientWorker]:
        """The network, and a copy of it where two threads are faster than one."""
        engine, self.trial_ = self._engine(module, descent, self._noise(*lots.spawn(1)))
        lanes = [GradientWorker(module, engine)]
        threads = torch.get_num_threads() if _random.is_secret(rng) else 1
        if isinstance(engine, GhostEngine) and engine.size <= _SMALL and threads > 1:
            # Not with a seed: which thread draws for dropout first is up to the system.
            twin = copy.deepcopy(module)
            lanes.append(
                GradientWorker(twin, GhostEngine(twin, self._losses, self._usual, engine.last))
            )
        return lanes

    def _engine(
        self, module: nn.Module, descent: DPSGD, noise: PreNoise | None
    ) -> tuple[GradientEngine, EngineTrial]:
        """How gradients are taken."""
        many = int(min(self.block, max(1.0, descent.expected_batch)))
        few, more = (
            synthetic_block(self._form, module, n, self._outputs, self._prepared)
            for n in (_TRIAL_EXAMPLES, many)
        )
        return self._tried(module, few, more, noise)

    def _tried(
        self, module: nn.Module, few: Block, many: Block | None, noise: PreNoise | None
    ) -> tuple[GradientEngine, EngineTrial]:
        """The way that is right, and of several the fastest."""
        return choose_engine(
            module, self._losses, few, many, usual=self._usual, way=self.gradients, noise=noise
        )

    def _run(self, module: nn.Module, descent: DPSGD, course: Strategy) -> TrainingRun:
        """What happens beside the steps."""
        layout, file = Layout(module), None
        if self.checkpoint is not None and course.leads:
            paid = self.__dict__.pop("_paid", None)
            about = self._about_run(self.classes_)
            file = Checkpoint(Path(self.checkpoint), descent, layout, about, paid)
        watch, every = Watch(self, int(descent.steps)), int(self.checkpoint_every)
        return TrainingRun(watch, descent, layout, layout.read(module), file, every)

    def _about_run(self, classes: Array) -> dict[str, Any]:
        """Whatever else must be the same for a run to go on."""
        names = ("loss", "prepare", "augment")
        return {
            "average": repr(self.average),
            "module": repr(self.module),
            "classes": [str(one) for one in classes.tolist()],
            **{name: describe_callable(getattr(self, name)) for name in names},
        }

    @property
    def _losses(self) -> LossFunction:
        """The loss of each example."""
        return cross_entropy if self.loss is None else self.loss

    def _show(self, weights: Floats) -> None:
        shown = copy.deepcopy(self._blank)
        Layout(shown).write(weights, shown)
        self.module_ = shown.eval()
        self._scores = NetworkScores(self.module_, self._form, self._prepared)

    def _validated(self, X: Any, y: Any) -> tuple[Any, Array]:
        self._check_alone()
        rows, labels = validate_data(
            self, X, y, allow_nd=True, dtype=None, ensure_min_samples=1
        )
        if rows.dtype.kind not in "fiub":
            raise ValueError(f"Expected rows of numbers, got {rows.dtype}.")
        check_classification_targets(labels)
        return rows, labels

    def _check_kind(self, dataset: Dataset) -> None:
        if not isinstance(dataset, Dataset):
            check_numbers(dataset)
        if dataset.X.dtype.kind not in "fiub":
            raise DataError(
                f"{dataset.name}: features",
                "numbers",
                f"{dataset.X.dtype}",
                "Turn text into tokens or frozen features first.",
            )

    def __sklearn_clone__(self) -> Self:
        if isinstance(self.module, nn.Module):
            check_copyable(self.module)  # torch would not say what to do
        cloned: Self = super().__sklearn_clone__()
        return cloned

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _arrays(module: nn.Module) -> Iterator[Array]:
    """All weights of a module."""
    return (one.detach().to(torch.float32).numpy() for one in module.parameters())


def _trained(module: nn.Module) -> Iterator[Array]:
    """Those that were trained."""
    return (one.detach().numpy() for one in module.parameters() if one.requires_grad)

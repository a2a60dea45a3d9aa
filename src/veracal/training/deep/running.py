"""What happens beside the steps of a fit: averages, the hook, checkpoints, measurements."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from veracal._types import Floats
from veracal.privacy import Descent, Standing, Step
from veracal.training.deep.checkpoints import Checkpoint
from veracal.training.deep.layout import Layout
from veracal.training.deep.progress import Done
from veracal.training.deep.self_check import SelfCheck, Watched
from veracal.training.descending import Watch

Noise = tuple[float, float, bool]  # see SelfCheck


@dataclass(frozen=True)
class Internal:
    """What a run has met among the records: for whoever holds them, and nobody else.

    It cannot be copied or pickled, and estimators leave it out of their copies and pickles.

    Attributes
    ----------
    seen : int
        Examples in all batches.
    clipped : int
        Of these, with a gradient longer than the clip bound.
    broken : int
        Of these, with a gradient that was not finite, which added nothing.
    left_out : int
        Records that were not as declared, and in no batch.
    """

    seen: int
    clipped: int
    broken: int
    left_out: int = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "Expected internal figures to stay in the process that holds the records, got an "
            "attempt to copy or pickle them. Read what you need from internal_ instead."
        )

    @property
    def clip_rate(self) -> float:
        """Share of examples whose gradient was longer than the bound."""
        return self.clipped / max(1, self.seen)


class Run:
    """One run of a descent, called after each of its steps.

    Parameters
    ----------
    watch : Watch
        Averages weights, and calls the hook.
    descent : Descent
    layout : Layout
        Of the network.
    first : array
        Weights to begin with.
    file : Checkpoint, optional
    every : int
        Steps between two checkpoints.

    Attributes
    ----------
    standing : Standing or None
        From where the run goes on, if it was broken off.
    tell : callable
        Told how many steps are done, after each.
    """

    def __init__(
        self,
        watch: Watch,
        descent: Descent,
        layout: Layout,
        first: Floats,
        file: Checkpoint | None,
        every: int,
    ) -> None:
        self.watch, self.first = watch, first
        self.standing: Standing | None = None
        self.tell: Done = lambda done: None
        self._descent, self._layout, self._file, self._every = descent, layout, file, every
        self._watched, self._marks = Watched(descent, layout.size), layout.marks(first)
        self._last: Standing | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Go on from where a run was broken off, or say on the disk that it has begun.

        A run that was paid for is there before its first batch is drawn: should the file be
        missing later, a model of it may have left.
        """
        if self._file is None:
            yield
            return
        with self._file.held():
            kept = self._file.read()
            if kept is not None:
                self.standing = kept.standing
                self.watch.average.go_on(kept.mean)
            elif self._file.paid is not None:
                state = self._descent.update.start(self.first)
                self._file.write(Standing(0, self.first, state, self._descent.clip), {})
            yield

    def __call__(self, step: Step) -> bool | None:
        """Take note of a step."""
        self._watched.note(step)
        ended = self.watch(step)
        self.tell(step.number + 1)
        self._last = step.standing  # and not the sum, which is large
        if self._file is not None and (step.number + 1) % self._every == 0:
            self._file.write(step.standing, self.watch.average.kept())
        return ended

    def noise(self) -> Noise:
        """How long the noisy sums were, the least, and whether noise alone is that long."""
        return (*self._watched.noise(), self._watched.silent())

    def checked(self, noise: Noise, last: Floats, logits: Floats) -> SelfCheck:
        """What the run shows of itself, by its last weights and logits of made-up rows."""
        still = self._layout.unmoved(self._marks, last)
        constant = bool((logits == logits[0]).all())
        found, least, silent = noise
        return SelfCheck(found, least, still, constant, silent)

    def over(self) -> None:
        """The run has come to its end."""
        if self._file is None:
            return
        if self._file.paid is None:
            self._file.remove()
        elif self._last is not None:  # a second model for one charge would be one too many
            self._file.write(self._last, self.watch.average.kept())

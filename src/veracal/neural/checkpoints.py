"""Where a training run was broken off, in one file from which it goes on."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import nn

from veracal._types import Array
from veracal.accounting import event_to_json
from veracal.data import no_surprises
from veracal.errors import DataError
from veracal.ledger import canonical, digest
from veracal.mechanisms import DPSGD, GlobalAdapt, TrainingState, sees_weights
from veracal.neural.gradient_sums import Layout

_KEY = "veracal"
_FORM = 1
_STATE, _MEAN = "state.", "mean."
_TRIES = 100  # to lock a file before another process has removed it
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(frozen=True, eq=False)
class CheckpointState:
    """What a checkpoint holds.

    Attributes
    ----------
    standing : Standing
    mean : mapping of str to array
        Of averaged weights.
    """

    standing: TrainingState
    mean: Mapping[str, Array]


class Checkpoint:
    """A file that is written every so many steps, and read where a run goes on.

    It has weights, what the update rule and the average remember, the number of steps, the
    event, and the head of the ledger that has paid for it. It has nothing of a generator:
    whoever goes on draws other batches and other noise.

    Parameters
    ----------
    path : path
        Of the file.
    descent : Descent
    layout : Layout
        Of the network.
    run : mapping
        Whatever else must be the same for a run to go on, as what JSON can hold.
    paid : str, optional
        By what the run was paid for: the head of the ledger, and which records.

    Guarantees
    ----------
    The file is its owner's alone, and replaced as a whole, or not at all. A run goes on only
    under the settings and the charge of the one that was broken off. Steps that were taken
    after the file was written are taken anew, with other noise; nothing of them has left the
    process, so the cost is that of one run. Whoever puts an older copy of the file back and
    goes on from there makes a second run that nobody has paid for: that cannot be seen here.
    """

    def __init__(
        self,
        path: Path,
        descent: DPSGD,
        layout: Layout,
        run: Mapping[str, Any],
        paid: str | None,
    ) -> None:
        self.path, self.paid, self._descent = Path(path), paid, descent
        self._size = layout.size
        self._about = {
            "form": _FORM,
            "event": event_to_json(descent.event()),
            "paid": paid,
            "settings": digest(
                canonical({**training_settings(descent, layout), "run": dict(run)})
            ),
        }

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from the same run for as long as the block lasts."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        with no_surprises(self.path), self._locked(lock) as file:
            try:
                yield
            finally:
                # Before the lock goes: whoever has opened this file by then finds it gone.
                if _is_file_at(file, lock):
                    lock.unlink(missing_ok=True)

    def _locked(self, lock: Path) -> BinaryIO:
        """The file at that place, once it is locked; for one process at a time.

        A file is removed by whoever has it locked and found it in its place, so the file in
        that place is locked by whoever may go on, or by nobody. One that was removed between
        open and lock is of no use: another may be in its place, and locked.
        """
        busy: OSError | None = None
        for _ in range(_TRIES):
            with ExitStack() as opened:
                file = opened.enter_context(lock.open("ab"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    busy = error
                    break
                if _is_file_at(file, lock):
                    opened.pop_all()  # it stays open
                    return file
        raise DataError(
            str(self.path),
            "a run that nobody else is at",
            "another process at work on it",
            "Wait until it is over, or stop it.",
        ) from busy

    def write(self, standing: TrainingState, mean: Mapping[str, Array]) -> None:
        """Keep where a run stands."""
        tensors = {"weights": np.ascontiguousarray(standing.weights)}
        tensors |= {f"{_STATE}{i}": one for i, one in enumerate(flatten_state(standing.state))}
        tensors |= {f"{_MEAN}{name}": one for name, one in mean.items()}
        clip = standing.clip
        told = {
            **self._about,
            "steps": standing.steps,
            "threshold": clip.threshold if isinstance(clip, GlobalAdapt) else None,
        }
        _write_atomically(self.path, save(tensors, metadata={_KEY: json.dumps(told)}))

    def read(self) -> CheckpointState | None:
        """Where an earlier run was broken off; None if there is no such file.

        Raises
        ------
        DataError
            If the file is of another run, or none of ours.
        """
        if not self.path.exists():
            return None
        told, tensors = self._opened()
        for what, words in (
            ("form", "of this version"),
            ("event", "of a run that costs the same"),
            ("settings", "of a run with the same settings and the same network"),
            ("paid", "of the run that this charge pays for"),
        ):
            if told.get(what) != self._about[what]:
                raise self._unfit(f"a checkpoint {words}", f"another {what}")
        weights, steps = self._checked(told, tensors)
        like = self._descent.update.start(weights)
        arrays = [
            one
            for name, one in sorted(tensors.items(), key=_state_index)
            if name.startswith(_STATE)
        ]
        if [one.shape for one in arrays] != [one.shape for one in flatten_state(like)]:
            raise self._unfit("what the update rule remembers", "arrays of another form")
        state = unflatten_state(like, arrays)
        clip = self._descent.clip
        if isinstance(clip, GlobalAdapt):
            clip = replace(clip, threshold=float(told["threshold"]))
        mean = {
            name.removeprefix(_MEAN): one
            for name, one in tensors.items()
            if name.startswith(_MEAN)
        }
        return CheckpointState(TrainingState(steps, weights, state, clip), mean)

    def _checked(self, told: dict[str, Any], tensors: dict[str, Array]) -> tuple[Array, int]:
        """Weights and steps, if they can be those of a run like this one."""
        weights, steps = tensors["weights"], told.get("steps")
        if weights.dtype != np.float32 or weights.shape != (self._size,):
            found = f"{weights.dtype} of shape {weights.shape}"
            raise self._unfit(f"weights as float32 of shape ({self._size},)", found)
        if not all(np.isfinite(one).all() for one in tensors.values()):
            raise self._unfit("finite numbers", "others")
        if type(steps) is not int or not 0 <= steps <= self._descent.steps:
            raise self._unfit(f"steps from 0 to {self._descent.steps}", repr(steps))
        if isinstance(self._descent.clip, GlobalAdapt):
            threshold = told.get("threshold")
            if type(threshold) is not float or not 0 < threshold < float("inf"):
                raise self._unfit("a threshold of the clip rule > 0", repr(threshold))
        return weights, steps

    def remove(self) -> None:
        """Remove the file, once the run is over."""
        with no_surprises(self.path):
            self.path.unlink(missing_ok=True)

    def _opened(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What the file says of itself, and its arrays."""
        try:
            with no_surprises(self.path), safe_open(str(self.path), "numpy") as file:
                told = json.loads((file.metadata() or {}).get(_KEY, "null"))
                names = list(file.keys())
                tensors = {name: np.array(file.get_tensor(name)) for name in names}
        except (SafetensorError, json.JSONDecodeError) as error:
            raise self._unfit("a checkpoint", "a file that is none, or half of one") from error
        if not isinstance(told, dict) or "weights" not in tensors:
            raise self._unfit("a checkpoint", "another file")
        return told, tensors

    def _unfit(self, expected: str, found: str) -> DataError:
        """What is wrong with the file."""
        return DataError(
            str(self.path),
            expected,
            found,
            "Go on with the settings of the run that was broken off"
            + (
                ", or remove the file to begin anew."
                if self.paid is None
                else ". This run is paid for: without its file it is lost."
            ),
        )


def check_resumable(checkpoint: object, module: object, on_step: object) -> None:
    """Refuse what would make a run in two parts another one than a run in one."""
    if not isinstance(checkpoint, str | os.PathLike):
        raise ValueError(f"Expected checkpoint to name a file, got {checkpoint!r}.")
    if sees_weights(on_step):
        raise ValueError(
            "Expected no hook beside a checkpoint, got both: a step that is taken twice, "
            "after a break, would be shown twice with different noise, and is paid once."
        )
    if not isinstance(module, nn.Module):
        raise ValueError(
            "Expected a module beside a checkpoint, got a function that makes one: what is "
            "frozen in it would be another after a break. Call it, and give its result."
        )


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before anything is paid for."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(
            "Expected checkpoint to name a file in a folder that exists and may be written to, "
            f"got {str(path)!r}. Make the folder first."
        )


def training_settings(descent: DPSGD, layout: Layout) -> dict[str, Any]:
    """What makes a descent this one, beside its cost."""
    return {
        "clip": repr(descent.clip),
        "update": repr(descent.update),
        "expected_batch": descent.expected_batch,
        "weight_decay": descent.weight_decay,
        "layout": [[one.name, list(one.shape)] for one in layout.places],
    }


def describe_callable(function: object) -> str:
    """What a function is called, or how a record of settings looks."""
    return getattr(function, "__qualname__", None) or repr(function)


def flatten_state(state: Any) -> list[Array]:
    """The arrays of what an update rule remembers, in order."""
    if state is None:
        return []
    if isinstance(state, np.ndarray):
        return [np.ascontiguousarray(state)]
    if isinstance(state, tuple) and all(isinstance(one, np.ndarray) for one in state):
        return [np.ascontiguousarray(one) for one in state]
    raise ValueError(
        "Expected an update rule that remembers nothing, an array or a tuple of arrays, got "
        f"{type(state).__name__}. Leave out the checkpoint."
    )


def unflatten_state(like: Any, arrays: list[Array]) -> Any:
    """What an update rule remembers, from its arrays; ``like`` is what it starts with."""
    if like is None:
        return None
    if isinstance(like, np.ndarray):
        return arrays[0]
    return type(like)(*arrays)


def _state_index(item: tuple[str, Array]) -> tuple[int, str]:
    """Arrays of a state by their numbers, ten after nine."""
    name = item[0]
    return (int(name.removeprefix(_STATE)) if name.startswith(_STATE) else -1, name)


def _is_file_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one at that place."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole, or not at all."""
    # One name, so that what a killed process left is written over: the run is held by one.
    made = path.with_name(f".{path.name}.part")
    try:
        with no_surprises(path):
            made.unlink(missing_ok=True)  # with whatever permissions it was left
            with os.fdopen(os.open(made, _NEW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)

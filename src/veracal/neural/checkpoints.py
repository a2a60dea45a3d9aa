"""Checkpoints: saves a training run between steps and resumes it."""

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
from veracal.data import translate_os_errors
from veracal.errors import DataError
from veracal.ledger import canonical, digest
from veracal.mechanisms import DPSGD, GlobalAdapt, TrainingState, hook_exposes_weights
from veracal.neural.gradient_sums import Layout

_METADATA_KEY = "veracal"
_FORMAT = 1
_STATE, _MEAN = "state.", "mean."
_TRIES = 100  # to lock a file before another process has removed it
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(frozen=True, eq=False)
class CheckpointState:
    """Contents of a checkpoint.

    Attributes
    ----------
    state : TrainingState
    mean : mapping of str to array
        Averaged weights.
    """

    state: TrainingState
    mean: Mapping[str, Array]


class Checkpoint:
    """A file that is written at intervals during training, and from which a run resumes.

    It holds the weights, the states of the optimizer and of the average, the number of steps,
    the event, and the head of the ledger that paid for the run. It holds no generator state: a
    resumed run draws new batches and new noise.

    Parameters
    ----------
    path : path
    dp_sgd : DPSGD
    layout : Layout
        Of the network.
    run : mapping
        Other settings that must be the same to resume a run, as JSON values.
    paid : str, optional
        Identifies the payment: the head of the ledger, and the records.

    Guarantees
    ----------
    The file is readable by its owner only, and is replaced completely or
    not at all. A run resumes only under the settings and the charge of the interrupted one.
    Steps that were taken after the file was written are repeated with fresh noise; their
    results have not left the process, so the cost is that of one run. Restoring an older copy
    of the file and resuming from it is a second run that was not paid for; this cannot be
    detected here.
    """

    def __init__(
        self,
        path: Path,
        dp_sgd: DPSGD,
        layout: Layout,
        run: Mapping[str, Any],
        paid: str | None,
    ) -> None:
        self.path, self.paid, self._dp_sgd = Path(path), paid, dp_sgd
        self._size = layout.size
        self._metadata = {
            "format": _FORMAT,
            "event": event_to_json(dp_sgd.event()),
            "paid": paid,
            "settings": digest(
                canonical({**training_settings(dp_sgd, layout), "run": dict(run)})
            ),
        }

    @contextmanager
    def lock_run(self) -> Iterator[None]:
        """Lock the run against other processes inside the block."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        with translate_os_errors(self.path), self._open_lock(lock) as file:
            try:
                yield
            finally:
                # Before the lock is released: other processes then find the file gone.
                if _is_file_at(file, lock):
                    lock.unlink(missing_ok=True)

    def _open_lock(self, lock: Path) -> BinaryIO:
        """Open and lock the lock file.

        The file is removed by the process that has locked it and found it in its place, so a
        file in that place is locked by the process that may go on, or by none. One that was
        removed between open and lock is of no use: another may be in its place, and locked.
        """
        busy: OSError | None = None
        for _ in range(_TRIES):
            with ExitStack() as stack:
                file = stack.enter_context(lock.open("ab"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    busy = error
                    break
                if _is_file_at(file, lock):
                    stack.pop_all()  # keep the file open
                    return file
        raise DataError(
            str(self.path),
            "a run that no other process is working on",
            "another process that has locked it",
            "Wait until it ends, or stop it.",
        ) from busy

    def save(self, state: TrainingState, mean: Mapping[str, Array]) -> None:
        """Save the state of a run."""
        tensors = {"weights": np.ascontiguousarray(state.weights)}
        tensors |= {f"{_STATE}{i}": array for i, array in enumerate(flatten_state(state.state))}
        tensors |= {f"{_MEAN}{name}": array for name, array in mean.items()}
        clip = state.clip
        metadata = {
            **self._metadata,
            "steps": state.steps,
            "threshold": clip.threshold if isinstance(clip, GlobalAdapt) else None,
        }
        _write_atomically(
            self.path, save(tensors, metadata={_METADATA_KEY: json.dumps(metadata)})
        )

    def load(self) -> CheckpointState | None:
        """Load the state of an interrupted run; None if there is no file.

        Raises
        ------
        DataError
            If the file belongs to another run, or is not a checkpoint.
        """
        if not self.path.exists():
            return None
        metadata, tensors = self._read_file()
        for key, description in (
            ("format", "of this version"),
            ("event", "of a run that costs the same"),
            ("settings", "of a run with the same settings and the same network"),
            ("paid", "of the run that this charge pays for"),
        ):
            if metadata.get(key) != self._metadata[key]:
                raise self._error(f"a checkpoint {description}", f"another {key}")
        weights, steps = self._check_contents(metadata, tensors)
        like = self._dp_sgd.optimizer.start(weights)
        arrays = [
            array
            for name, array in sorted(tensors.items(), key=_state_index)
            if name.startswith(_STATE)
        ]
        if [array.shape for array in arrays] != [array.shape for array in flatten_state(like)]:
            raise self._error("the state of this optimizer", "arrays of other shapes")
        state = unflatten_state(like, arrays)
        clip = self._dp_sgd.clip
        if isinstance(clip, GlobalAdapt):
            clip = replace(clip, threshold=float(metadata["threshold"]))
        mean = {
            name.removeprefix(_MEAN): array
            for name, array in tensors.items()
            if name.startswith(_MEAN)
        }
        return CheckpointState(TrainingState(steps, weights, state, clip), mean)

    def _check_contents(
        self, metadata: dict[str, Any], tensors: dict[str, Array]
    ) -> tuple[Array, int]:
        """Return weights and steps if they are possible for a run like this one."""
        weights, steps = tensors["weights"], metadata.get("steps")
        if weights.dtype != np.float32 or weights.shape != (self._size,):
            actual = f"{weights.dtype} of shape {weights.shape}"
            raise self._error(f"weights as float32 of shape ({self._size},)", actual)
        if not all(np.isfinite(array).all() for array in tensors.values()):
            raise self._error("finite numbers", "NaN or infinity")
        if type(steps) is not int or not 0 <= steps <= self._dp_sgd.steps:
            raise self._error(f"steps from 0 to {self._dp_sgd.steps}", repr(steps))
        if isinstance(self._dp_sgd.clip, GlobalAdapt):
            threshold = metadata.get("threshold")
            if type(threshold) is not float or not 0 < threshold < float("inf"):
                raise self._error("a threshold of the clip rule > 0", repr(threshold))
        return weights, steps

    def remove(self) -> None:
        """Remove the file after the run."""
        with translate_os_errors(self.path):
            self.path.unlink(missing_ok=True)

    def _read_file(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Read the metadata and the arrays of the file."""
        try:
            with translate_os_errors(self.path), safe_open(str(self.path), "numpy") as file:
                metadata = json.loads((file.metadata() or {}).get(_METADATA_KEY, "null"))
                names = list(file.keys())
                tensors = {name: np.array(file.get_tensor(name)) for name in names}
        except (SafetensorError, json.JSONDecodeError) as error:
            raise self._error("a checkpoint", "another or a truncated file") from error
        if not isinstance(metadata, dict) or "weights" not in tensors:
            raise self._error("a checkpoint", "another file")
        return metadata, tensors

    def _error(self, expected: str, actual: str) -> DataError:
        """Error for a file that does not fit."""
        return DataError(
            str(self.path),
            expected,
            actual,
            "Resume with the settings of the interrupted run"
            + (
                ", or remove the file to start again."
                if self.paid is None
                else ". This run is paid for: without its file it is lost."
            ),
        )


def check_resumable(checkpoint: object, module: object, on_step: object) -> None:
    """Reject settings under which a resumed run would differ from an uninterrupted one."""
    if not isinstance(checkpoint, str | os.PathLike):
        raise ValueError(f"Expected checkpoint to name a file, got {checkpoint!r}.")
    if hook_exposes_weights(on_step):
        raise ValueError(
            "Expected no hook with a checkpoint, got both: a step that is repeated after an "
            "interruption would be released twice with different noise, and is paid once."
        )
    if not isinstance(module, nn.Module):
        raise ValueError(
            "Expected a module with a checkpoint, got a function that returns one: its frozen "
            "weights would change when the run resumes. Call it, and pass its result."
        )


def check_writable(path: Path) -> None:
    """Reject a path that cannot be written, before anything is charged."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(
            "Expected checkpoint to name a file in an existing, writable folder, got "
            f"{str(path)!r}. Create the folder first."
        )


def training_settings(dp_sgd: DPSGD, layout: Layout) -> dict[str, Any]:
    """Settings that identify a training, in addition to its cost."""
    return {
        "clip": repr(dp_sgd.clip),
        "optimizer": repr(dp_sgd.optimizer),
        "expected_batch": dp_sgd.expected_batch,
        "weight_decay": dp_sgd.weight_decay,
        "layout": [[array.name, list(array.shape)] for array in layout.slices],
    }


def describe_callable(function: object) -> str:
    """Name of a function, or the repr of a settings record."""
    return getattr(function, "__qualname__", None) or repr(function)


def flatten_state(state: Any) -> list[Array]:
    """Return the arrays of an optimizer state, in order."""
    if state is None:
        return []
    if isinstance(state, np.ndarray):
        return [np.ascontiguousarray(state)]
    if isinstance(state, tuple) and all(isinstance(array, np.ndarray) for array in state):
        return [np.ascontiguousarray(array) for array in state]
    raise ValueError(
        "Expected an optimizer whose state is None, an array or a tuple of arrays, got "
        f"{type(state).__name__}. Remove the checkpoint."
    )


def unflatten_state(like: Any, arrays: list[Array]) -> Any:
    """Rebuild an optimizer state from its arrays; ``like`` is the initial state."""
    if like is None:
        return None
    if isinstance(like, np.ndarray):
        return arrays[0]
    return type(like)(*arrays)


def _state_index(item: tuple[str, Array]) -> tuple[int, str]:
    """Sort key of state arrays: by number, so that 10 follows 9."""
    name = item[0]
    return (int(name.removeprefix(_STATE)) if name.startswith(_STATE) else -1, name)


def _is_file_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file is the one at that path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely, or not at all."""
    # One fixed name, so that the file of a killed process is replaced: the run is locked.
    partial = path.with_name(f".{path.name}.part")
    try:
        with translate_os_errors(path):
            partial.unlink(missing_ok=True)  # its permissions may differ
            with os.fdopen(os.open(partial, _NEW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

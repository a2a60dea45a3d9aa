"""The whole grid: every method on every network and corruption, saved as it is computed.

One file holds the results for one network and corruption. It says what it was made from, the
code of the methods included, so that an interrupted run resumes and no outdated result is shown.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.shift import grid, methods, tables, trials
from benchmarks.shift.grid import POINTS, TRIALS
from benchmarks.shift.logits import Setting, logits, read_cache
from benchmarks.shift.methods import OPEN, PRIVATE, Method
from benchmarks.shift.weights import folder, write_whole
from veracal._types import Floats
from veracal.calibration import __file__ as library

_LIBRARY = (
    "bins",
    "maps/doubt",
    "private/binning",
    "private/golden_section",
    "private/meeting",
    "private/pooled",
)


@dataclass(frozen=True, eq=False)
class Result:
    """Mean calibration errors over the trials of a setting.

    Attributes
    ----------
    setting : Setting
    means, stds : mapping of method to array of shape (points,)
        Names of methods without privacy begin with "open: ".
    accuracy : float
        Of the network on all pictures.
    """

    setting: Setting
    means: dict[str, Floats]
    stds: dict[str, Floats]
    accuracy: float


def run(
    settings: Iterable[Setting], *, count: int = TRIALS, jobs: int = 2, seed: str = "table"
) -> list[Result]:
    """Results of settings, those that are missing computed now, with a bar."""
    wanted = list(settings)
    missing = [setting for setting in wanted if read(setting, count, seed) is None]
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("grid", total=len(wanted))
        bar.advance(task, len(wanted) - len(missing))
        for _ in _computed(missing, count, jobs, seed):
            bar.advance(task)
    found = (read(setting, count, seed) for setting in wanted)
    return [result for result in found if result is not None]


def measure(setting: Setting, count: int = TRIALS, seed: str = "table") -> Result:
    """Run every method on one network and corruption, and keep the result."""
    scores, labels = logits(setting.network, setting.corruption, setting.severity)
    name = f"{seed}: {setting.place.stem}"
    made = tables.tables(scores, labels, name, count)
    found = _errors(made, PRIVATE, private=True)
    opened = _errors(made, OPEN, private=False)
    found |= {f"open: {name}": errors for name, errors in opened.items()}
    result = Result(
        setting,
        {key: errors.mean(axis=0) for key, errors in found.items()},
        {key: errors.std(axis=0, ddof=1) for key, errors in found.items()},
        float(made.correct.mean()),
    )
    _write(result, count, seed)
    return result


def read(setting: Setting, count: int = TRIALS, seed: str = "table") -> Result | None:
    """The saved result; None if there is none, or other code computed it."""
    try:
        with safe_open(_result_path(setting, count, seed), "np") as file:
            said = file.metadata() or {}
            if said.get("made from") != _inputs_checksum(setting, count, seed):
                return None
            names = [key.removeprefix("mean ") for key in file.keys() if key[:5] == "mean "]  # noqa: SIM118
            means = {name: file.get_tensor(f"mean {name}") for name in names}
            stds = {name: file.get_tensor(f"std {name}") for name in names}
    except (OSError, SafetensorError):
        return None
    return Result(setting, means, stds, float(said["accuracy"]))


def _errors(
    made: tables.Tables, wanted: Mapping[str, Method], *, private: bool
) -> dict[str, Floats]:
    """Errors of methods with independent noise; variants of one method share it."""
    found, answers = {}, dict[str, trials.Sources]()
    for name, method in wanted.items():
        family = name.split(",")[0]
        if family not in answers:
            number = int.from_bytes(hashlib.sha256(family.encode()).digest()[:8], "big")
            rng = np.random.default_rng([number, *made.order[:2, 0].tolist()])
            answers[family] = trials.Sources(made, rng, private)
        found[name] = method(answers[family])
        assert found[name].shape == (made.trials, len(POINTS))
        assert np.isfinite(found[name]).all()
    return found


def _computed(missing: list[Setting], count: int, jobs: int, seed: str) -> Iterator[Result]:
    """Results as they are computed; logits are computed before, in this process."""
    for setting in missing:
        if read_cache(setting) is None:
            logits(setting.network, setting.corruption, setting.severity)
    work = (joblib.delayed(measure)(setting, count, seed) for setting in missing)
    yield from joblib.Parallel(jobs, return_as="generator_unordered")(work)


def _write(result: Result, count: int, seed: str) -> None:
    """Keep a result, whole or not at all."""
    arrays = {f"mean {name}": values for name, values in result.means.items()}
    arrays |= {f"std {name}": values for name, values in result.stds.items()}
    said = {
        "made from": _inputs_checksum(result.setting, count, seed),
        "accuracy": repr(result.accuracy),
    }
    write_whole(_result_path(result.setting, count, seed), save(arrays, said))


def _result_path(setting: Setting, count: int, seed: str) -> Path:
    """The file of a result."""
    return folder() / f"grid-{seed}-{count}-{setting.place.name}"


def _inputs_checksum(setting: Setting, count: int, seed: str) -> str:
    """Checksum of everything that a result depends on."""
    code = [Path(module.__file__) for module in (grid, methods, tables, trials)]
    total = hashlib.sha256(repr((setting.made_from, count, seed)).encode())
    for path in (*code, *(Path(library).parent / f"{name}.py" for name in _LIBRARY)):
        total.update(path.read_bytes())
    return total.hexdigest()

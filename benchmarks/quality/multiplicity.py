"""Reproduction of Table 2 of Kulynych et al. (2023), also under a private mechanism.

    python -m benchmarks.quality.multiplicity --json multiplicity.json

Each row of the table is one audit of the library: 5,000 runs of logistic regression with its
objective perturbed, scored on the same people.

The paper's own code cuts each table in four by ``stratify=y, random_state=0`` and tests on one
part. Table 2 does not come out that way, with diffprivlib either. It does come out, with
diffprivlib 0.6.2 and the seeds 0 to 4999 to the digits printed, if models are trained on three
quarters drawn *without* stratifying and tested on the stratified quarter, so that most people
of the test are among those of the training. That is ``Setting.crossed``: it reproduces the
table, and is no way to measure anything.
"""

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.special import expit
from sklearn.model_selection import train_test_split

from benchmarks.datasets import load
from benchmarks.quality.table2 import EPSILONS, PUBLISHED, RUNS, SETS, Row
from veracal.data import Dataset
from veracal.multiplicity import Audit, AuditEngine, AuditSettings, Streams, audit_engine
from veracal.multiplicity.engines.linear import ObjectiveEngine
from veracal.training import ObjectivePerturbation

SEED = 0
LEVELS = tuple(np.round(np.arange(0.5, 0.96, 0.05), 2).tolist())  # of accuracy
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Setting:
    """One table of four sets and eight epsilons.

    Attributes
    ----------
    name : str
    rule, relation : str
        Of :class:`ObjectivePerturbation`.
    crossed : bool
        Whether the training part is the one that Table 2 must have been made with.
    saturated : bool
        Whether AUC ranks people by probabilities in float64, of which all above 1 - 1e-16 are
        equal, instead of margins.
    """

    name: str
    rule: str = "one-log"
    relation: str = "replace-one"
    crossed: bool = False
    saturated: bool = False


SETTINGS = (
    Setting("as printed", "diffprivlib-0.6.2", crossed=True, saturated=True),
    Setting("held out", "diffprivlib-0.6.2"),
    Setting("corrected"),
    Setting("corrected, add-remove", relation="add-remove"),
)


class Saturated(AuditEngine):
    """Another engine's logits of two classes as probabilities."""

    kind = "probability"

    def __init__(self, engine: AuditEngine) -> None:
        self._engine = engine
        self.name, self.classes = engine.name, engine.classes
        self.individuals, self.runs_per_call = engine.individuals, engine.runs_per_call

    def scores(self, count: int, streams: Streams) -> np.ndarray:
        return expit(self._engine.scores(count, streams))

    def settings(self) -> dict[str, Any]:
        return {**self._engine.settings(), "scores": "probabilities"}


def parts(name: str, *, crossed: bool = False) -> tuple[Dataset, Dataset, float]:
    """Training and test records, and the longest row of the former, which the paper reads."""
    # F1 is that of the class that comes last when classes are sorted.
    data = replace(load(name, variant="code"), classes=("no", "yes"))
    rows = np.arange(len(data))
    train, test = train_test_split(rows, test_size=0.25, stratify=data.y, random_state=0)
    if crossed:
        train, _ = train_test_split(rows, test_size=0.25, random_state=0)
    norm = float(np.linalg.norm(np.asarray(data.X)[train], axis=1).max())
    # The published number of records is public.
    return replace(data.take(train), size=len(train)), data.take(test), norm


def engine_of(setting: Setting, train: Dataset, X: np.ndarray, norm: float, epsilon: float):
    """Runs of one row."""
    model = ObjectivePerturbation(
        epsilon, norm=norm, rule=setting.rule, relation=setting.relation
    )
    engine = ObjectiveEngine(model, train, X)
    return Saturated(engine) if setting.saturated else engine


def audited(
    setting: Setting, name: str, epsilon: float, runs: int = RUNS, on_progress: Any = None
) -> Audit:
    """One row of one table."""
    train, test, norm = parts(name, crossed=setting.crossed)
    engine = engine_of(setting, train, np.asarray(test.X), norm, epsilon)
    asked = AuditSettings(runs, groups=tuple(test.groups), accuracy_levels=LEVELS)
    return audit_engine(engine, test, asked, random_state=SEED, on_progress=on_progress)


def row_of(audit: Audit) -> Row:
    """What the paper prints, of an audit."""
    auc, f1, told = audit.figures["auc"], audit.figures["f1"], asdict(audit.distribution)
    told = {name: told[name] for name in Row.__dataclass_fields__ if name in told}
    percent = (100 * figure[part] for figure in (auc, f1) for part in ("mean", "deviation"))
    return Row(*percent, **told)


def differences(mine: Row, printed: Row, runs: int) -> dict[str, float]:
    """How far a row is from the printed one.

    Standard errors are those of the difference of two means over independent runs, from both
    deviations: :math:`\\sqrt{s^2 / m + s'^2 / 5000}`.
    """
    found = {"disagreement": mine.mean - printed.mean}
    for name in ("auc", "f1"):
        ours, theirs = (getattr(row, f"{name}_deviation") for row in (mine, printed))
        error = math.hypot(ours / math.sqrt(runs), theirs / math.sqrt(RUNS))
        found[name] = (getattr(mine, name) - getattr(printed, name)) / error
    return found


def table(
    settings: Sequence[Setting], names: Sequence[str], epsilons: Sequence[float], runs: int
) -> list[dict[str, Any]]:
    """Every row of every table, with a bar of progress on stderr."""
    grid = [(s, n, e) for s in settings for n in names for e in epsilons]
    found = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=len(grid) * runs)
        for place, (setting, name, epsilon) in enumerate(grid):
            bar.update(task, description=f"{setting.name}: {name}, ε {epsilon:g}")
            begun = time.process_time()
            audit = audited(
                setting,
                name,
                epsilon,
                runs,
                lambda done, _, before=place * runs: bar.update(task, completed=before + done),
            )
            found.append(
                {"setting": setting.name, "set": name, "epsilon": epsilon}
                | {"seconds": time.process_time() - begun}
                | {"row": asdict(row_of(audit)), "audit": audit.to_json(individuals=False)}
            )
    return found


def told(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as a table in Markdown, each next to the printed one."""
    lines = [
        "| setting | set | ε | disagreement | interval of 95 % | deviation | median | p95 "
        "| AUC | F1 | printed: disagreement | AUC | F1 | off by | s.e. of AUC | of F1 |",
        "|---|---|" + "---:|" * 14,
    ]
    for found in rows:
        mine, runs = Row(**found["row"]), found["audit"]["runs"]
        printed = PUBLISHED[found["set"], found["epsilon"]]
        off, mean = differences(mine, printed, runs), found["audit"]["mean"]
        lines.append(
            f"| {found['setting']} | {found['set']} | {found['epsilon']:g} | {mine.mean:.3f} | "
            f"{mean['low']:.3f} to {mean['high']:.3f} | {mine.deviation:.2f} | "
            f"{mine.median:.2f} | {mine.p95:.2f} | {mine.auc:.2f} ± {mine.auc_deviation:.2f} | "
            f"{mine.f1:.2f} ± {mine.f1_deviation:.2f} | {printed.mean:.2f} | "
            f"{printed.auc:.2f} | {printed.f1:.2f} | {off['disagreement']:+.3f} | "
            f"{off['auc']:+.1f} | {off['f1']:+.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make the tables, print them, and say what that took."""
    command = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    command.add_argument("--runs", type=int, default=RUNS)
    command.add_argument("--settings", nargs="+", default=[s.name for s in SETTINGS])
    command.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    command.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    command.add_argument("--json", type=Path, help="Write everything but people one by one.")
    asked = command.parse_args()
    begun = time.monotonic()
    chosen = [setting for setting in SETTINGS if setting.name in asked.settings]
    rows = table(chosen, asked.sets, asked.epsilon, asked.runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE
    took = time.monotonic() - begun
    print(told(rows))
    print(
        f"{len(rows)} audits of {asked.runs} runs in {took:.0f} s, "
        f"{sum(row['seconds'] for row in rows):.0f} s of processors; "
        f"at most {peak:.0f} MB of memory.",
        file=sys.stderr,
    )
    if asked.json:
        about = {"runs": asked.runs, "seconds": took, "peak_megabytes": peak}
        asked.json.write_text(json.dumps({**about, "rows": rows}))


if __name__ == "__main__":
    main()

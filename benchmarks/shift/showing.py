"""Tables and goals of the benchmark, from its results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.shift.corruptions import CLEAN, MEASURED
from benchmarks.shift.grid import EPSILONS, POINTS, RECORDS, SIZES, SWEEPS
from benchmarks.shift.logits import NETWORKS
from benchmarks.shift.methods import OPEN, PRIVATE
from benchmarks.shift.published import TABLE_1, TABLE_3, TABLE_4
from benchmarks.shift.running import Result
from veracal._types import Floats

FROST = "frost_made"
ENOUGH = (EPSILONS >= 1) & (RECORDS >= 500)  # where noise should be no excuse
LARGEST = int(np.flatnonzero(RECORDS == SIZES.max())[0])


@dataclass(frozen=True, eq=False)
class Shown:
    """Results of every network and corruption."""

    results: Sequence[Result]

    def errors(self, method: str, keep: Callable[[Result], bool] = lambda _: True) -> Floats:
        """Mean errors of a method, of shape (settings, points); clean pictures left out."""
        rows = [r.means[method] for r in self.shifted if keep(r)]
        return np.array(rows)

    @property
    def shifted(self) -> list[Result]:
        """Results of corrupted pictures."""
        return [r for r in self.results if r.setting.corruption != CLEAN]

    def of(self, corruption: str) -> list[Result]:
        """Results of all networks on one corruption."""
        return [r for r in self.results if r.setting.corruption == corruption]


def goals(shown: Shown) -> dict[str, Any]:
    """What was to be reached, and what was."""
    ours, theirs = shown.errors("pooled"), shown.errors("Acc-T")
    plain = shown.errors("pooled, no doubt")
    exact, binned = shown.errors("open: Acc-T"), shown.errors("binning, paper")
    median = {name: float(np.median(shown.errors(name))) for name in PRIVATE}
    return {
        "settings": int(ours.size),
        "mean of pooled / Acc-T (at most 0.5)": ours.mean() / theirs.mean(),
        "the same without doubt": plain.mean() / theirs.mean(),
        "share of settings below Acc-T (at least 0.97)": float((ours < theirs).mean()),
        "the same without doubt, share": float((plain < theirs).mean()),
        "mean of pooled / binning as in the paper (below 1)": ours.mean() / binned.mean(),
        "mean of pooled / better binning": ours.mean() / shown.errors("binning").mean(),
        "pooled / open Acc-T, epsilon >= 1, 500 records or more (at most 1.5)": float(
            ours[:, ENOUGH].mean() / exact[:, ENOUGH].mean()
        ),
        "the same without doubt, enough": float(
            plain[:, ENOUGH].mean() / exact[:, ENOUGH].mean()
        ),
        "median Acc-T / NLL-T (at most 0.75)": median["Acc-T"] / median["NLL-T"],
        "median Acc-T / ECE-T (at most 0.75)": median["Acc-T"] / median["ECE-T"],
        "median Acc-T / NLL-T, [0.5, 3]": median["Acc-T [0.5, 3]"] / median["NLL-T [0.5, 3]"],
        "median Acc-T / ECE-T, [0.5, 3]": median["Acc-T [0.5, 3]"] / median["ECE-T [0.5, 3]"],
    }


def methods_table(shown: Shown) -> str:
    """Table 1: median and mean over all networks, corruptions and points."""
    theirs = shown.errors("Acc-T")
    rows = []
    for name in (*PRIVATE, *(f"open: {name}" for name in OPEN)):
        errors = shown.errors(name)
        frostless = shown.errors(name, lambda r: r.setting.corruption != FROST)
        printed = " / ".join(f"{x:.4f}" for x in TABLE_1.get(name, ())) or "–"
        below = "–" if name == "Acc-T" else f"{100 * (errors < theirs).mean():.1f} %"
        rows.append(
            (
                name,
                f"{np.median(errors):.4f} / {errors.mean():.4f}",
                printed,
                f"{frostless.mean():.4f}",
                below,
            )
        )
    return _table(
        ("method", "median / mean", "paper", "mean without frost", "below Acc-T"), rows
    )


def sweeps_table(shown: Shown, names: Iterable[str]) -> str:
    """Mean errors by sweep: over the number of sources, of samples, and epsilon."""
    columns = [np.array([p.sweep == sweep for p in POINTS]) for sweep in SWEEPS]
    rows = [
        (name, *(f"{shown.errors(name)[:, keep].mean():.4f}" for keep in columns))
        for name in names
    ]
    return _table(("method", *SWEEPS), rows)


def accuracies_table(shown: Shown) -> str:
    """Table 3: how many pictures each network gets right."""
    rows = []
    for corruption in (*MEASURED, CLEAN):
        by_name = {r.setting.network: r.accuracy for r in shown.of(corruption)}
        mine = (f"{by_name[name]:.4f}" for name in NETWORKS if name in by_name)
        rows.append((words(corruption), f"{TABLE_3[corruption]:.4f}", *mine))
    return _table(("pictures", "paper (WRN-28-10)", *NETWORKS), rows)


def exact_table(shown: Shown) -> str:
    """Table 4: errors without privacy, of 2,500 records, mean of all networks."""
    names = ("NLL-T", "Acc-T", "ECE-T")
    rows = []
    for corruption in (*MEASURED, CLEAN):
        mine = shown.of(corruption)

        def mean(name: str, mine: list[Result] = mine) -> float:
            return float(np.mean([r.means[name][LARGEST] for r in mine]))

        cells = [f"{TABLE_4[corruption][0]:.4f} → {mean('none'):.4f}"]
        for i, name in enumerate(names, start=1):
            narrow, wide = (mean(f"open: {name}{end}") for end in (" [0.5, 3]", ""))
            cells.append(f"{TABLE_4[corruption][i]:.4f} → {narrow:.4f}, {wide:.4f}")
        cells.append(f"{mean('open: pooled'):.4f}")
        rows.append((words(corruption), *cells))
    return _table(("pictures", "none", *names, "pooled"), rows)


def corruptions_table(shown: Shown) -> str:
    """Mean errors with privacy by corruption, over all networks and points."""
    names = ("none", "Acc-T [0.5, 3]", "Acc-T", "binning", "pooled, no doubt", "pooled")
    rows = []
    for corruption in (*MEASURED, CLEAN):
        mine = shown.of(corruption)
        cells = (f"{np.mean([r.means[name] for r in mine]):.4f}" for name in names)
        rows.append((words(corruption), *cells, f"{_open(mine):.4f}"))
    return _table(("pictures", *names, "Acc-T, not private"), rows)


def _open(results: list[Result]) -> float:
    """Mean error of Acc-T without privacy."""
    return float(np.mean([r.means["open: Acc-T"] for r in results]))


def words(corruption: str) -> str:
    """A name for display."""
    return "frost (synthetic texture)" if corruption == FROST else corruption.replace("_", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

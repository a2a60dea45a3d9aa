"""Draw the figures of docs/calibration/paper.md, from saved results.

python -m benchmarks.shift grid
python -m docs.images.shift
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.shift.corruptions import MEASURED
from benchmarks.shift.grid import POINTS, SWEEPS
from benchmarks.shift.logits import measuring
from benchmarks.shift.running import run
from benchmarks.shift.showing import Shown, words

HERE = Path(__file__).parent
STYLES = {  # method: color, line style, label
    "none": ("#888888", ":", "none"),
    "one source": ("#bb9955", "-.", "one source, not private"),
    "binning, paper": ("#c9a0dc", "--", "histogram binning"),
    "binning": ("#7a4f9a", "--", "histogram binning, better counts"),
    "ECE-T": ("#d98c5f", "-", "ECE-T"),
    "NLL-T": ("#6a9f58", "-", "NLL-T"),
    "Acc-T": ("#b5541c", "-", "Acc-T"),
    "pooled": ("#1f6f8b", "-", "pooled (ours)"),
    "open: Acc-T": ("#000000", ":", "Acc-T, not private"),
}
LABELS = {
    "sources": "Sources (10 records each, ε = 1)",
    "samples": "Records at each of 50 sources (ε = 1)",
    "epsilon": "ε (50 sources of 30 records)",
}
TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4]


def main() -> None:
    """Draw both figures."""
    shown = Shown(run(measuring()))
    means(shown, HERE / "shift-sweeps.png")
    corruptions(shown, HERE / "shift-corruptions.png")


def means(shown: Shown, path: Path) -> None:
    """Draw the error against sources, samples and epsilon, over all corruptions."""
    figure, panels = plt.subplots(1, 3, figsize=(11.5, 4.0), sharey=True, layout="constrained")
    for sweep, panel in zip(SWEEPS, panels, strict=True):
        for name in STYLES:
            curve(panel, sweep, shown.errors(name).mean(axis=0), name)
        panel.set(xlabel=LABELS[sweep])
    panels[0].set(ylabel="Calibration error (15 bins)")
    finish(figure, panels, path)


def corruptions(shown: Shown, path: Path) -> None:
    """Draw the error against the number of sources for every corruption, over all networks."""
    figure, panels = plt.subplots(
        3, 5, figsize=(11.5, 7.2), sharex=True, sharey=True, layout="constrained"
    )
    for corruption, panel in zip(MEASURED, panels.flat, strict=True):
        for name in ("none", "binning", "Acc-T", "pooled", "open: Acc-T"):
            errors = np.mean([r.means[name] for r in shown.of(corruption)], axis=0)
            curve(panel, "sources", errors, name)
        panel.set_title(words(corruption), fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("Sources", fontsize=9)
    for panel in panels[:, 0]:
        panel.set_ylabel("Error", fontsize=9)
    finish(figure, panels.flat, path)


def curve(panel: Axes, sweep: str, errors: np.ndarray, name: str) -> None:
    """Draw one line of one panel."""
    color, line, label = STYLES[name]
    mine = [
        (getattr(p, sweep), e) for p, e in zip(POINTS, errors, strict=True) if p.sweep == sweep
    ]
    width = 2.4 if name == "pooled" else 1.4
    panel.plot(*zip(*mine, strict=True), line, color=color, label=label, lw=width)


def finish(figure: plt.Figure, panels: object, path: Path) -> None:
    """Set scales and grids, add a legend, and save."""
    panels = list(panels)
    for panel in panels:
        panel.set(yscale="log", ylim=(0.008, 0.75))
        panel.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()

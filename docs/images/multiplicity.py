"""Draw the figures of docs/multiplicity/paper.md.

    python -m benchmarks.quality.multiplicity --json multiplicity.json
    python docs/images/multiplicity.py multiplicity.json

The first figure shows the tables in that file, the second audits of synthetic data.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.quality.table2 import PUBLISHED, SETS
from veracal.data import load
from veracal.multiplicity import audit
from veracal.training import ObjectivePerturbation

HERE = Path(__file__).parent
STYLES = {  # setting: color, line style, label
    "held out": ("#b5541c", "-", "diffprivlib 0.6.2 (not ε-DP)"),
    "corrected": ("#1f6f8b", "--", "corrected"),
    "corrected, add-remove": ("#6a9f58", "-.", "corrected, add-remove"),
}
SHADES = "viridis"  # readable without color
PLANES = (0.1, 0.5, 1.5)
RUNS = 5_000


def main() -> None:
    """Draw both figures."""
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    draw_curves(rows, HERE / "multiplicity-epsilon.png")
    draw_planes(HERE / "multiplicity-plane.png")


def draw_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean disagreement against epsilon, with a band from the median to the 90th percentile.

    Intervals for the randomness of the runs are also drawn, and are narrower than the lines.
    """
    figure, panels = plt.subplots(1, 4, figsize=(11.5, 3.2), sharey=True, layout="constrained")
    for name, panel in zip(SETS, panels, strict=True):
        for setting, (color, line, label) in STYLES.items():
            mine = [r for r in rows if r["setting"] == setting and r["set"] == name]
            draw_curve(panel, mine, color, line, label)
            if setting == "corrected":
                draw_individuals(panel, mine, color)
        printed = [(e, row.mean) for (of, e), row in PUBLISHED.items() if of == name]
        panel.plot(*zip(*printed, strict=True), "x", color="black", ms=5, label="Table 2")
        panel.set(title=name.capitalize(), xlabel="ε", xticks=[0.5, 1, 1.5, 2, 2.5])
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="Mean disagreement", ylim=(0, 1.02))
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    save(figure, path)


def draw_curve(
    panel: Axes, rows: list[dict[str, Any]], color: str, line: str, label: str
) -> None:
    """Draw one mechanism on one set, with intervals of the means."""
    epsilons = [row["epsilon"] for row in rows]
    means = [row["audit"]["mean"] for row in rows]
    panel.plot(epsilons, [m["value"] for m in means], line, color=color, lw=1.6, label=label)
    ends = ([mean[end] for mean in means] for end in ("low", "high"))
    panel.fill_between(epsilons, *ends, color=color, alpha=0.5, lw=0)


def draw_individuals(panel: Axes, rows: list[dict[str, Any]], color: str) -> None:
    """Draw the distribution of disagreement over individuals."""
    ends = ([row["row"][end] for row in rows] for end in ("median", "p90"))
    label = "its individuals, median to 90th percentile"
    epsilons = [row["epsilon"] for row in rows]
    panel.fill_between(epsilons, *ends, color=color, alpha=0.13, lw=0, label=label)


def draw_planes(path: Path) -> None:
    """Draw disagreement over the plane of two Gaussians, as in the paper's Figure 1."""
    train, test = (
        load("synthetic-multiplicity", variant="code", part=part) for part in ("train", "test")
    )
    X = np.asarray(train.X)
    norm = math.ceil(np.linalg.norm(X, axis=1).max())
    figure, panels = plt.subplots(
        1, len(PLANES), figsize=(9, 3.2), sharey=True, layout="constrained"
    )
    for epsilon, panel in zip(PLANES, panels, strict=True):
        model = ObjectivePerturbation(epsilon, norm=norm, relation="replace-one")
        result = audit(model, train, test, runs=RUNS, plane=("x1", "x2"), random_state=0)
        assert result.plane is not None
        plane = result.plane
        drawn = panel.contourf(
            plane.xs, plane.ys, plane.disagreement, np.linspace(0, 1.001, 11), cmap=SHADES
        )
        some = np.arange(0, len(X), 5)
        for code, mark in enumerate("x+"):
            mine = X[some][train.y[some] == code]
            panel.plot(*mine.T, mark, color="white", ms=3, alpha=0.5)
        panel.set(
            title=f"ε = {epsilon:g}: mean {result.mean.value:.2f}",
            xlabel="first feature",
            xlim=(plane.xs[0], plane.xs[-1]),
            ylim=(plane.ys[0], plane.ys[-1]),
        )
        print(epsilon, result, result.figures["accuracy"]["mean"])
    panels[0].set(ylabel="second feature")
    figure.colorbar(drawn, ax=panels, label="Disagreement", ticks=np.linspace(0, 1, 6))
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """Save a small image without a time stamp."""
    figure.savefig(path, dpi=110, metadata={"Software": None})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

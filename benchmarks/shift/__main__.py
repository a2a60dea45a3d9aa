"""Commands of the benchmark: ``python -m benchmarks.shift logits``, ``grid`` and more."""

import argparse
import json
from pathlib import Path

from benchmarks.shift import beside, choosing
from benchmarks.shift.corruptions import CLEAN
from benchmarks.shift.grid import TRIALS
from benchmarks.shift.logits import NETWORKS, SEVEREST, Setting, fill, measuring
from benchmarks.shift.logits import choosing as chosen_on
from benchmarks.shift.methods import PRIVATE
from benchmarks.shift.running import run
from benchmarks.shift.showing import (
    Shown,
    accuracies_table,
    corruptions_table,
    exact_table,
    goals,
    methods_table,
    sweeps_table,
)
from veracal._types import Floats


def parser() -> argparse.ArgumentParser:
    """What can be typed."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.shift", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    made = commands.add_parser("logits", help="compute the logits the cache lacks")
    made.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    made.add_argument("--severity", type=int, choices=range(1, 6), default=SEVEREST)
    made.add_argument("--choosing", action="store_true", help="the settings for choosing too")
    made.add_argument("--threads", type=int, default=1, help="that torch may use")
    whole = commands.add_parser("grid", help="run every method on everything, and show it")
    whole.add_argument("--trials", type=int, default=TRIALS)
    whole.add_argument("--jobs", type=int, default=2, help="processes")
    whole.add_argument("--json", type=Path, help="write the goals and all means there, too")
    chosen = commands.add_parser("choose", help="candidates on settings not in the table")
    chosen.add_argument("--trials", type=int, default=20)
    near = commands.add_parser("beside", help="the default guard, and sharper references")
    near.add_argument("--trials", type=int, default=50)
    return top


def selected_settings(networks: list[str], severity: int, with_choosing: bool) -> list[Setting]:
    """The selected settings, small networks first."""
    asked = measuring(severity) + (chosen_on() if with_choosing else [])
    order = {name: place for place, name in enumerate(NETWORKS)}
    return sorted(
        (setting for setting in asked if setting.network in networks),
        key=lambda setting: order[setting.network],
    )


def main() -> None:
    """Run what was typed."""
    typed = parser().parse_args()
    if typed.command == "logits":
        fill(
            selected_settings(typed.networks, typed.severity, typed.choosing),
            threads=typed.threads,
        )
    elif typed.command == "choose":
        choosing.show(typed.trials)
    elif typed.command == "beside":
        beside.show([s for s in measuring() if s.corruption != CLEAN], typed.trials)
    else:
        grid(typed.trials, typed.jobs, typed.json)


def grid(trials: int, jobs: int, place: Path | None) -> None:
    """Run what is missing, and print all tables."""
    shown = Shown(run(measuring(), count=trials, jobs=jobs))
    reached = goals(shown)
    for title, text in (
        ("Methods", methods_table(shown)),
        ("By sweep", sweeps_table(shown, PRIVATE)),
        ("By corruption", corruptions_table(shown)),
        ("Accuracy", accuracies_table(shown)),
        ("Without privacy", exact_table(shown)),
        ("Goals", "\n".join(f"{what}: {value:.4g}" for what, value in reached.items())),
    ):
        print(f"## {title}\n\n{text}\n")
    if place is not None:
        means = {r.setting.place.stem: _lists(r.means) for r in shown.results}
        place.write_text(json.dumps({"goals": reached, "trials": trials, "means": means}))


def _lists(means: dict[str, Floats]) -> dict[str, list[float]]:
    """Means as what JSON can hold."""
    return {name: [round(float(x), 6) for x in values] for name, values in means.items()}


if __name__ == "__main__":
    main()

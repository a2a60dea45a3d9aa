"""Measurements of commands: private figures with noise, and internal figures without."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from veracal.accounting import format_down
from veracal.calibration import (
    PrivateFigures,
    PrivateMeasurement,
    ReliabilityCurve,
    StreamTotals,
    ece,
    measure,
    measure_private,
    plan_measurement,
)
from veracal.cli import _figures, _options, _output, _payment
from veracal.cli._artifacts import FIGURES, labeled_scores
from veracal.cli._figures import Groups, estimates_to_json
from veracal.data import Estimate, Scores, by_group
from veracal.errors import DataError

PAPER_BINS = 10  # of Zhang et al. 2022, shown beside the usual 15
BY_GROUP = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
_WORK = 20_000_000  # resampled numbers before replicates become fewer
_REPLICATES, _MIN_REPLICATES = 100, 20
_STREAMED = (
    "accuracy", "nll", "brier", "top_label_brier", "ece", "mce",
    "over_confidence", "under_confidence", "confidence_gap",
)  # fmt: skip


@dataclass(frozen=True)
class InternalMeasurement:
    """Exact figures of a file."""

    kind: str  # logits or probabilities
    n: int
    n_classes: int
    bins: int
    figures: Mapping[str, Estimate]
    paper: Estimate  # the calibration error over ten bins
    curve: ReliabilityCurve
    groups: Mapping[str, Groups]  # by attribute
    floors: Mapping[str, Estimate] = field(default_factory=dict)
    gaps: Mapping[str, Estimate] = field(default_factory=dict)  # of ece, between groups

    def to_json(self) -> dict[str, Any]:
        """The figures as values that JSON can hold, with a note that they are internal."""
        return {
            "note": _figures.INTERNAL,
            "n": self.n,
            "n_classes": self.n_classes,
            "bins": self.bins,
            "figures": estimates_to_json(self.figures),
            **estimates_to_json({f"ece_{PAPER_BINS}_bins": self.paper}),
            "floors": estimates_to_json(self.floors),
            "curve": self.curve.to_json(),
            "groups": {
                name: {
                    value: {"n": n, **estimates_to_json(group)}
                    for value, (n, group) in each.items()
                }
                for name, each in self.groups.items()
            },
            "gaps": estimates_to_json(self.gaps),
        }

    def show(self, file: str) -> None:
        """Print tables, and the curve below them."""
        figures: dict[str, Estimate] = {}
        for name, estimate in self.figures.items():
            figures[name] = estimate
            if name == "ece" and self.bins != PAPER_BINS:
                figures[f"ece, {PAPER_BINS} bins"] = self.paper
        records = f"{self.kind} of {self.n:,} records for {self.n_classes:,} classes"
        _figures.print_figures(f"{file}: {records}, {self.bins} bins", figures, self.floors)
        _figures.print_groups(self.groups, self.gaps)
        _figures.print_curve(self.curve)


def measure_file(
    path: Path,
    about: Mapping[str, Any],
    bins: int,
    level: float,
    replicates: int | None,
    *,
    stream: bool,
    json: bool,
) -> Mapping[str, Estimate]:
    """Measure without noise, and print."""
    if stream:
        result = _measure_stream(path, about, bins, level)
    else:
        scores = _load_scores(path, about)
        replicates = replicates_for(scores) if replicates is None else replicates
        with _output.progress_bar(f"Measuring {path.name}"):
            result = _measure_scores(scores, bins, level, replicates)
    if json:
        data = {"data": about["data"]} if "model" in about else {}
        _output.print_json(
            {"file": str(path), **data, "kind": result.kind, "internal": result.to_json()}
        )
    else:
        result.show(path.name)
    return result.figures


def _load_scores(path: Path, about: Mapping[str, Any]) -> Scores:
    """Labeled scores of a file, or of a model on a table."""
    if "model" not in about:
        return _options.load_predictions(path, about)
    _output.print_status(
        "If the model was trained on records of this table, the figures are optimistic, and a "
        "release costs those individuals in addition to the model's own ledger."
    )
    return labeled_scores(about["model"], about["data"])


def replicates_for(scores: Scores) -> int:
    """Default number of bootstrap replicates, smaller for many records."""
    replicates = min(_REPLICATES, _WORK // max(1, scores.values.size))
    if replicates >= _MIN_REPLICATES:
        return replicates
    _output.print_status(
        "Without intervals, which would take long; --replicates 20 computes them."
    )
    return 0


def _measure_scores(
    scores: Scores, bins: int, level: float, replicates: int
) -> InternalMeasurement:
    """Measure all figures of scores; an empty group has none."""
    # A fixed seed: nothing is released, so the randomness need not be secret.
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"level": level, "replicates": replicates, "rng": rng}
    result = measure(scores, bins=bins, **given)
    gaps = {}
    if replicates:
        of_bins = partial(ece, bins=bins)
        gaps = {name: by_group(of_bins, scores, name, **given).gap() for name in scores.groups}
    paper = measure(scores, figures=["ece"], bins=PAPER_BINS, **given)["ece"]
    groups: dict[str, dict[str, tuple[int, Mapping[str, Estimate]]]] = {}
    for name, attribute in scores.groups.items():
        groups[name] = {}
        for code, value in enumerate(attribute.names):
            rows = scores.take(attribute.codes == code)
            figures: Mapping[str, Estimate] = {}
            if len(rows):
                figures = measure(rows, figures=BY_GROUP, bins=bins, **given).figures
            groups[name][value] = len(rows), figures
    return InternalMeasurement(
        scores.kind,
        len(scores),
        scores.n_classes,
        bins,
        result.figures,
        paper,
        result.curve,
        groups,
        result.floors,
        gaps,
    )


def _measure_stream(
    path: Path, about: Mapping[str, Any], bins: int, level: float
) -> InternalMeasurement:
    """Measure the figures that one pass can compute, keeping no records."""
    totals: dict[tuple[str, ...], StreamTotals] = {}  # of all, with other bins, of each group
    for block in _options.scan_predictions(path, about):
        slices: dict[tuple[str, ...], tuple[Scores, int]] = {
            (): (block, bins),
            ("paper",): (block, PAPER_BINS),
        }
        for name, attribute in block.groups.items():
            for code, value in enumerate(attribute.names):
                slices[name, value] = block.take(attribute.codes == code), bins
        for key, (rows, count) in slices.items():
            part = StreamTotals.of(rows, count)
            totals[key] = totals[key] + part if key in totals else part
    if not totals or not totals[()].n:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")

    def figures(total: StreamTotals) -> dict[str, Estimate]:
        names = _STREAMED if total.n else ()  # without intervals; none without records
        return {n: Estimate(getattr(total, n), None, None, level, total.n) for n in names}

    groups: dict[str, dict[str, tuple[int, Mapping[str, Estimate]]]] = {}
    for key, total in totals.items():
        if len(key) == 2:
            groups.setdefault(key[0], {})[key[1]] = total.n, figures(total)
    whole = totals[()]
    return InternalMeasurement(
        whole.kind,
        whole.n,
        len(whole.classes),
        bins,
        figures(whole),
        figures(totals[("paper",)])["ece"],
        whole.curve(level=level),
        groups,
    )


def release_figures(
    path: Path,
    about: Mapping[str, Any],
    *,
    epsilon: float,
    bins: int,
    level: float,
    curve: bool,
    ledger: Path | None,
    part: str | None,
    version: str,
    json: bool,
) -> Mapping[str, Estimate]:
    """Charge a private measurement, measure with noise, and print."""
    group, group_names = next(iter(about["groups"].items()), (None, ()))
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "figures": (*FIGURES, "curve") if curve else FIGURES,
        "bins": bins,
        "group": group,
        "group_names": group_names,
    }
    with _output.usage_errors("--epsilon"):
        plan = plan_measurement(**settings)
    records = str(about["data"] if "model" in about else path)  # their ledger pays
    ledger_path = _payment.ledger_place(records, ledger)
    scores = _load_scores(path, about)
    curator = _payment.open_curator(
        ledger_path,
        scores,
        plan.items(),
        epsilon=epsilon,
        partition=part,
        version=version,
        records=records,
        table="model" in about,
    )
    _payment.require_unpaid(curator, scores, plan)
    measured = measure_private(curator, **settings, level=level)
    account = _payment.summarize_account(curator.ledger, part)
    if json:
        statement = None if measured.statement is None else measured.statement.to_json()
        _output.print_json(
            {
                "file": str(path),
                "kind": scores.kind,
                "bins": bins,
                **measured.to_json(),
                "statement": statement,
                "ledger": account,
            }
        )
    else:
        _print_released(f"{path.name}: released with noise, {bins} bins", measured)
        _payment.print_statement(measured.statement, whole=False)
        left = format_down(account["left"]["epsilon"], 6)
        _output.print_line(f"epsilon {left} is left in {_payment.ledger_name(curator.ledger)}.")
    return figures_of(measured.overall)


def _print_released(title: str, measured: PrivateMeasurement) -> None:
    """Print the released figures, overall and by group, and the curve if there is one."""
    overall = measured.overall
    note = "Intervals account for the noise and for sampling."
    if overall.ece_floor is not None:
        note += f"\nA calibrated classifier shows an ece of {overall.ece_floor:.4f} at most."
    _figures.print_figures(title, figures_of(overall), note=note)
    if measured.plan.groups is not None:
        groups = {
            name: (each.count.n, figures_of(each)) for name, each in measured.groups.items()
        }
        _figures.print_groups({measured.plan.groups.name: groups}, note="")
    if overall.curve is not None:
        _figures.print_curve(overall.curve)


def figures_of(figures: PrivateFigures) -> dict[str, Estimate]:
    """The figures that were measured, by name."""
    estimates = {name: getattr(figures, name) for name in ("count", *FIGURES)}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}

"""What there is to draw of a reliability curve, whoever made it.

Charts of the report, in the grammar of Vega-Lite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from veracal.calibration import ReliabilityBin, ReliabilityCurve
from veracal.data import Estimate
from veracal.report.results import Bin, Results, figure, group_names, is_wide, possible
from veracal.report.text import visible

if TYPE_CHECKING:
    from veracal.calibration import PrivateCurve


Curve = Union[ReliabilityCurve, "PrivateCurve"]


@dataclass(frozen=True)
class CurveData:
    """Bins of a curve, in one form for exact and for noisy numbers.

    Attributes
    ----------
    bins : tuple of ReliabilityBin
        In a noisy curve with a noisy number of records, 0 where the noise made it negative.
    of : 'top label' or 'second class'
    n : int
    ece : float or None
        None for a noisy curve, whose calibration error is measured better by itself.
    released : bool
        Whether the curve was made of noisy answers, and not of the records.
    """

    bins: tuple[ReliabilityBin, ...]
    of: Literal["top label", "second class"]
    n: int
    ece: float | None
    released: bool

    @property
    def counts(self) -> tuple[int, ...]:
        """Records in each bin."""
        return tuple(each.n for each in self.bins)


def drawable(curve: Curve) -> CurveData:
    """What there is to draw of a curve."""
    if isinstance(curve, ReliabilityCurve):
        return CurveData(curve.bins, curve.of, curve.n, curve.ece, released=False)
    edges = curve.bins.edges.tolist()
    bins = tuple(
        ReliabilityBin(
            edges[b],
            edges[b + 1],
            count.n,
            curve.confidences[b],
            accuracy.value,
            accuracy.low,
            accuracy.high,
        )
        for b, (count, accuracy) in enumerate(zip(curve.counts, curve.accuracies, strict=True))
    )
    return CurveData(bins, "top label", sum(each.n for each in bins), None, released=True)


Spec = dict[str, Any]

# Okabe and Ito's colors; shapes tell the sides apart, too.
_BEFORE, AFTER = "#D55E00", "#0072B2"
SIDES = ("before", "after")
_SHOWN = {"filter": "show == 'both' || datum.when == show"}
_APART = {"expr": "datum.when == 'before' ? -3 : 3"}  # pixels, so that none hides the other
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.55}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_SIDE_COLOR = {
    "field": "when",
    "type": "nominal",
    "title": None,
    "scale": {"domain": list(SIDES), "range": [_BEFORE, AFTER]},
    "legend": {"orient": "top", "symbolOpacity": 1},
}
_SIDE_SHAPE = {
    "field": "when",
    "type": "nominal",
    "title": None,
    "scale": {"domain": list(SIDES), "range": ["circle", "square"]},
    "legend": {"orient": "top", "symbolOpacity": 1},
}
# The padding, in pixels, leaves room for points at the ends, in all charts alike.
_CONFIDENCE = {
    "type": "quantitative",
    "scale": {"domain": [0, 1], "padding": 10, "nice": False},
    "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"},
}
_CONFIG = {
    "font": "system-ui, sans-serif",
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "axisY": {"minExtent": 36},  # so that charts below each other have one left edge
    "legend": {"labelFontSize": 12, "symbolSize": 90},
    "view": {"stroke": "#999999"},
}


def charts(results: Results) -> dict[str, Spec]:
    """Specifications of all charts for which there is something to draw, by name."""
    made = {
        "reliability": reliability(results),
        "histogram": histogram(results),
        "groups": by_group(results),
        "series": series(results),
    }
    return {name: spec for name, spec in made.items() if spec is not None}


def reliability(results: Results) -> Spec | None:
    """Share of right predictions against confidence, with intervals."""
    said = "Reliability diagram: share of right predictions against confidence, with intervals."
    return diagram({when: possible(results, when) for when in SIDES}, said)


def diagram(sides: Mapping[str, Sequence[Bin]], said: str) -> Spec | None:
    """Points and intervals of curves, and the line of perfect calibration."""
    rows = [
        {
            "when": when,
            "confidence": each.confidence,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            "wide": each.accuracy.low is not None and is_wide(each.accuracy),
            **ends(each.accuracy),
        }
        for when, bins in sides.items()
        for each in bins
        if each.confidence is not None and each.accuracy.value is not None
    ]
    across = {"field": "confidence", "title": "confidence", **_CONFIDENCE}
    up = {"type": "quantitative", "title": "share that is right", "scale": {"domain": [0, 1]}}
    tooltip = [
        tip("when", "side"),
        tip("bin", "confidence in"),
        tip("value", "right", ".3f"),
        tip("low", "from", ".3f"),
        tip("high", "to", ".3f"),
    ]
    encoding = {"color": _SIDE_COLOR, "x": across, "tooltip": tooltip}
    layers: list[Spec] = [
        {
            "data": {"values": [{"at": 0}, {"at": 1}]},
            "mark": {"type": "line", "strokeDash": [4, 4], "color": "#777777"},
            "encoding": {
                "x": {"field": "at", "type": "quantitative"},
                "y": {"field": "at", "type": "quantitative"},
            },
        },
        {
            "transform": [_SHOWN],
            "mark": {**_RULE, "xOffset": _APART},
            "encoding": {
                **encoding,
                "y": {"field": "low", **up},
                "y2": {"field": "high"},
                "opacity": _pale(0.3, 0.8),
            },
        },
        {
            "transform": [_SHOWN],
            "mark": {**_POINT, "xOffset": _APART},
            "encoding": {
                **encoding,
                "y": {"field": "value", **up},
                "shape": _SIDE_SHAPE,
                "opacity": _pale(0.4, 1.0),
            },
        },
    ]
    return whole(rows, {"layer": layers, "height": 300}, said)


def histogram(results: Results) -> Spec | None:
    """Noisy number of records in each bin of confidence."""
    said = "Histogram of confidence: records in each bin, with noise."
    return bars({when: possible(results, when) for when in SIDES}, "records, about", said)


def bars(sides: Mapping[str, Sequence[Bin]], title: str, said: str) -> Spec | None:
    """Records in each bin of curves."""
    rows = [
        {
            "when": when,
            "from": each.low,
            "to": each.high,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            **ends(each.count),
        }
        for when, bins in sides.items()
        for each in bins
        if each.count.value is not None
    ]
    up = {"field": "value", "type": "quantitative", "stack": None, "title": title}
    across = {"field": "from", "title": "confidence", "bin": {"binned": True}, **_CONFIDENCE}
    spec = {
        "transform": [_SHOWN],
        "mark": {"type": "bar", "opacity": 0.6, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": across,
            "x2": {"field": "to"},
            "y": {**up, "axis": {"tickCount": 4}},
            "color": {**_SIDE_COLOR, "legend": None},
            "tooltip": [
                tip("when", "side"),
                tip("bin", "confidence in"),
                tip("value", title, ",.0f"),
                tip("low", "from", ",.0f"),
                tip("high", "to", ",.0f"),
            ],
        },
        "height": 110,
    }
    return whole(rows, spec, said)


def by_group(results: Results) -> Spec | None:
    """Share of right predictions in each group, with intervals."""
    rows = []
    for when in SIDES:
        for name in group_names(results):
            found = figure(results.when(when), "accuracy", name)
            if found is not None and found.value is not None:
                rows.append({"when": when, "group": visible(str(name)), **ends(found)})
    groups = {
        "field": "group",
        "type": "nominal",
        "title": None,
        "axis": {"labelLimit": 140},
        # A group of which nothing can be told keeps its line, and is not forgotten.
        "scale": {"domain": list(dict.fromkeys(map(visible, group_names(results))))},
    }
    across = {"type": "quantitative", "title": "share that is right"}
    tooltip = [tip("group", "group"), tip("when", "side"), *interval_tips()]
    common = {
        "y": groups,
        "yOffset": {"field": "when", "sort": list(SIDES)},
        "color": _SIDE_COLOR,
        "tooltip": tooltip,
    }
    layers = [
        {
            "transform": [_SHOWN],
            "mark": _RULE,
            "encoding": {**common, "x": {"field": "low", **across}, "x2": {"field": "high"}},
        },
        {
            "transform": [_SHOWN],
            "mark": _POINT,
            "encoding": {
                **common,
                "x": {"field": "value", **across},
                "shape": _SIDE_SHAPE,
            },
        },
    ]
    spec = {"layer": layers, "height": 40 * max(len(group_names(results)), 2)}
    return whole(rows, spec, "Share of right predictions in each group, with intervals.")


def series(results: Results) -> Spec | None:
    """Calibration error of every measurement after the map, in their order."""
    after = [one for one in results.measured if one.when != "before"]
    if len(after) < 2:
        return None
    rows = []
    for place, one in enumerate(after):
        found = figure(one, "ece")
        if found is not None and found.value is not None:
            called = f"{place + 1}. {visible(one.when)}"
            label = {"place": place, "called": called, "made": visible(one.made)}
            rows.append({**label, "label": f"{called}\n{label['made']}", **ends(found)})
    across = {
        "field": "label",
        "type": "ordinal",
        "sort": {"field": "place"},
        "title": None,
        "axis": {"labelAngle": 0, "labelLimit": 110, "labelExpr": "split(datum.label, '\\n')"},
    }
    up = {
        "type": "quantitative",
        "title": "calibration error (ece)",
        "scale": {"zero": True},
        "axis": {"tickCount": 5},
    }
    tooltip = [tip("called", "measurement"), tip("made", "on"), *interval_tips()]
    encoding: Spec = {"x": across, "tooltip": tooltip}
    layers = [
        {
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**encoding, "y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {
            "mark": {**_POINT, "color": AFTER},
            "encoding": {**encoding, "y": {"field": "value", **up}},
        },
    ]
    spec = {"layer": layers, "height": 180}
    return whole(rows, spec, "Calibration error of each measurement, with intervals.")


def whole(rows: list[dict[str, Any]], spec: Spec, said: str) -> Spec | None:
    """A chart as wide as its place, or None if there is nothing to draw."""
    if not rows:
        return None
    return {
        "description": f"{said} The same numbers are in the table below.",
        "data": {"values": rows},
        "params": [{"name": "show", "value": "both"}],
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "white",
        "config": _CONFIG,
        **spec,
    }


def ends(found: Estimate) -> dict[str, float | None]:
    """Numbers of an estimate; without an interval, the value alone."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return {"value": found.value, "low": low, "high": high}


def _pale(wide: float, narrow: float) -> Spec:
    """Opacity: what tells little is seen less."""
    return {"condition": {"test": "datum.wide", "value": wide}, "value": narrow}


def interval_tips() -> list[Spec]:
    """Value and ends, for a tooltip."""
    return [
        tip("value", "value", ".3f"),
        tip("low", "from", ".3f"),
        tip("high", "to", ".3f"),
    ]


def tip(name: str, title: str, form: str | None = None) -> Spec:
    """One line of a tooltip."""
    kind = "nominal" if form is None else "quantitative"
    line = {"field": name, "type": kind, "title": title}
    return line if form is None else {**line, "format": form}

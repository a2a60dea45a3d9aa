"""Charts of the report, in the grammar of Vega-Lite."""

from collections.abc import Mapping, Sequence
from typing import Any

from veracal.data import Estimate
from veracal.report.results import Results
from veracal.report.told import curve, figure, group_names, number
from veracal.report.writing import visible

Spec = dict[str, Any]

# Okabe and Ito's colors; shapes tell the sides apart, too.
_BEFORE, _AFTER = "#D55E00", "#0072B2"
_SIDES = ("before", "after")
_SHOWN = {"filter": "show == 'both' || datum.when == show"}
_APART = {"expr": "datum.when == 'before' ? -3 : 3"}  # pixels, so that none hides the other
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.55}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_SIDE_COLOR = {
    "field": "when",
    "type": "nominal",
    "title": None,
    "scale": {"domain": list(_SIDES), "range": [_BEFORE, _AFTER]},
    "legend": {"orient": "top"},
}
_SIDE_SHAPE = {
    "field": "when",
    "type": "nominal",
    "title": None,
    "scale": {"domain": list(_SIDES), "range": ["circle", "square"]},
    "legend": {"orient": "top"},
}
_CONFIG = {
    "font": "system-ui, sans-serif",
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "axisY": {"minExtent": 36},  # so that charts below each other have one left edge
    "legend": {"labelFontSize": 12, "symbolSize": 90},
    "view": {"stroke": "#999999"},
}


def charts(results: Results, internal: Mapping[str, Any] | None = None) -> dict[str, Spec]:
    """Specifications of all charts for which there is something to draw, by name."""
    made = {
        "reliability": reliability(results),
        "histogram": histogram(results),
        "groups": by_group(results),
        "series": series(results),
        "training": training(internal or {}),
    }
    return {name: spec for name, spec in made.items() if spec is not None}


def reliability(results: Results) -> Spec | None:
    """Share of right predictions against confidence, with intervals."""
    rows = [
        {
            "when": when,
            "confidence": each.confidence,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            **_ends(each.accuracy),
        }
        for when in _SIDES
        for each in curve(results.when(when))
        if each.confidence is not None and each.accuracy.value is not None
    ]
    across = {
        "field": "confidence",
        "type": "quantitative",
        "title": "confidence",
        "scale": {"domain": [0, 1]},
        "axis": {"tickCount": 5},
    }
    up = {"type": "quantitative", "title": "share that is right", "scale": {"domain": [0, 1]}}
    tooltip = [
        _tip("when", "side"),
        _tip("bin", "confidence in"),
        _tip("value", "right", ".3f"),
        _tip("low", "from", ".3f"),
        _tip("high", "to", ".3f"),
    ]
    sides = {"color": _SIDE_COLOR, "x": across, "tooltip": tooltip}
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
            "encoding": {**sides, "y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {
            "transform": [_SHOWN],
            "mark": {
                "type": "point",
                "filled": True,
                "size": 90,
                "opacity": 1,
                "xOffset": _APART,
            },
            "encoding": {**sides, "y": {"field": "value", **up}, "shape": _SIDE_SHAPE},
        },
    ]
    said = "Reliability diagram: share of right predictions against confidence, with intervals."
    return _whole(rows, {"layer": layers, "height": 300}, said)


def histogram(results: Results) -> Spec | None:
    """Noisy number of records in each bin of confidence."""
    rows = [
        {
            "when": when,
            "from": each.low,
            "to": each.high,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            "middle": (each.low + each.high) / 2,
            **_ends(each.count),
        }
        for when in _SIDES
        for each in curve(results.when(when))
        if each.count.value is not None
    ]
    bars = {
        "transform": [_SHOWN],
        "mark": {"type": "bar", "opacity": 0.6, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": {
                "field": "from",
                "type": "quantitative",
                "bin": {"binned": True},
                "title": "confidence",
                "scale": {"domain": [0, 1]},
                "axis": {"tickCount": 5},
            },
            "x2": {"field": "to"},
            "y": {
                "field": "value",
                "type": "quantitative",
                "stack": None,
                "title": "records, about",
                "axis": {"tickCount": 4},
            },
            "color": {**_SIDE_COLOR, "legend": None},
            "tooltip": [
                _tip("when", "side"),
                _tip("bin", "confidence in"),
                _tip("value", "records, about", ",.0f"),
                _tip("low", "from", ",.0f"),
                _tip("high", "to", ",.0f"),
            ],
        },
        "height": 110,
    }
    return _whole(rows, bars, "Histogram of confidence: records in each bin, with noise.")


def by_group(results: Results) -> Spec | None:
    """Share of right predictions in each group, with intervals."""
    rows = []
    for when in _SIDES:
        for name in group_names(results):
            found = figure(results.when(when), "accuracy", name)
            if found is not None and found.value is not None:
                rows.append({"when": when, "group": visible(str(name)), **_ends(found)})
    groups = {"field": "group", "type": "nominal", "title": None, "axis": {"labelLimit": 140}}
    across = {"type": "quantitative", "title": "share that is right"}
    tooltip = [_tip("group", "group"), _tip("when", "side"), *_interval_tips()]
    common = {
        "y": groups,
        "yOffset": {"field": "when", "sort": list(_SIDES)},
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
    return _whole(rows, spec, "Share of right predictions in each group, with intervals.")


def series(results: Results) -> Spec | None:
    """Calibration error of every measurement after the map, in their order."""
    after = [one for one in results.measured if one.when != "before"]
    rows = []
    for place, one in enumerate(after):
        found = figure(one, "ece")
        if found is not None and found.value is not None:
            called = f"{place + 1}. {visible(one.when)}"
            rows.append({"called": called, "made": visible(one.made), **_ends(found)})
    if len(after) < 2:
        return None
    across = {
        "field": "called",
        "type": "ordinal",
        "sort": None,
        "title": None,
        "axis": {"labelAngle": 0, "labelLimit": 120},
    }
    up = {"type": "quantitative", "title": "calibration error (ece)"}
    tooltip = [_tip("called", "measurement"), _tip("made", "on"), *_interval_tips()]
    layers = [
        {
            "mark": {**_RULE, "color": _AFTER},
            "encoding": {
                "x": across,
                "y": {"field": "low", **up},
                "y2": {"field": "high"},
                "tooltip": tooltip,
            },
        },
        {
            "mark": {**_POINT, "color": _AFTER},
            "encoding": {"x": across, "y": {"field": "value", **up}, "tooltip": tooltip},
        },
    ]
    spec = {"layer": layers, "height": 180}
    return _whole(rows, spec, "Calibration error of each measurement, with intervals.")


def training(internal: Mapping[str, Any]) -> Spec | None:
    """Loss by step: of the records as they are, so for the internal page alone."""
    losses = internal.get("training")
    found = losses if isinstance(losses, Sequence) and not isinstance(losses, str) else ()
    told = [(step, number(loss)) for step, loss in enumerate(found, start=1)]
    rows = [{"step": step, "loss": loss} for step, loss in told if loss is not None]
    line = {
        "mark": {"type": "line", "color": _AFTER, "point": len(rows) < 60},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "step"},
            "y": {"field": "loss", "type": "quantitative", "title": "loss"},
            "tooltip": [_tip("step", "step"), _tip("loss", "loss", ".4f")],
        },
        "height": 180,
    }
    return _whole(rows, line, "Training curve: loss by step. Internal.")


def _whole(rows: list[dict[str, Any]], spec: Spec, said: str) -> Spec | None:
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


def _ends(found: Estimate) -> dict[str, float | None]:
    """Numbers of an estimate; without an interval, the value alone."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return {"value": found.value, "low": low, "high": high}


def _interval_tips() -> list[Spec]:
    """Value and ends, for a tooltip."""
    return [
        _tip("value", "value", ".3f"),
        _tip("low", "from", ".3f"),
        _tip("high", "to", ".3f"),
    ]


def _tip(name: str, title: str, form: str | None = None) -> Spec:
    """One line of a tooltip."""
    kind = "nominal" if form is None else "quantitative"
    line = {"field": name, "type": kind, "title": title}
    return line if form is None else {**line, "format": form}

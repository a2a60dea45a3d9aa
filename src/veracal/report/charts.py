"""Charts of the report as Vega-Lite specifications, and the data of reliability curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from veracal.data import Estimate
from veracal.report.results import STAGES, Bin, Results, is_wide
from veracal.report.text import visible

Spec = dict[str, Any]

# Okabe and Ito's colors; shapes distinguish the stages as well.
_BEFORE, AFTER = "#D55E00", "#0072B2"
_SELECTED = {"filter": "show == 'both' || datum.when == show"}
_OFFSET = {"expr": "datum.when == 'before' ? -3 : 3"}  # pixels, so that neither hides the other
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.55}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_STAGE_COLOR = {
    "field": "when",
    "type": "nominal",
    "title": None,
    "scale": {"domain": list(STAGES), "range": [_BEFORE, AFTER]},
    "legend": {"orient": "top", "symbolOpacity": 1},
}
_STAGE_SHAPE = {
    **_STAGE_COLOR,
    "scale": {"domain": list(STAGES), "range": ["circle", "square"]},
}
# The padding, in pixels, leaves space for points at the ends, in all charts alike.
_CONFIDENCE = {
    "type": "quantitative",
    "scale": {"domain": [0, 1], "padding": 10, "nice": False},
    "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"},
}
_CONFIG = {
    "font": "system-ui, sans-serif",
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "axisY": {"minExtent": 36},  # aligns charts below each other
    "legend": {"labelFontSize": 12, "symbolSize": 90},
    "view": {"stroke": "#999999"},
}


def charts(results: Results) -> dict[str, Spec]:
    """Specifications of all charts that have data, by name."""
    curves = {when: results.curve(when) for when in STAGES}
    specs = {
        "reliability": diagram(
            curves, "Reliability diagram: accuracy against confidence, with intervals."
        ),
        "histogram": bars(
            curves,
            "records (noisy)",
            "Histogram of confidence: records in each bin, with noise.",
        ),
        "groups": by_group(results),
        "series": series(results),
    }
    return {name: spec for name, spec in specs.items() if spec is not None}


def diagram(stages: Mapping[str, Sequence[Bin]], description: str) -> Spec | None:
    """Points and intervals of curves, and the line of perfect calibration."""
    rows = [
        {
            "when": when,
            "confidence": each.confidence,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            "wide": each.accuracy.low is not None and is_wide(each.accuracy),
            **ends(each.accuracy),
        }
        for when, bins in stages.items()
        for each in bins
        if each.confidence is not None and each.accuracy.value is not None
    ]
    across = {"field": "confidence", "title": "confidence", **_CONFIDENCE}
    up = {"type": "quantitative", "title": "accuracy", "scale": {"domain": [0, 1]}}
    tooltip = [
        tip("when", "stage"),
        tip("bin", "confidence in"),
        tip("value", "accuracy", ".3f"),
        tip("low", "from", ".3f"),
        tip("high", "to", ".3f"),
    ]
    encoding = {"color": _STAGE_COLOR, "x": across, "tooltip": tooltip}
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
            "transform": [_SELECTED],
            "mark": {**_RULE, "xOffset": _OFFSET},
            "encoding": {
                **encoding,
                "y": {"field": "low", **up},
                "y2": {"field": "high"},
                "opacity": _fade(0.3, 0.8),
            },
        },
        {
            "transform": [_SELECTED],
            "mark": {**_POINT, "xOffset": _OFFSET},
            "encoding": {
                **encoding,
                "y": {"field": "value", **up},
                "shape": _STAGE_SHAPE,
                "opacity": _fade(0.4, 1.0),
            },
        },
    ]
    return whole(rows, {"layer": layers, "height": 300}, description)


def bars(stages: Mapping[str, Sequence[Bin]], title: str, description: str) -> Spec | None:
    """Records in each bin of curves."""
    rows = [
        {
            "when": when,
            "from": each.low,
            "to": each.high,
            "bin": f"{each.low:.2f} to {each.high:.2f}",
            **ends(each.count),
        }
        for when, bins in stages.items()
        for each in bins
        if each.count.value is not None
    ]
    up = {"field": "value", "type": "quantitative", "stack": None, "title": title}
    across = {"field": "from", "title": "confidence", "bin": {"binned": True}, **_CONFIDENCE}
    spec = {
        "transform": [_SELECTED],
        "mark": {"type": "bar", "opacity": 0.6, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": across,
            "x2": {"field": "to"},
            "y": {**up, "axis": {"tickCount": 4}},
            "color": {**_STAGE_COLOR, "legend": None},
            "tooltip": [
                tip("when", "stage"),
                tip("bin", "confidence in"),
                tip("value", title, ",.0f"),
                tip("low", "from", ",.0f"),
                tip("high", "to", ",.0f"),
            ],
        },
        "height": 110,
    }
    return whole(rows, spec, description)


def by_group(results: Results) -> Spec | None:
    """Accuracy in each group, with intervals."""
    names = results.group_names
    rows: list[dict[str, Any]] = []
    for when in STAGES:
        record = results.when(when)
        measured = {} if record is None else record.groups
        for name in names:
            figure = measured[name].accuracy if name in measured else None
            if figure is not None and figure.value is not None:
                rows.append({"when": when, "group": visible(name), **ends(figure)})
    groups = {
        "field": "group",
        "type": "nominal",
        "title": None,
        "axis": {"labelLimit": 140},
        # A group without an estimate keeps its line.
        "scale": {"domain": list(dict.fromkeys(map(visible, names)))},
    }
    across = {"type": "quantitative", "title": "accuracy"}
    tooltip = [tip("group", "group"), tip("when", "stage"), *interval_tips()]
    common = {
        "y": groups,
        "yOffset": {"field": "when", "sort": list(STAGES)},
        "color": _STAGE_COLOR,
        "tooltip": tooltip,
    }
    layers = [
        {
            "transform": [_SELECTED],
            "mark": _RULE,
            "encoding": {**common, "x": {"field": "low", **across}, "x2": {"field": "high"}},
        },
        {
            "transform": [_SELECTED],
            "mark": _POINT,
            "encoding": {
                **common,
                "x": {"field": "value", **across},
                "shape": _STAGE_SHAPE,
            },
        },
    ]
    spec = {"layer": layers, "height": 40 * max(len(names), 2)}
    return whole(rows, spec, "Accuracy in each group, with intervals.")


def series(results: Results) -> Spec | None:
    """Calibration error of every measurement after recalibration, in their order."""
    after = [record for record in results.measured if record.when != "before"]
    if len(after) < 2:
        return None
    rows = []
    for index, record in enumerate(after):
        figure = record.overall.ece
        if figure is not None and figure.value is not None:
            name, date = f"{index + 1}. {visible(record.when)}", visible(record.date)
            label = {"index": index, "name": name, "date": date, "label": f"{name}\n{date}"}
            rows.append({**label, **ends(figure)})
    across = {
        "field": "label",
        "type": "ordinal",
        "sort": {"field": "index"},
        "title": None,
        "axis": {"labelAngle": 0, "labelLimit": 110, "labelExpr": "split(datum.label, '\\n')"},
    }
    up = {
        "type": "quantitative",
        "title": "calibration error (ECE)",
        "scale": {"zero": True},
        "axis": {"tickCount": 5},
    }
    tooltip = [tip("name", "measurement"), tip("date", "date"), *interval_tips()]
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


def whole(rows: list[dict[str, Any]], spec: Spec, description: str) -> Spec | None:
    """Complete a chart that fills its container; None without data."""
    if not rows:
        return None
    return {
        "description": f"{description} The same numbers are in the table below.",
        "data": {"values": rows},
        "params": [{"name": "show", "value": "both"}],
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "white",
        "config": _CONFIG,
        **spec,
    }


def mark_internal(specs: Mapping[str, Spec | None]) -> dict[str, Spec]:
    """Charts that have data, with descriptions that say that they are internal."""
    return {
        name: {**spec, "description": f"Internal. {spec['description']}"}
        for name, spec in specs.items()
        if spec is not None
    }


def ends(figure: Estimate) -> dict[str, float | None]:
    """Value and interval of an estimate; without an interval, its ends are the value."""
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    return {"value": figure.value, "low": low, "high": high}


def _fade(wide: float, narrow: float) -> Spec:
    """Opacity that fades points with wide intervals."""
    return {"condition": {"test": "datum.wide", "value": wide}, "value": narrow}


def interval_tips() -> list[Spec]:
    """Tooltip lines for a value and its interval."""
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

"""Charts of an audit, in the grammar of Vega-Lite."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.multiplicity import Audit
from veracal.multiplicity.results import Plane
from veracal.report.audited import Audited
from veracal.report.charts import AFTER, Spec, ends, interval_tips, tip, whole
from veracal.report.writing import visible

_OTHER = "#D55E00"
_DISAGREE = "disagreement"
_UNIT = {
    "scale": {"domain": [0, 1], "nice": False, "padding": 4},
    "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"},
}
_BINS = 20  # of disagreement, from 0 to 1
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.6}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_GROUPS = 40  # that a chart can still show
_CHOSEN = {"filter": "datum.at == show"}
_SERIES = {
    "largest, measured": (AFTER, "circle", [1, 0]),
    "mean, measured": (AFTER, "square", [2, 2]),
    "bound of exact intervals": (_OTHER, "triangle-up", [6, 3]),
    "bound of the paper": ("#777777", "diamond", [6, 3]),
}


def audit_charts(found: Audited) -> dict[str, Spec]:
    """Specifications of all charts for which there is something to draw, by name."""
    made = {
        "spread": spread(found),
        "epsilons": by_epsilon(found),
        **{group_chart(i): by_group(found, n) for i, n in enumerate(found.audits[0].groups)},
        "plane": plane(found),
        "abstention": abstention(found, "disagreement", "mean disagreement"),
        "kept": abstention(found, "accuracy", "share that is right"),
        "errors": errors(found),
    }
    return {
        name: {**spec, "description": f"Internal. {spec['description']}"}
        for name, spec in made.items()
        if spec is not None
    }


def group_chart(place: int) -> str:
    """Name of the chart of an attribute, which may be called anything itself."""
    return f"group{place}"


def histogram(audit: Audit) -> list[tuple[float, float, int]]:
    """How many people have so much disagreement, which may exceed 1 by m / (m - 1).

    Returns
    -------
    list of (from, to, people)
    """
    edges = np.linspace(0, 1, _BINS + 1)
    people, _ = np.histogram(np.clip(audit.persons.disagreement, 0, 1), edges)
    low, high = edges[:-1].round(3).tolist(), edges[1:].round(3).tolist()
    return list(zip(low, high, people.tolist(), strict=True))


def spread(found: Audited) -> Spec | None:
    """People by their disagreement."""
    rows = [
        {"at": label, "from": low, "to": high, "people": people, "bin": f"{low:g} to {high:g}"}
        for label, audit in found.told
        for low, high, people in histogram(audit)
    ]
    across = {"field": "from", "bin": {"binned": True, "step": 1 / _BINS}, "title": _DISAGREE}
    spec = {
        "mark": {"type": "bar", "color": AFTER, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": {**across, "type": "quantitative", **_UNIT},
            "x2": {"field": "to"},
            "y": {
                "field": "people",
                "type": "quantitative",
                "title": "people",
                "stack": None,
                "axis": {"tickMinStep": 1},
            },
            "tooltip": [tip("bin", "disagreement"), tip("people", "people", ",.0f")],
        },
        "height": 220,
    }
    return _chosen(found, rows, spec, "How many people have how much disagreement.")


def by_epsilon(found: Audited) -> Spec | None:
    """Mean disagreement and its 95th percentile, at each budget."""
    if len(found.epsilons) < 2:
        return None
    told = sorted(zip(found.epsilons, found.told, strict=True), key=lambda each: each[0])
    rows: list[dict[str, Any]] = []
    for place, (_, (label, audit)) in enumerate(told):
        both = {"epsilon": label, "place": place}
        rows.append({**both, "what": "mean", **ends(audit.mean)})
        high = audit.distribution.p95
        rows.append({**both, "what": "95th percentile", "value": high})
    across = {
        "field": "epsilon",
        "type": "ordinal",
        "sort": {"field": "place"},
        "title": "epsilon (less is more private)",
        "axis": {"labelAngle": 0},
    }
    up: Spec = {"type": "quantitative", "title": _DISAGREE, "scale": {"domain": [0, 1.05]}}
    up["axis"] = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"}
    names = ["mean", "95th percentile"]
    told_apart = {
        "color": _told("what", names, [AFTER, _OTHER]),
        "shape": _told("what", names, ["circle", "square"]),
    }
    tips = [tip("epsilon", "epsilon"), tip("what", "of people"), *interval_tips()]
    common: Spec = {"x": across, "tooltip": tips}
    value = {"field": "value", **up}
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": {**common, "y": value, "color": told_apart["color"]},
        },
        {
            "transform": [{"filter": "datum.what == 'mean'"}],
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**common, "y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {"mark": _POINT, "encoding": {**common, "y": value, **told_apart}},
    ]
    return whole(rows, {"layer": layers, "height": 240}, "Disagreement by epsilon.")


def by_group(found: Audited, name: str) -> Spec | None:
    """Mean disagreement of each group, with intervals."""
    rows = [
        {"at": label, "group": visible(group), **ends(value)}
        for label, audit in found.told
        for group, value in list(audit.groups[name].values.items())[:_GROUPS]
        if value.value is not None
    ]
    names = list(dict.fromkeys(visible(g) for g in found.audits[0].groups[name].values))
    groups = {
        "field": "group",
        "type": "nominal",
        "title": None,
        "axis": {"labelLimit": 160},
        "scale": {"domain": names[:_GROUPS]},
    }
    across: Spec = {
        "type": "quantitative",
        "title": f"mean {_DISAGREE}",
        "scale": {"zero": True},
    }
    common: Spec = {"y": groups, "tooltip": [tip("group", "group"), *interval_tips()]}
    layers = [
        {
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**common, "x": {"field": "low", **across}, "x2": {"field": "high"}},
        },
        {
            "mark": {**_POINT, "color": AFTER},
            "encoding": {**common, "x": {"field": "value", **across}},
        },
    ]
    spec = {"layer": layers, "height": 30 * max(len(names[:_GROUPS]), 2)}
    return _chosen(found, rows, spec, "Mean disagreement of each group, with intervals.")


def plane(found: Audited) -> Spec | None:
    """Disagreement over two features, as colors."""
    rows = [
        {"at": label, **cell}
        for label, audit in found.told
        if audit.plane is not None
        for cell in cells(audit.plane)
    ]
    first = found.audits[0].plane
    if first is None:
        return None
    one, other = map(visible, first.names)
    axis: Spec = {
        "type": "quantitative",
        "scale": {"nice": False, "zero": False},
        "axis": {"grid": False},
    }
    spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "x", **axis, "title": one},
            "x2": {"field": "x2"},
            "y": {"field": "y", **axis, "title": other},
            "y2": {"field": "y2"},
            "color": {
                "field": "disagreement",
                "type": "quantitative",
                "scale": {"scheme": "viridis", "domain": [0, 1], "clamp": True},
                "legend": {"title": _DISAGREE, "orient": "top", "gradientLength": 220},
            },
            "tooltip": [
                tip("across", one, ".4g"),
                tip("up", other, ".4g"),
                tip("disagreement", _DISAGREE, ".3f"),
            ],
        },
        "height": 340,
    }
    return _chosen(found, rows, spec, "Disagreement over two features, others at the median.")


def cells(told: Plane) -> list[dict[str, float]]:
    """One cell of color around each point of a plane."""
    xs, ys = _edges(told.xs), _edges(told.ys)
    wide, high = (0.03 * (each[1] - each[0]) for each in (xs, ys))  # so that no seam is seen
    return [
        {
            "x": xs[i],
            "x2": _short(xs[i + 1] + wide),
            "y": ys[j],
            "y2": _short(ys[j + 1] + high),
            "across": _short(told.xs[i]),
            "up": _short(told.ys[j]),
            "disagreement": round(float(told.disagreement[j, i]), 4),
        }
        for j in range(len(told.ys))
        for i in range(len(told.xs))
    ]


def abstention(found: Audited, figure: str, title: str) -> Spec | None:
    """What is left if those with most disagreement get no automatic decision."""
    rows = [
        {"at": label, "share": row["abstained"], "value": row[figure]}
        for label, audit in found.told
        for row in audit.abstention
        if figure in row
    ]
    spec = {
        "mark": {"type": "line", "color": AFTER, "point": {"color": AFTER, "size": 60}},
        "encoding": {
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "share of people left to somebody's review",
                "axis": {"format": ".0%", "values": [0, 0.1, 0.2, 0.3, 0.4, 0.5]},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": title,
                "scale": {"zero": figure == "disagreement"},
                "axis": {"tickCount": 5},
            },
            "tooltip": [tip("share", "left out", ".0%"), tip("value", title, ".3f")],
        },
        "height": 150,
    }
    return _chosen(found, rows, spec, f"With the least certain people left out: {title}.")


def errors(found: Audited) -> Spec | None:
    """How far estimates of fewer runs were off, beside the bounds."""
    rows = [
        {"at": label, "runs": row.runs, "what": what, "value": value}
        for label, audit in found.told
        for row in audit.errors
        for what, value in zip(
            _SERIES, (row.largest, row.mean, row.exact, row.paper), strict=True
        )
        if value > 0
    ]
    names = list(_SERIES)
    spec = {
        "mark": {"type": "line", "point": {"filled": True, "size": 60}},
        "encoding": {
            "x": {
                "field": "runs",
                "type": "quantitative",
                "title": "runs",
                "scale": {"type": "log", "nice": False, "padding": 12},
                "axis": {"tickCount": 4, "format": ",d"},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": "error of an estimate",
                "scale": {"type": "log"},
                "axis": {"tickCount": 5, "format": "~g"},
            },
            "color": _told("what", names, [each[0] for each in _SERIES.values()], 2),
            "shape": _told("what", names, [each[1] for each in _SERIES.values()], 2),
            "strokeDash": _told("what", names, [each[2] for each in _SERIES.values()], 2),
            "tooltip": [
                tip("what", "error"),
                tip("runs", "runs", ",.0f"),
                tip("value", "value", ".4f"),
            ],
        },
        "height": 220,
    }
    return _chosen(found, rows, spec, "Error of estimates by number of runs, and its bounds.")


def _chosen(
    found: Audited, rows: list[dict[str, Any]], spec: Mapping[str, Any], said: str
) -> Spec | None:
    """A chart of one budget at a time."""
    shown = {"params": [{"name": "show", "value": found.labels[0]}], "transform": [_CHOSEN]}
    return whole(rows, {**shown, **spec}, said)


def _told(field: str, names: Sequence[str], values: Sequence[Any], columns: int = 0) -> Spec:
    """An encoding that tells series apart, with one legend for all of them."""
    legend: dict[str, Any] = {"orient": "top", "symbolOpacity": 1, "labelLimit": 220}
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names), "range": list(values)},
        "legend": {**legend, **({"columns": columns} if columns else {})},
    }


def _edges(values: Floats) -> list[float]:
    """Ends of cells around evenly spaced values."""
    half = (values[1] - values[0]) / 2
    return [_short(each) for each in np.append(values - half, values[-1] + half)]


def _short(value: Any) -> float:
    """A number in few digits: a page has thousands of them."""
    return float(f"{float(value):.5g}")

"""Numbers and names for readers, and the sentences that decision makers read first."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from veracal.accounting import format_up
from veracal.calibration import Identity, Temperature
from veracal.data import Estimate
from veracal.report.results import STAGES, Bin, Results, is_wide

_JOINERS = "\u200c\u200d"  # scripts and emoji need them, and they reorder nothing
TOO_FEW = "too few records"
NOT_RECORDED = "not recorded"
NOT_MEASURED = "not measured"
NOT_FINITE = "not a finite number"


def visible(text: str, keep: str = _JOINERS) -> str:
    r"""Escape control characters, and characters that hide or reorder others.

    Examples
    --------
    >>> print(visible("a\u202eb"))
    a\u202eb
    """
    escaped = []
    for character in text:
        code = ord(character)
        if character.isprintable() or character in keep:
            escaped.append(character)
        elif character in "\n\r\t" or (character.isspace() and code > 127):
            escaped.append(" ")
        else:
            escaped.append(f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}")
    return "".join(escaped)


def percent(share: float) -> str:
    """A share in percent, without decimals.

    Examples
    --------
    >>> percent(0.9516)
    '95%'
    """
    return f"{100 * share:.0f}%"


def percent_interval(figure: Estimate) -> str:
    """Ends of an interval in percent, rounded outward.

    Examples
    --------
    >>> percent_interval(Estimate(0.95, 0.8605, 0.99, 0.95, 372))
    '86 to 99%'
    """
    if figure.low is None or figure.high is None:
        return ""
    if not (math.isfinite(100 * figure.low) and math.isfinite(100 * figure.high)):
        return NOT_FINITE
    # The tolerance keeps 0.9 * 100 from becoming 91.
    low, high = math.floor(100 * figure.low + 1e-9), math.ceil(100 * figure.high - 1e-9)
    return f"{low} to {high}%"


def decimals(value: float | None) -> str:
    """A figure with three decimals, or why there is none."""
    if value is None:
        return TOO_FEW
    if not math.isfinite(value):
        return NOT_FINITE
    return f"{value + 0.0:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def interval(figure: Estimate | None) -> str:
    """Ends of an interval with three decimals."""
    if figure is None or figure.low is None or figure.high is None:
        return "none"
    return f"{decimals(figure.low)} to {decimals(figure.high)}"


def count(figure: Estimate) -> str:
    """A noisy number of records."""
    return TOO_FEW if figure.value is None else f"about {figure.value:,.0f}"


def listed(values: Iterable[object], most: int = 12) -> str:
    """The first values, and their number if some are left out."""
    words = [visible(str(value)) for value in values]
    more = f", … ({len(words):,} in all)" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of a dotted name and a value."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting(value)))
    return rows


def _setting(value: object) -> str:
    """One setting as text."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        # All digits: a delta must not be rounded down.
        return repr(float(value)) if math.isfinite(value) else NOT_FINITE
    if isinstance(value, list | tuple):
        return listed(map(_setting, value)) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {text}" for name, text in flat(value)) or "none"
    return visible(str(value)) or "none"


NOT_AUDITED = "how far decisions depend on the randomness of training (not audited)"
_TOP_BINS = 3  # bins of highest confidence on the first screen


@dataclass(frozen=True)
class Protection:
    """What is protected, and how strongly."""

    strength: str  # "strong", "moderate", "weak" or "no"
    cost: str  # epsilon and delta
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class ConfidenceSummary:
    """Accuracy of the predictions in one bin of confidence, before and after recalibration."""

    confidence: str
    before: str
    after: str
    verdict: str
    known: bool  # whether an interval is narrow enough for a claim


def protection(results: Results) -> Protection:
    """Summarize the guarantee, and what it means for an attacker who guesses.

    An attacker whose true positive rate exceeds the false positive rate by at most a, with both
    cases equally likely, guesses right with probability at most :math:`(1 + a) / 2`. The
    strengths are the tiers of Ponomareva et al. 2023, https://arxiv.org/abs/2303.00654,
    section 5.2.
    """
    promise = results.guarantee
    if not math.isfinite(promise.epsilon):
        sentence = "Nothing bounds what this release reveals about an individual."
        return Protection("no", "no bound", (sentence,))
    unit = visible(promise.unit)
    most = promise.max_contributions
    rows = f", with up to {most} rows each" if most > 1 else ""
    right = min(math.ceil(50 * (1 + promise.advantage) - 1e-9), 100)
    question = f"whether a given {unit} was in the data"
    if promise.relation == "replace-one":
        question = f"which of two given {unit}s was in the data"
    sentences = [
        f"Each individual {unit} in the data is protected{rows}: in the model, and in every "
        "figure here that is marked as released.",
        f"An attacker who sees all of this and guesses {question} is right in at most "
        f"{right} of 100 cases. Random guessing is right in 50.",
        "Protection counts as strong up to epsilon 1, and as moderate up to 10.",
    ]
    if promise.ledger_total is not None:
        sentences.append(visible(promise.ledger_total))
    bound = promise.epsilon
    strength = "strong" if bound <= 1 else "moderate" if bound <= 10 else "weak"
    return Protection(strength, cost(bound, promise.delta), tuple(sentences))


def cost(epsilon: float, delta: float, digits: int = 4) -> str:
    """Epsilon and, if it is not zero, delta; both rounded up."""
    at = f", delta {format_up(delta, 3)}" if delta else ""
    return f"epsilon {format_up(epsilon, digits)}{at}"


def confidence_summaries(results: Results) -> tuple[ConfidenceSummary, ...]:
    """The bins of highest confidence of the released curves, the highest first."""
    records = [results.when(when) for when in STAGES]
    before, after = (() if record is None else record.bins for record in records)
    top = max(len(before), len(after))
    rows = []
    for b in reversed(range(max(0, top - _TOP_BINS), top)):
        first = before[b] if len(before) == top else None
        last = after[b] if len(after) == top else None
        verdict = "consistent"
        # Compared with the ends of the bin, not with its mean confidence, which is noisy.
        if last is None:
            verdict = NOT_MEASURED
        elif is_wide(last.accuracy) or last.accuracy.low is None or last.accuracy.high is None:
            verdict = TOO_FEW
        elif last.accuracy.high < last.low:
            verdict = "overconfident"
        elif last.accuracy.low > last.high:
            verdict = "underconfident"
        rows.append(
            ConfidenceSummary(
                f"{percent(b / top)} to {percent((b + 1) / top)}",
                _accuracy(first),
                _accuracy(last),
                verdict,
                any(each is not None and not is_wide(each.accuracy) for each in (first, last)),
            )
        )
    return tuple(rows)


def _accuracy(part: Bin | None) -> str:
    """Accuracy of the predictions in a bin, with its interval in brackets."""
    if part is None:
        return NOT_MEASURED
    figure = part.accuracy
    if is_wide(figure) or figure.value is None:
        return f"{TOO_FEW}{_brackets(figure)}"
    return f"about {percent(figure.value)}{_brackets(figure)}"


def headline(results: Results) -> tuple[str, ...]:
    """Accuracy at the highest confidence before and after recalibration, and overall."""
    after = results.when("after")
    figure = None if after is None else after.overall.accuracy
    if figure is None:
        overall = "Overall accuracy was not measured."
    elif figure.value is None or is_wide(figure):
        overall = f"There are {TOO_FEW} to estimate overall accuracy{_brackets(figure)}."
    else:
        overall = f"Overall accuracy is about {percent(figure.value)}{_brackets(figure)}."
    return _top_confidence(results), overall


def _top_confidence(results: Results) -> str:
    """How often the model is correct when it is most confident."""
    last = {when: one.bins[-1] for when, one in results.stages().items() if one.bins}
    if not last:
        return "How often the model is correct when it is confident was not measured."
    start = f"When the model is at least {percent(min(b.low for b in last.values()))} confident"
    if all(is_wide(part.accuracy) for part in last.values()):
        return (
            f"{start}, how often it is correct cannot be estimated yet: there are too few test "
            "records for this amount of noise."
        )
    after = last.get("after")
    if after is None:
        text = f"{start}, how often it is correct was not measured."
    elif is_wide(after.accuracy):
        bounds = _brackets(after.accuracy)
        text = f"{start}, there are {TOO_FEW} to estimate how often it is correct{bounds}."
    else:
        value, bounds = percent(after.accuracy.value or 0.0), _brackets(after.accuracy)
        text = f"{start}, about {value} of its predictions are correct{bounds}."
    if results.when("before"):
        text = f"{text} Before recalibration: {_accuracy(last.get('before'))}."
    return text


def _brackets(figure: Estimate) -> str:
    """Ends of an interval in brackets, if there is one."""
    ends = percent_interval(figure)
    return f" ({ends})" if figure.value is not None and ends else ""


def groups(results: Results) -> tuple[str, ...]:
    """Groups for which the recalibrated model is less accurate.

    A group counts as worse if its whole interval lies below that of another group: overlapping
    intervals may be due to noise and sampling.
    """
    names, after = results.group_names, results.when("after")
    if not names:
        declared = listed(results.data.groups)
        options = f" ({declared} could be used)" if declared else ""
        sentence = f"Results were not broken down by group{options}."
        return (f"{sentence} The model may be less accurate for some groups.",)
    measured = {} if after is None else after.groups
    accuracies = {name: measured[name].accuracy if name in measured else None for name in names}
    unclear = [name for name in names if is_wide(accuracies[name])]
    known = {name: each for name, each in accuracies.items() if each is not None}
    best = max((each.low for each in known.values() if each.low is not None), default=0.0)
    worse = tuple(
        name
        for name, each in known.items()
        if each.high is not None and each.high < best and name not in unclear
    )
    attribute = next((one.group for one in results.measured if one.group), None)
    by = f" by {visible(attribute)}" if attribute else ""
    sentences = []
    if worse:
        sentences.append(f"Accuracy is lower for these groups{by}: {listed(worse)}.")
    elif len(unclear) < len(names):
        sentences.append(f"No difference between groups{by} exceeds noise and sampling error.")
    if unclear:
        sentences.append(f"There are {TOO_FEW} for these groups{by}: {listed(unclear)}.")
    return tuple(sentences)


def not_measured(results: Results) -> tuple[str, ...]:
    """What was not measured; always mentions an audit if there was none."""
    missing = results.not_measured
    return missing if any("audit" in each for each in missing) else (*missing, NOT_AUDITED)


def describe_map(results: Results) -> str:
    """The effect of the calibration map, in one sentence."""
    map_ = results.map
    if isinstance(map_, Identity) or (isinstance(map_, Temperature) and map_.inverse == 1):
        return "No recalibration was applied."
    if isinstance(map_, Temperature):
        effect = "more confident" if map_.inverse > 1 else "less confident"
        return (
            f"Temperature scaling multiplies the logits by {map_.inverse:.4g}, which makes the "
            f"model {effect}."
        )
    return f"Recalibrated by a calibration map of kind {map_.kind}."

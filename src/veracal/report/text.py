"""Numbers and names from results, as people read them.

What somebody who decides needs to know, in plain words.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from veracal.accounting import rounded_up
from veracal.data import Estimate
from veracal.report.results import (
    Bin,
    MeasurementRecord,
    Results,
    curve,
    figure,
    group_names,
    is_wide,
    mapping,
    number,
)

_JOINERS = "\u200c\u200d"  # which scripts and emoji need, and which reorder nothing
UNTOLD = "too few records to tell"


def visible(text: str, keep: str = _JOINERS) -> str:
    r"""Write characters that are obeyed, hidden or reorder others as escapes.

    Examples
    --------
    >>> print(visible("a\u202eb"))
    a\u202eb
    """
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Escape of one character; kinds of blank become a blank."""
    code = ord(character)
    if character in "\n\r\t" or (character.isspace() and code > 127):
        return " "
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"


def percent(share: float) -> str:
    """A share in percent, without decimals.

    Examples
    --------
    >>> percent(0.9516)
    '95%'
    """
    return f"{100 * share:.0f}%"


def between(found: Estimate) -> str:
    """Ends of an interval in percent, rounded outward.

    Examples
    --------
    >>> between(Estimate(0.95, 0.8605, 0.99, 0.95, 372))
    '86 to 99%'
    """
    if found.low is None or found.high is None:
        return ""
    # A hair of rounding is no reason to say 91 for 0.9 * 100.
    low, high = math.floor(100 * found.low + 1e-9), math.ceil(100 * found.high - 1e-9)
    return f"{low} to {high}%"


def decimals(value: float | None) -> str:
    """A figure with three decimals; words where it is not known."""
    if value is None:
        return UNTOLD
    return f"{value + 0.0:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def interval(found: Estimate | None) -> str:
    """Ends of an interval with three decimals."""
    if found is None or found.low is None or found.high is None:
        return "none"
    return f"{decimals(found.low)} to {decimals(found.high)}"


def count(found: Estimate) -> str:
    """A noisy number of records."""
    return UNTOLD if found.value is None else f"about {found.value:,.0f}"


def epsilon(value: float | None, digits: int = 4) -> str:
    """Epsilon or delta with few digits, never below what it is."""
    return "unbounded" if value is None else rounded_up(value, digits)


def listed(values: Iterable[object], most: int = 12) -> str:
    """Some values, and how many there are if not all are shown."""
    words = [visible(str(value)) for value in values]
    more = f", … ({len(words):,} in all)" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of a dotted name and a value in words."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting(value)))
    return rows


def _setting(value: object) -> str:
    """One setting in words."""
    if value is None:
        return "by default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        # All digits: a delta among them may not shrink.
        return repr(float(value)) if math.isfinite(value) else "not a number that is finite"
    if isinstance(value, list | tuple):
        return listed(map(_setting, value)) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {said}" for name, said in flat(value)) or "none"
    return visible(str(value)) or "none"


NOT_AUDITED = "how many decisions hang on the chance of the noise (not audited yet)"
_UPPER = 3  # bins at the sure end that the first screen shows


@dataclass(frozen=True)
class Protection:
    """What was protected, and how strongly.

    Attributes
    ----------
    strength : str
        One word, or two.
    cost : str
        Epsilon and delta.
    sentences : tuple of str
    """

    strength: str
    cost: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class ConfidenceSummary:
    """How often the model is right when it is so sure, before and after its repair.

    Attributes
    ----------
    says : str
    before, after : str
    verdict : str
    told : bool
        Whether an interval is narrow enough to say anything.
    """

    says: str
    before: str
    after: str
    verdict: str
    told: bool


@dataclass(frozen=True)
class GroupSummary:
    """For whom the model is worse, in sentences."""

    sentences: tuple[str, ...]
    worse: tuple[str, ...] = ()


def protection(results: Results) -> Protection:
    """Whom the guarantee protects, and what it is worth against a guess.

    An attacker whose true positive rate exceeds the false positive rate by at most a, and to
    whom both cases are equally likely, is right with probability :math:`(1 + a) / 2` at most.
    """
    promise = results.guarantee
    bound = number(promise.get("epsilon"))
    if promise.get("private") is not True or bound is None:
        return Protection("no", "no bound", ("Nothing bounds what this tells about a person.",))
    unit, most = visible(str(promise.get("unit", "record"))), number(promise.get("at_most"))
    rows = f", with up to {most:.0f} rows each" if most is not None and most > 1 else ""
    sentences = [
        f"Each single {unit} in the data is protected{rows}: in the model, and in every figure "
        "here that is marked as released."
    ]
    if (advantage := number(promise.get("advantage"))) is not None:
        right = min(math.ceil(50 * (1 + advantage) - 1e-9), 100)
        sentences.append(
            f"Somebody who sees all of it and guesses {_question(promise, unit)} is right at "
            f"most {right} times in 100. Tossing a coin is right 50 times in 100."
        )
    delta = number(promise.get("delta"))
    cost = f"epsilon {epsilon(bound)}" + (f", delta {epsilon(delta, 3)}" if delta else "")
    sentences.append("Protection is called strong up to epsilon 1, and moderate up to 10.")
    if isinstance(total := promise.get("ledger_total"), str):
        sentences.append(visible(total))
    return Protection(_strength(bound), cost, tuple(sentences))


def _question(promise: Mapping[str, Any], unit: str) -> str:
    """What an attacker guesses."""
    if promise.get("relation") == "replace-one":
        return f"which of two given {unit}s was in the data"
    return f"whether a given {unit} was in the data"


def _strength(bound: float) -> str:
    """Tiers of Ponomareva et al. 2023, https://arxiv.org/abs/2303.00654, section 5.2."""
    return "strong" if bound <= 1 else "moderate" if bound <= 10 else "weak"


def sureness(results: Results) -> tuple[ConfidenceSummary, ...]:
    """The bins at the sure end of the released curves, the surest first."""
    before, after = curve(results.when("before")), curve(results.when("after"))
    top = max(len(before), len(after))
    rows = []
    for b in reversed(range(max(0, top - _UPPER), top)):
        one = before[b] if len(before) == top else None
        other = after[b] if len(after) == top else None
        rows.append(
            ConfidenceSummary(
                f"{percent(b / top)} to {percent((b + 1) / top)}",
                _right(one),
                _right(other),
                _verdict(other),
                any(each is not None and not is_wide(each.accuracy) for each in (one, other)),
            )
        )
    return tuple(rows)


def _right(found: Bin | None) -> str:
    """How often predictions of a bin are right."""
    if found is None:
        return "not measured"
    if is_wide(found.accuracy) or found.accuracy.value is None:
        return f"{UNTOLD}{_brackets(found.accuracy)}"
    return f"{_share(found.accuracy)}{_brackets(found.accuracy)}"


def _verdict(found: Bin | None) -> str:
    """Whether a bin's accuracy can be what the model says.

    Compared with the ends of the bin, not with its mean confidence, which is noisy, too.
    """
    if found is None:
        return "not measured"
    right = found.accuracy
    if is_wide(right) or right.low is None or right.high is None:
        return UNTOLD
    if right.high < found.low:
        return "too sure"
    return "right more often than it says" if right.low > found.high else "fits what it says"


def headline(results: Results) -> tuple[str, ...]:
    """The surest bin before and after, and how often the model is right at all."""
    return _surest(results), _overall(figure(results.when("after"), "accuracy"))


def _surest(results: Results) -> str:
    """How often the model is right when it is as sure as can be."""
    bins = {when: curve(results.when(when)) for when in ("before", "after")}
    last = {when: found[-1] for when, found in bins.items() if found}
    if not last:
        return "How often it is right when it is sure was not measured."
    said = (
        f"When the model says it is {percent(min(b.low for b in last.values()))} sure or more"
    )
    if all(is_wide(found.accuracy) for found in last.values()):
        return (
            f"{said}, nobody can tell yet how often it is right: there are too few records for "
            "so much noise."
        )
    earlier = f" {_was_right(last.get('before'))}." if results.when("before") else ""
    return f"{said}, {_is_right(last.get('after'))}.{earlier}"


def _is_right(found: Bin | None) -> str:
    """How often predictions of a bin are right now, as the end of a sentence."""
    if found is None:
        return "how often it is right was not measured"
    if is_wide(found.accuracy):
        return f"there are {UNTOLD} how often it is right{_brackets(found.accuracy)}"
    return f"it is right {_share(found.accuracy)} of the time{_brackets(found.accuracy)}"


def _was_right(found: Bin | None) -> str:
    """The same before the repair, as a sentence."""
    if found is None:
        return "Before the repair, that was not measured"
    if is_wide(found.accuracy):
        return f"Before the repair there were {UNTOLD}{_brackets(found.accuracy)}"
    return f"Before the repair it was {_share(found.accuracy)}{_brackets(found.accuracy)}"


def _share(found: Estimate) -> str:
    """A share of which enough is known."""
    assert found.value is not None
    return f"about {percent(found.value)}"


def _brackets(found: Estimate) -> str:
    """Ends of an interval, where there is something between them."""
    ends = between(found)
    return f" ({ends})" if found.value is not None and ends else ""


def _overall(found: Estimate | None) -> str:
    """How often the model is right at all."""
    if found is None:
        return "How often it is right overall was not measured."
    if found.value is None or is_wide(found):
        return f"There are {UNTOLD} how often it is right overall{_brackets(found)}."
    return f"Of all its predictions {_share(found)} are right{_brackets(found)}."


def groups(results: Results) -> GroupSummary:
    """For which groups the model is worse after its repair.

    A group is called worse if its interval lies wholly on the wrong side of that of another
    group: intervals that touch may come from noise and chance.
    """
    names, last = group_names(results), results.when("after")
    if not names:
        declared = list(mapping(results.data.get("groups")))
        ways = f" ({listed(declared)} could be)" if declared else ""
        return GroupSummary(
            (f"Groups were not told apart{ways}: it may be worse for some people.",)
        )
    found = {name: figure(last, "accuracy", name) for name in names}
    told = {name: each for name, each in found.items() if each is not None}
    unclear = [name for name in names if is_wide(found[name])]
    worse = tuple(name for name in _below(told) if name not in unclear)
    by = mapping(results.settings.get("measurement")).get("group")
    of = f" of {visible(str(by))}" if by else ""
    sentences = (
        [f"It is right less often for the groups{of}: {listed(worse)}."] if worse else []
    )
    if len(unclear) < len(names) and not worse:
        sentences.append(
            f"No difference between groups{of} is larger than noise and chance make."
        )
    if unclear:
        sentences.append(f"For these groups{of} there are {UNTOLD}: {listed(unclear)}.")
    return GroupSummary(tuple(sentences), worse)


def _below(told: Mapping[str, Estimate]) -> list[str]:
    """Groups whose figure is surely below that of another."""
    lows = [each.low for each in told.values() if each.low is not None]
    best = max(lows, default=0.0)
    return [name for name, each in told.items() if each.high is not None and each.high < best]


def not_measured(results: Results) -> tuple[str, ...]:
    """What was left out, and always that the audit of chance is still to come."""
    said = tuple(str(each) for each in results.not_measured)
    return said if any("audit" in each for each in said) else (*said, NOT_AUDITED)


def repaired(results: Results) -> str:
    """What the map does, in one sentence."""
    kind, inverse = results.map.get("kind"), number(results.map.get("inverse"))
    if kind == "identity" or (kind == "temperature" and inverse == 1):
        return "Confidence was left as it came from training."
    if kind == "temperature" and inverse is not None:
        how = "surer" if inverse > 1 else "less sure"
        return f"Scores are multiplied by {inverse:.4g}, which makes the model {how}."
    if kind is None:
        return "How confidence was repaired is not told."
    return f"Confidence is repaired by a map of the kind: {visible(str(kind))}."


def later(results: Results) -> tuple[MeasurementRecord, ...]:
    """Measurements that followed those before and after the map."""
    return tuple(one for one in results.measured if one.when not in ("before", "after"))

"""What sources elsewhere have declared: questions to them can be about nothing else."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from veracal.calibration.methods import Method, Settings
from veracal.calibration.queries import ParameterGrid
from veracal.calibration.queries.parameters import weight_shape
from veracal.data.score_values import Kind

Share = float | Literal["auto"] | None
BINS = 15  # where nobody says how many
# What "auto" falls back on, best first.
_NEXT = ("pooled", "temperature", "acc-t", "ece-t", "nll-t", "binning", "binning-paper")


@dataclass(frozen=True)
class Enrolled:
    """Bounds that whoever holds the records has set, before anybody asked.

    A source that has some says so by an attribute of this type, called ``enrolled``.

    Attributes
    ----------
    classes : int
    reads : {"logits", "probabilities"} or None
        Kind of the scores; None where sources differ.
    temperatures : pair of float
    bins : int
    clamp : float
        Largest loss of one record.
    grid : ParameterGrid
        Of affine maps.
    methods : tuple of str
        Those whose questions are all answered.
    guards : bool
        Whether it is answered by how much a map helps.
    measures, recounts : bool
        Whether what figures before and after need is answered, for maps that keep all
        predictions and for others.
    parameters : int
        Of the longest map that can be asked about.
    """

    classes: int
    reads: Kind | None
    temperatures: tuple[float, float]
    bins: int
    clamp: float
    grid: ParameterGrid
    methods: tuple[str, ...]
    guards: bool = True
    measures: bool = True
    recounts: bool = True
    parameters: int = 1_000

    def both(self, other: "Enrolled") -> "Enrolled":
        """What can be asked of two sources alike.

        Raises
        ------
        ValueError
            If nothing can.
        """
        for name in ("classes", "bins", "clamp", "grid"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(
                    f"Expected sources that have declared the same {name}, got {mine!r} and "
                    f"{others!r}: their answers do not add up. Ask one of them to enroll again."
                )
        low = max(self.temperatures[0], other.temperatures[0])
        high = min(self.temperatures[1], other.temperatures[1])
        if low >= high:
            raise ValueError(
                "Expected sources whose ranges of temperatures overlap, got "
                f"{self.temperatures!r} and {other.temperatures!r}."
            )
        return replace(
            self,
            reads=self.reads if self.reads == other.reads else None,
            temperatures=(low, high),
            methods=tuple(name for name in self.methods if name in other.methods),
            guards=self.guards and other.guards,
            measures=self.measures and other.measures,
            recounts=self.recounts and other.recounts,
            parameters=min(self.parameters, other.parameters),
        )

    @classmethod
    def of_all(cls, each: Iterable["Enrolled"]) -> "Enrolled":
        """What can be asked of all of them."""
        return reduce(cls.both, each)

    def adopted(self, settings: Settings, known: Method, *, bins: int | None) -> Settings:
        """Settings with what was declared, where they say nothing; others are refused.

        Parameters
        ----------
        settings : Settings
        known : Method
            That they are for.
        bins : int or None
            As the caller said, who may have said nothing.
        """
        self._check_form(settings, known)
        wanted = settings.temperatures
        low, high = self.temperatures
        if wanted is None and known.searches:
            settings = replace(settings, temperatures=self.temperatures)
        elif wanted is not None and not low <= wanted[0] < wanted[1] <= high:
            raise ValueError(
                f"Expected temperatures within {low:g} to {high:g}, as the sources have "
                f"declared, got {wanted!r}. Search within that range."
            )
        for name, value, declared in (
            ("classes", settings.classes, self.classes),
            ("bins", bins, self.bins),
        ):
            if value is not None and value != declared:
                raise ValueError(
                    f"Expected {name}={declared}, as the sources have declared, got "
                    f"{name}={value!r}. Leave it out."
                )
        return replace(
            settings,
            classes=self.classes,
            bins=self.bins,
            clamp=self.clamp,
            grid=self.grid,
            reads=self.reads,
        )

    def shares(self, guard: Share, measure: Share, known: Method) -> tuple[Share, Share]:
        """Shares of the budget for the guard and for figures, as far as they are answered.

        Raises
        ------
        ValueError
            If somebody insists on one that is not.
        """
        measures = self.measures and (known.keeps or self.recounts)
        for name, share, possible in (
            ("guard", guard, self.guards),
            ("measure", measure, measures),
        ):
            if not possible and share not in ("auto", None, 0):
                raise ValueError(
                    f"Expected no {name}, which not all sources have enrolled the questions of "
                    f"(or not at a temperature of 1), got {name}={share!r}. Leave it out, or "
                    "ask the sources to enroll for it."
                )
        return guard if self.guards else None, measure if measures else None

    def method(self, wanted: str) -> str:
        """The method that "auto" stands for, or the next best that can be asked.

        Raises
        ------
        ValueError
            If there is none.
        """
        found = next((name for name in (wanted, *_NEXT) if name in self.methods), None)
        if found is None:
            raise ValueError(
                "Expected sources that answer the questions of a method, got sources that have "
                "enrolled no such questions in common. Ask them to enroll for counts and gap."
            )
        return found

    def _check_form(self, settings: Settings, known: Method) -> None:
        """Refuse an affine map of which a question would be too long, before the first."""
        weights = math.prod(weight_shape(settings.form, self.classes))
        if known.name == "platt" and weights + self.classes > self.parameters:
            raise ValueError(
                f"Expected an affine map of at most {self.parameters} parameters, which a "
                f"request has room for, got a {settings.form} of {self.classes} classes. Use "
                "another form, or one temperature."
            )

    def check_method(self, name: str) -> None:
        """Refuse a method whose questions not all of the sources answer."""
        if name not in self.methods:
            known = ", ".join(self.methods) or "no method at all"
            raise ValueError(
                f"Expected a method whose questions all sources have enrolled ({known}), got "
                f"{name!r}. Use another, or ask the sources to enroll for it."
            )

"""Pipelines that are charged as a whole."""

from typing import Any, Self

from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted

from veracal.data import Dataset
from veracal.privacy import Event, Statement, Unit, statement
from veracal.training.guarantee import NotPrivate
from veracal.training.made_up import made_up
from veracal.training.preprocessing.transformer import check_numbers
from veracal.training.steps import (
    PrivateStep,
    composed,
    event_of,
    fit_to,
    inner_steps,
    is_row_by_row,
    private_steps,
    transformed,
)


class PrivatePipeline(Pipeline):  # type: ignore[misc]
    """Scikit-learn's ``Pipeline``, with a cost that is known before a record is read.

    Its event is the composition of its steps' events, so that ``Holder.fit`` charges all of
    them at once. How a budget is divided is what the steps' own settings say. Steps that
    were given no size or no classes take the data set's.

    Parameters
    ----------
    steps : list of (name, estimator)
        As of ``Pipeline``. A step states its cost, like all of :mod:`veracal.training`, or is
        known to turn each row by itself (:func:`veracal.training.steps.is_row_by_row`).
    transform_input : list of str, optional
        As of ``Pipeline``, for :meth:`fit` only.
    memory : str or joblib.Memory, optional
        Likewise.
    verbose : bool
        Likewise.

    Attributes
    ----------
    event_ : Event or None
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate

    Guarantees
    ----------
    All steps protect the same unit under one relation, or :meth:`event` raises. In
    :meth:`fit_records` a record meets nothing but steps that are charged, and functions of
    itself alone; what is not finite on the way becomes zero. Steps that learn nothing are
    fitted to made-up records.

    Examples
    --------
    >>> from veracal.training import PrivateLogisticRegression
    >>> from veracal.training.preprocessing import BoundedScaler
    >>> model = make_private_pipeline(
    ...     BoundedScaler(bounds=(0, 100)), PrivateLogisticRegression(epsilon=1.0)
    ... )
    >>> model.event() == PrivateLogisticRegression(epsilon=1.0).event()
    True
    """

    def __init__(
        self,
        steps: list[tuple[str, Any]],
        *,
        transform_input: list[str] | None = None,
        memory: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(steps, transform_input=transform_input, memory=memory, verbose=verbose)

    def event(self) -> Event | None:
        """Cost of one fit, known before any record is read; None: it costs nothing.

        Raises
        ------
        ValueError
            Naming the step that learns from the records without stating what that costs.
        """
        self._unit()
        return event_of(self)

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        A copy is fitted to made-up records of the same form, step by step.
        """
        check_numbers(dataset)
        cost = self.event()
        stand_in = made_up(dataset, "add-remove" if cost is None else cost.relation)
        twin = clone(self)
        for _, step in twin.steps[:-1]:
            fit_to(step, stand_in, stand_in)
            stand_in = transformed(step, stand_in)
        last = twin.steps[-1][1]
        if isinstance(last, PrivateStep):
            last.check_records(stand_in)
        else:
            fit_to(last, stand_in, stand_in)

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken."""
        self.check_records(dataset)
        cost = self.event()
        stand_in = made_up(dataset, "add-remove" if cost is None else cost.relation)
        for _, step in self.steps[:-1]:
            fit_to(step, dataset, stand_in)
            dataset, stand_in = (transformed(step, part) for part in (dataset, stand_in))
        fit_to(self.steps[-1][1], dataset, stand_in)
        return self

    def before_last(self, dataset: Dataset) -> Dataset:
        """A data set as the fitted steps before the last one turn it, without any error."""
        for _, step in self.steps[:-1]:
            dataset = transformed(step, dataset)
        return dataset

    @property
    def event_(self) -> Event | None:
        """Cost of the fit that was done; None: nothing, or no guarantee (``private_``)."""
        check_is_fitted(self)
        paid = [step.event_ for _, step in private_steps(self)]
        return composed([event for event in paid if event is not None])

    @property
    def not_private_because_(self) -> tuple[str, ...]:
        """What was read off the records without being paid for, step by step."""
        check_is_fitted(self)
        reasons = [
            f"{name}: {why}"
            for name, step in private_steps(self)
            for why in step.not_private_because_
        ]
        reasons += [
            f"{name}: {type(step).__name__} learns from the records and states no cost"
            for name, step in inner_steps(self)
            if not (isinstance(step, PrivateStep) or is_row_by_row(step))
        ]
        return tuple(reasons)

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this fit."""
        return not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this fit promises, in words and as JSON; computed when asked for."""
        if not self.private_ or self.event_ is None:
            return NotPrivate(self.not_private_because_ or ("nothing in it is charged",))
        charged = [name for name, step in private_steps(self) if step.event_ is not None]
        covers = (f"what these steps learnt: {', '.join(charged)}",)
        return statement(self.event_, self._delta(), self._unit(), covers=covers)

    def _delta(self) -> float:
        """The largest delta that a step states its epsilon at."""
        given = [step.get_params().get("delta") for _, step in private_steps(self)]
        return max((float(delta) for delta in given if delta is not None), default=0.0)

    def _unit(self) -> Unit | None:
        """The unit that all charged steps protect."""
        told = [step.get_params(deep=False) for _, step in private_steps(self)]
        units = {one["unit"] or Unit() for one in told if "unit" in one}
        if len(units) > 1:
            raise ValueError(
                "Expected all steps to protect the same unit, got "
                f"{' and '.join(sorted(map(str, units)))}. Give unit=... to each of them."
            )
        return units.pop() if units else None


def make_private_pipeline(
    *steps: Any, memory: Any = None, transform_input: Any = None, verbose: bool = False
) -> PrivatePipeline:
    """Make a :class:`PrivatePipeline` of steps that are named by their kind."""
    named = make_pipeline(*steps).steps
    return PrivatePipeline(
        named, memory=memory, transform_input=transform_input, verbose=verbose
    )

"""Pipelines that are charged as a whole."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from veracal import _checks
from veracal._display import DisplayMixin
from veracal._types import Floats
from veracal.accounting import UNFINISHED, Event, NotPrivate, Statement, Unit, statement
from veracal.data import Dataset, MappedRows
from veracal.mechanisms import ClipRule, is_continuous
from veracal.queries import charge_terms, check_protected, note_charge
from veracal.training.base import check_numbers
from veracal.training.pipeline_steps import (
    PIPELINE_STEP,
    all_steps,
    transform_both,
    compose_events,
    event_of,
    fit_step,
    is_absent,
    is_private_step,
    synthetic_dataset,
    own_reasons,
    private_steps,
    unpaid_reasons,
)
from veracal.training.preprocessing import PrivateTransformer

Method = TypeVar("Method", bound=Callable[..., Any])


def _available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """A decorator: the method is there where a check of the pipeline says so."""
    decorator: Callable[[Method], Method] = available_if(check)
    return decorator


def _last_has_logits(pipeline: "PrivatePipeline") -> bool:
    """Whether the last step gives logits; raises what scikit-learn expects if not."""
    getattr(pipeline.steps[-1][1], "logits")  # noqa: B009
    return True


def _is_discontinuous(step: Any) -> bool:
    """Whether a step may see the last bits of its rows: by its clip rule, or in its layers."""
    clip = getattr(step, "clip", None)
    return hasattr(step, "module") or (isinstance(clip, ClipRule) and not is_continuous(clip))


def _check_last_step(step: Any) -> None:
    """Refuse a last step that neither takes data sets nor transforms rows."""
    if not (is_absent(step) or is_private_step(step) or hasattr(step, "transform")):
        raise ValueError(
            f"Expected a private classifier or a transformer as the last step, got {step!r}. "
            "Make what is inside it a PrivatePipeline, or put its steps here."
        )
    _checks.as_part(step=step)


class PrivatePipeline(DisplayMixin, Pipeline):  # type: ignore[misc]
    """Scikit-learn's ``Pipeline``, with a cost that is known before a record is read.

    Its event is the composition of its steps' events, so that ``Curator.fit`` charges all of
    them at once. How a budget is divided is what the steps' own settings say. Steps that
    were given no size or no classes take the data set's.

    Parameters
    ----------
    steps : list of (name, estimator)
        As of ``Pipeline``. A step states its cost, like all of :mod:`veracal.training`, or is
        known to turn each row by itself
        (:func:`veracal.training.pipeline_steps.is_row_wise`).
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
        Where nothing is charged, ``NotPrivate`` says so.

    Guarantees
    ----------
    All steps protect the same unit under one relation, or :meth:`event` raises. In
    :meth:`fit_records` a record meets nothing but steps that are charged, and functions of
    itself alone; what is not finite on the way becomes zero, and so does a row for which a
    function of the user's raises an error. Steps that learn nothing are fitted to made-up
    records. That a function turns each row by itself is the *user's word*: a trial on made-up
    rows catches mistakes, and proves nothing.

    Claims are written down when a fit ends, and nothing that is done to the steps afterwards
    changes them. A charged step claims nothing by itself once it is a part of a pipeline: its
    own cost is less than that of the whole.

    Examples
    --------
    >>> from veracal.training import PrivateLogisticRegression
    >>> from veracal.training import BoundedScaler
    >>> model = make_private_pipeline(
    ...     BoundedScaler(bounds=(0, 100)), PrivateLogisticRegression(epsilon=1.0)
    ... )
    >>> model.event() == PrivateLogisticRegression(epsilon=1.0).event()
    True
    """

    event_: Event | None

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
        cost = event_of(self)
        _check_last_step(self.steps[-1][1])
        return cost

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        A copy is fitted to made-up records of the same form, step by step.
        """
        if not all(is_absent(one) or getattr(one, "any_rows", False) for _, one in self.steps):
            check_numbers(dataset)
        cost = self.event()
        if cost is not None:
            check_protected(dataset, cost.relation, self._unit())
        stand_in = synthetic_dataset(dataset, "add-remove" if cost is None else cost.relation)
        twin = clone(self)
        for _, step in twin.steps[:-1]:
            fit_step(step, stand_in, stand_in)
            stand_in, _ = transform_both(step, stand_in, stand_in)
        last = twin.steps[-1][1]
        if is_private_step(last):
            last.check_records(stand_in)
        else:
            fit_step(last, stand_in, stand_in)

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken."""
        self.check_records(dataset)
        charged = self.event()
        self._reset_claims()
        stand_in = synthetic_dataset(
            dataset, "add-remove" if charged is None else charged.relation
        )
        alone = _is_discontinuous(self.steps[-1][1])
        for _, step in self.steps[:-1]:
            fit_step(step, dataset, stand_in)
            dataset, stand_in = transform_both(step, dataset, stand_in, alone=alone)
        fit_step(self.steps[-1][1], dataset, stand_in)
        self._record_claims([])
        if self.event_ != charged:
            self.not_private_because_ += ("its steps cost something else than was charged",)
        return self

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit to rows and labels as scikit-learn does, and say what was inferred."""
        self._reset_claims()
        super().fit(X, y, **params)
        return self._record_claims(unpaid_reasons(self))

    @_available_if(Pipeline._can_fit_transform)
    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Likewise, and turn the rows."""
        self._reset_claims()
        result = super().fit_transform(X, y, **params)
        self._record_claims(unpaid_reasons(self))
        return result

    @_available_if(_last_has_logits)
    def logits(self, X: Any) -> Floats:
        """Scores of shape (n, k) of the last step, whose softmax are the probabilities."""
        check_is_fitted(self)
        for _, step in self.steps[:-1]:
            if isinstance(X, MappedRows) and not isinstance(step, PrivateTransformer):
                X = X[:]  # scikit-learn's steps take no rows on disk
            X = X if is_absent(step) else step.transform(X)
        result: Floats = self.steps[-1][1].logits(X)
        return result

    def transform_dataset(self, dataset: Dataset) -> Dataset:
        """A data set as the fitted steps before the last one turn it, without any error.

        Each row is turned by itself: predictions, which are counted, jump at a threshold.
        """
        stand_in = synthetic_dataset(dataset, "add-remove")
        for _, step in self.steps[:-1]:
            dataset, stand_in = transform_both(step, dataset, stand_in, alone=True)
        return dataset

    # ------------------------------------------------------------ what a fit claims

    @property
    def not_private_because_(self) -> tuple[str, ...]:
        """What was read off the records without being paid for, step by step."""
        if "_reasons" not in vars(self):
            check_is_fitted(self)
            return ("its steps were fitted, and not the whole",)
        return self._reasons

    @not_private_because_.setter
    def not_private_because_(self, reasons: tuple[str, ...]) -> None:
        self._reasons = reasons

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this fit."""
        return not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this fit promises, in words and as JSON; computed when asked for."""
        if not self.private_ or self.event_ is None:
            return NotPrivate(self.not_private_because_ or ("nothing in it is charged",))
        delta, unit, charged = self._stated
        covers = (f"what these steps learnt: {', '.join(charged)}",)
        inside = [step for _, step in private_steps(self)]
        told = charge_terms(self, *inside)
        return statement(self.event_, delta, unit, covers=covers, **told)

    def _reset_claims(self) -> None:
        """What an earlier fit claimed must not outlive one that is interrupted."""
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        note_charge(self)

    def _record_claims(self, reasons: list[str]) -> Self:
        """Write down what this fit may claim; its steps claim nothing for themselves."""
        found = private_steps(self)
        told = [f"{name}: {why}" for name, step in found for why in own_reasons(step)]
        paid = [(name, step.event_) for name, step in found if step.event_ is not None]
        try:
            cost, unit = compose_events([event for _, event in paid]), self._unit()
        except ValueError as refused:
            cost, unit, told = None, None, [*told, str(refused)]
        self._stated = self._delta(), unit, tuple(name for name, _ in paid)
        self.event_, self.not_private_because_ = cost, (*told, *reasons)
        for _, step in all_steps(self):
            if step is not self and is_private_step(step) and step.event_ is not None:
                step.not_private_because_ = (*own_reasons(step), PIPELINE_STEP)
        return self

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

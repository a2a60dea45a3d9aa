"""Pipelines that are charged as a whole."""

from typing import Any, Self

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
from veracal.queries import charge_terms, check_protected, record_charge
from veracal.training.base import check_numeric
from veracal.training.pipeline_steps import (
    PIPELINE_STEP,
    all_steps,
    compose_events,
    fit_event,
    fit_step,
    is_absent,
    is_private_step,
    own_reasons,
    private_steps,
    synthetic_dataset,
    transform_both,
    unpaid_reasons,
)
from veracal.training.preprocessing import PrivateTransformer


def _is_discontinuous(step: Any) -> bool:
    """Whether a step may depend on the last bits of its rows (clip rule or layers)."""
    clip = getattr(step, "clip", None)
    return hasattr(step, "module") or (isinstance(clip, ClipRule) and not is_continuous(clip))


class PrivatePipeline(DisplayMixin, Pipeline):  # type: ignore[misc]
    """Scikit-learn's ``Pipeline``, with a cost that is known before a record is read.

    Its event is the composition of its steps' events, so that ``Curator.fit`` charges all of
    them at once. The settings of the steps divide the budget. Steps without a declared size or
    classes use those of the data set.

    Parameters
    ----------
    steps : list of (name, estimator)
        A step either states its cost, like all of :mod:`veracal.training`,
        or is known to transform each row independently
        (:func:`veracal.training.pipeline_steps.is_row_wise`).
    transform_input, memory, verbose
        As for ``Pipeline``; the first for :meth:`fit` only.

    Attributes
    ----------
    event_, private_, not_private_because_, statement_
        The cost, and what may be claimed.
        ``NotPrivate`` if nothing is charged.

    Guarantees
    ----------
    All steps protect the same unit under one relation, or :meth:`event` raises. In
    :meth:`fit_records` a record is used only by charged steps and by functions of that record
    alone; values that are not finite become zero, and so does a row for which a user-defined
    function raises an error. Steps that learn nothing are fitted to synthetic records. That a
    user-defined function transforms each row independently is *declared by the user*: a trial
    on synthetic rows catches mistakes, and proves nothing.

    Claims are recorded when a fit ends; later changes to the steps do not affect them. A
    charged step makes no claim of its own once it is part of a pipeline: its own cost is less
    than that of the pipeline.

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

    def __init__(  # as that of Pipeline, with types
        self,
        steps: list[tuple[str, Any]],
        *,
        transform_input: list[str] | None = None,
        memory: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(steps, transform_input=transform_input, memory=memory, verbose=verbose)

    def event(self) -> Event | None:
        """Cost of one fit, known before any record is read; None if it costs nothing.

        Raises
        ------
        ValueError
            If a step learns from the records without stating its cost; the message names it.
        """
        self._unit()
        cost, last = fit_event(self), self.steps[-1][1]
        if not (is_absent(last) or is_private_step(last) or hasattr(last, "transform")):
            raise ValueError(
                f"Expected a private classifier or a transformer as the last step, got "
                f"{last!r}. Wrap its content in a PrivatePipeline, or use its steps here."
            )
        _checks.reject_unsplittable_fit(step=last)
        return cost

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by public facts alone.

        A copy is fitted to synthetic records of the same form, step by step.
        """
        if not all(
            is_absent(one) or getattr(one, "any_row_shape", False) for _, one in self.steps
        ):
            check_numeric(dataset)
        cost = self.event()
        if cost is not None:
            check_protected(dataset, cost.relation, self._unit())
        synthetic = synthetic_dataset(dataset, "add-remove" if cost is None else cost.relation)
        copy = clone(self)
        for _, step in copy.steps[:-1]:
            fit_step(step, synthetic, synthetic)
            synthetic, _ = transform_both(step, synthetic, synthetic)
        last = copy.steps[-1][1]
        if is_private_step(last):
            last.check_records(synthetic)
        else:
            fit_step(last, synthetic, synthetic)

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, with its declared classes, size and norm."""
        self.check_records(dataset)
        charged = self.event()
        self._reset_claims()
        relation = "add-remove" if charged is None else charged.relation
        synthetic = synthetic_dataset(dataset, relation)
        row_wise = _is_discontinuous(self.steps[-1][1])
        for _, step in self.steps[:-1]:
            fit_step(step, dataset, synthetic)
            dataset, synthetic = transform_both(step, dataset, synthetic, row_wise=row_wise)
        fit_step(self.steps[-1][1], dataset, synthetic)
        self._record_claims([])
        if self.event_ != charged:
            self.not_private_because_ += ("its steps have another cost than was charged",)
        return self

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit to rows and labels as scikit-learn does, and record what was inferred."""
        self._reset_claims()
        super().fit(X, y, **params)
        return self._record_claims(unpaid_reasons(self))

    @available_if(Pipeline._can_fit_transform)  # type: ignore[untyped-decorator]
    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit as :meth:`fit` does, and transform the rows."""
        self._reset_claims()
        result = super().fit_transform(X, y, **params)
        self._record_claims(unpaid_reasons(self))
        return result

    @available_if(lambda self: hasattr(self.steps[-1][1], "logits"))  # type: ignore[untyped-decorator]
    def logits(self, X: Any) -> Floats:
        """Scores of shape (n, k) of the last step, whose softmax is the probabilities."""
        check_is_fitted(self)
        for _, step in self.steps[:-1]:
            if isinstance(X, MappedRows) and not isinstance(step, PrivateTransformer):
                X = X[:]  # steps of scikit-learn do not accept rows on disk
            X = X if is_absent(step) else step.transform(X)
        result: Floats = self.steps[-1][1].logits(X)
        return result

    def transform_dataset(self, dataset: Dataset) -> Dataset:
        """Transform a data set by all fitted steps but the last; no row raises an error.

        Each row is transformed on its own, since predictions jump at a threshold.
        """
        synthetic = synthetic_dataset(dataset, "add-remove")
        for _, step in self.steps[:-1]:
            dataset, synthetic = transform_both(step, dataset, synthetic, row_wise=True)
        return dataset

    @property
    def not_private_because_(self) -> tuple[str, ...]:
        """What was read from the records without being charged, step by step."""
        if "_reasons" not in vars(self):
            check_is_fitted(self)
            return ("its steps were fitted separately, and not the pipeline",)
        return self._reasons

    @not_private_because_.setter
    def not_private_because_(self, reasons: tuple[str, ...]) -> None:
        self._reasons = reasons

    @property
    def private_(self) -> bool:
        """Whether this fit has the guarantee of ``event_``."""
        return not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """The guarantee of this fit, as text and as JSON; computed on access."""
        if not self.private_ or self.event_ is None:
            return NotPrivate(self.not_private_because_ or ("nothing in it is charged",))
        delta, unit, charged = self._stated
        covers = (f"what these steps learned: {', '.join(charged)}",)
        terms = charge_terms(self, *(step for _, step in private_steps(self)))
        return statement(self.event_, delta, unit, covers=covers, **terms)

    def _reset_claims(self) -> None:
        """Discard the claims of an earlier fit, in case this one is interrupted."""
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        record_charge(self)

    def _record_claims(self, reasons: list[str]) -> Self:
        """Record what this fit may claim; its steps make no claims of their own."""
        steps = private_steps(self)
        own = [f"{name}: {why}" for name, step in steps for why in own_reasons(step)]
        paid = [(name, step.event_) for name, step in steps if step.event_ is not None]
        try:
            cost, unit = compose_events([event for _, event in paid]), self._unit()
        except ValueError as error:
            cost, unit, own = None, None, [*own, str(error)]
        deltas = [step.get_params().get("delta") for _, step in steps]
        delta = max((float(one) for one in deltas if one is not None), default=0.0)
        self._stated = delta, unit, tuple(name for name, _ in paid)
        self.event_, self.not_private_because_ = cost, (*own, *reasons)
        for _, step in all_steps(self):
            if step is not self and is_private_step(step) and step.event_ is not None:
                step.not_private_because_ = (*own_reasons(step), PIPELINE_STEP)
        return self

    def _unit(self) -> Unit | None:
        """The unit that all charged steps protect."""
        params = [step.get_params(deep=False) for _, step in private_steps(self)]
        units = {one["unit"] or Unit() for one in params if "unit" in one}
        if len(units) > 1:
            raise ValueError(
                "Expected all steps to protect the same unit, got "
                f"{' and '.join(sorted(map(str, units)))}. Give unit=... to each of them."
            )
        return units.pop() if units else None


def make_private_pipeline(
    *steps: Any, memory: Any = None, transform_input: Any = None, verbose: bool = False
) -> PrivatePipeline:
    """Make a :class:`PrivatePipeline` of steps that are named by their class."""
    named = make_pipeline(*steps).steps
    return PrivatePipeline(
        named, memory=memory, transform_input=transform_input, verbose=verbose
    )

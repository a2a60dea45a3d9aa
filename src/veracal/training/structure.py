"""What estimators are put together from."""

from collections.abc import Iterator
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline


def inner_steps(estimator: Any) -> Iterator[tuple[str, Any]]:
    """All that is fitted inside an estimator, with the names that lead to it."""
    for name, step in all_steps(estimator):
        if parts_of(step) is None and not is_absent(step):
            yield name, step


def all_steps(estimator: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """An estimator and all that is inside, pipelines and the like included."""
    yield name, estimator
    for key, step in parts_of(estimator) or ():
        yield from all_steps(step, f"{name}__{key}" if name else key)


def parts_of(estimator: Any) -> list[tuple[str, Any]] | None:
    """What an estimator is put together from; None if it is not."""
    if isinstance(estimator, Pipeline):
        return [(key, step) for key, step in estimator.steps]
    if isinstance(estimator, ColumnTransformer):
        fitted = vars(estimator).get("transformers_")
        listed = [*estimator.transformers, ("remainder", estimator.remainder, None)]
        return [(key, step) for key, step, _ in (fitted or listed)]
    if isinstance(estimator, FeatureUnion):
        return [(key, step) for key, step in estimator.transformer_list]
    return None


def check_structure(estimator: Any) -> None:
    """Refuse steps that stand where they cannot, or twice, and columns chosen by functions."""
    for _, step in all_steps(estimator):
        if chooses_columns(step):
            raise ValueError(
                f"Expected declared columns, got a function that chooses them in {step!r}: it "
                "would look at the records. Give their numbers."
            )
        parts = parts_of(step) or []
        for key, part in parts[:-1] if isinstance(step, Pipeline) else parts:
            if not (is_absent(part) or hasattr(part, "transform")):
                raise ValueError(
                    f"Expected a step that transforms rows, got {part!r} as {key!r}. A "
                    "classifier can only be the last step."
                )
    _check_once(estimator, set())


def _check_once(step: Any, seen: set[int]) -> None:
    """Refuse an object in two places, where its second fit would undo the first."""
    if is_absent(step):
        return
    if id(step) in seen:
        raise ValueError(
            f"Expected every step once, got {step!r} in two places: the second fit would undo "
            "the first. Use sklearn.base.clone."
        )
    seen.add(id(step))
    if not isinstance(step, ColumnTransformer):  # which fits copies
        for _, part in parts_of(step) or ():
            _check_once(part, seen)


def chooses_columns(step: Any) -> bool:
    """Whether a function chooses columns by looking at the records."""
    if not isinstance(step, ColumnTransformer):
        return False
    return any(callable(columns) for _, _, columns in step.transformers)


def is_absent(step: Any) -> bool:
    """Whether a step is one of scikit-learn's words for none."""
    return step is None or isinstance(step, str)

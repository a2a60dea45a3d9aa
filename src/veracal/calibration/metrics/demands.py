"""What a metric asks of scores before it looks at them."""

from veracal.data.scores import Scores
from veracal.errors import DataError


def need_records(scores: Scores) -> Scores:
    """Return labeled scores of at least one record, or raise :class:`DataError`."""
    if not len(scores):
        raise DataError(
            scores.name, "at least one record", "none", "A mean over nobody has no value."
        )
    _ = scores.known_labels
    return scores


def need_two_classes(scores: Scores, instead: str) -> Scores:
    """Return labeled scores for two classes, or name the metric for more of them."""
    need_records(scores)
    if scores.n_classes != 2:
        raise DataError(
            scores.name,
            "scores for two classes",
            f"{scores.n_classes} classes",
            f"Use {instead}, or join classes with Scores.merge.",
        )
    return scores

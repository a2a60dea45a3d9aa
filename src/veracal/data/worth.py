"""Whether anything can be learnt from records at all."""

from pathlib import Path

from veracal.data.dataset import Dataset
from veracal.errors import DataError


def check_worth(dataset: Dataset, path: str | Path) -> None:
    """Refuse records from which nothing can be learnt: none, or all of one class.

    The rule holds for whatever is loaded from a path: a table, images, sentences, or one
    part of a collection.

    Parameters
    ----------
    dataset : Dataset
    path : path
        Where it came from.
    """
    if not len(dataset):
        raise DataError(
            str(path), "at least one record", "none left", "Look at what is dropped as missing."
        )
    if (dataset.y == dataset.y[0]).all():
        raise DataError(
            str(path),
            "records of at least two classes",
            f"only {dataset.classes[dataset.y[0]]!r}",
            "Check what was declared as the label, and which records were chosen.",
        )

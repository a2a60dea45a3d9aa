"""Labels made wrong on purpose, to see what a learner makes of doubt."""

import numpy as np

from veracal import _checks
from veracal.data.dataset import Dataset


def corrupt_labels(dataset: Dataset, p: float, *, rng: np.random.Generator) -> Dataset:
    r"""Replace each label, with probability p, by a class drawn uniformly from all k.

    The drawn class may be the old one, so a label changes with probability
    :math:`p (k-1)/k`, and the best possible confidence in a clean label becomes
    :math:`1 - p (k-1)/k` (Zhang et al. 2022, appendix on label noise injection).

    Parameters
    ----------
    dataset : Dataset
    p : float in [0, 1]
    rng : Generator
    """
    _checks.fraction(p=p)
    drawn = rng.integers(dataset.n_classes, size=len(dataset))
    y = np.where(rng.random(len(dataset)) < p, drawn, dataset.y)
    return dataset._changed(y=y)

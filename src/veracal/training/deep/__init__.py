"""Networks of PyTorch, trained with differential privacy."""

from veracal._checks import extra

extra("torch", "torch")  # says in a sentence what is missing, before anything else fails

from veracal.training.deep.checks import without_batch_norm  # noqa: E402
from veracal.training.deep.network import PrivateNetwork  # noqa: E402
from veracal.training.deep.ranks import Ranks  # noqa: E402
from veracal.training.deep.records import Augment, Pictures  # noqa: E402
from veracal.training.deep.training import Trained, train  # noqa: E402

__all__ = [
    "Augment",
    "Pictures",
    "PrivateNetwork",
    "Ranks",
    "Trained",
    "train",
    "without_batch_norm",
]

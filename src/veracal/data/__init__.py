"""Records, their splits, and the scores of classifiers on them."""

from veracal.data.columns import (
    Category,
    Constant,
    Ignore,
    Number,
    Slot,
    Target,
    Text,
    Unit,
    Vector,
)
from veracal.data.corrupt import corrupt_labels
from veracal.data.dataset import Dataset, Group, cross
from veracal.data.encode import Rows
from veracal.data.groups import ByGroup, Estimate, by_group
from veracal.data.limits import Limits
from veracal.data.loading import load
from veracal.data.readers.images import ImageForm
from veracal.data.readers.score_files import load_scores, scan_scores
from veracal.data.readers.text import Rating, TextForm
from veracal.data.saving_scores import save_scores
from veracal.data.scanning import Tally, scan, scan_rows, tally
from veracal.data.schema import Grouping, Schema
from veracal.data.scores import Scores
from veracal.data.splitting import Split, split
from veracal.data.units import limit_contributions

__all__ = [
    "ByGroup",
    "Category",
    "Constant",
    "Dataset",
    "Estimate",
    "Group",
    "Grouping",
    "Ignore",
    "ImageForm",
    "Limits",
    "Number",
    "Rating",
    "Rows",
    "Schema",
    "Scores",
    "Slot",
    "Split",
    "Tally",
    "Target",
    "Text",
    "TextForm",
    "Unit",
    "Vector",
    "by_group",
    "corrupt_labels",
    "cross",
    "limit_contributions",
    "load",
    "load_scores",
    "save_scores",
    "scan",
    "scan_rows",
    "scan_scores",
    "split",
    "tally",
]

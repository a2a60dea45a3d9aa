"""Published data sets for benchmarks and studies: their sources and loaders.

>>> from benchmarks.datasets import load
>>> train = load("mnist", part="train")  # doctest: +SKIP
"""

from benchmarks.datasets.catalog import CATALOG, entry, load
from benchmarks.datasets.downloads import fetch
from benchmarks.datasets.entries import CatalogEntry, DatasetRequest
from benchmarks.datasets.sources import FetchError

__all__ = ["CATALOG", "CatalogEntry", "DatasetRequest", "FetchError", "entry", "fetch", "load"]

"""The settings of Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. E.1), for CIFAR-10.

One of three is varied at a time: the number of sources with 10 samples each, the number of
samples at 50 sources, epsilon at 50 sources of 30 samples.
"""

from dataclasses import dataclass

import numpy as np

from veracal._types import Floats, Ints

TRIALS = 500
BINS = 15
CLASSES = 10
RANGE, PAPER_RANGE = (0.5, 6.0), (0.5, 3.0)  # of temperatures
PICTURES = 10_000


@dataclass(frozen=True)
class Point:
    """A place in the grid."""

    sweep: str
    sources: int
    samples: int
    epsilon: float

    @property
    def records(self) -> int:
        """Of all sources together."""
        return self.sources * self.samples


POINTS: tuple[Point, ...] = (
    *(Point("sources", sources, 10, 1.0) for sources in range(10, 251, 10)),
    *(Point("samples", 50, samples, 1.0) for samples in range(5, 51, 5)),
    *(Point("epsilon", 50, 30, round(0.2 * i, 1)) for i in range(1, 11)),
)
SWEEPS = ("sources", "samples", "epsilon")

SOURCES: Ints = np.array([point.sources for point in POINTS])
SAMPLES: Ints = np.array([point.samples for point in POINTS])
EPSILONS: Floats = np.array([point.epsilon for point in POINTS])
RECORDS: Ints = np.array([point.records for point in POINTS])

SIZES: Ints = np.unique(RECORDS)
SIZE_OF: Ints = np.searchsorted(SIZES, RECORDS)  # place of each point's size among the sizes
STEP = 50  # every size is a multiple of it
MOST: int = int(SIZES.max())
FIRST: Ints = np.unique(SAMPLES)  # sizes of one source
FIRST_OF: Ints = np.searchsorted(FIRST, SAMPLES)
EACH = 5  # every one of those is a multiple of it

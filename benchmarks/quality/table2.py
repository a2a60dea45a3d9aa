"""Table 2 of Kulynych et al. (2023, https://arxiv.org/abs/2302.14517), and its data sets."""

from dataclasses import dataclass

RUNS = 5_000  # of each row
EPSILONS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5)


@dataclass(frozen=True)
class Row:
    """The paper's figures for one set at one epsilon.

    Attributes
    ----------
    auc, auc_deviation, f1, f1_deviation : float
        In percent; mean and deviation over runs.
    mean, deviation, minimum, median, maximum, p90, p95 : float
        Of disagreement over the individuals of the test part.
    """

    auc: float
    auc_deviation: float
    f1: float
    f1_deviation: float
    mean: float
    deviation: float
    minimum: float
    median: float
    maximum: float
    p90: float
    p95: float


_PRINTED = """
contraception 0.50  57.51 6.72  48.72 7.86  0.90 0.10 0.48 0.93 1.00 0.99 1.00
contraception 0.75  60.26 6.20  50.29 7.54  0.82 0.17 0.24 0.88 1.00 0.99 1.00
contraception 1.00  62.50 5.47  51.56 7.09  0.73 0.23 0.11 0.79 1.00 0.98 1.00
contraception 1.25  64.27 4.71  52.62 6.62  0.65 0.27 0.05 0.70 1.00 0.97 0.99
contraception 1.50  65.62 4.00  53.53 6.14  0.57 0.30 0.02 0.60 1.00 0.96 0.99
contraception 1.75  66.65 3.38  54.31 5.67  0.51 0.32 0.00 0.50 1.00 0.95 0.99
contraception 2.00  67.43 2.86  54.98 5.21  0.45 0.33 0.00 0.42 1.00 0.94 0.98
contraception 2.50  68.49 2.10  55.97 4.39  0.37 0.33 0.00 0.27 1.00 0.92 0.97
credit 0.50  52.22 15.95  46.48 16.38  1.00 0.00 0.99 1.00 1.00 1.00 1.00
credit 0.75  53.72 15.70  47.84 15.70  0.99 0.01 0.98 0.99 1.00 1.00 1.00
credit 1.00  55.16 15.41  49.15 15.05  0.99 0.01 0.96 0.99 1.00 1.00 1.00
credit 1.25  56.56 15.06  50.39 14.46  0.98 0.02 0.94 0.98 1.00 1.00 1.00
credit 1.50  57.86 14.69  51.59 13.89  0.97 0.03 0.91 0.98 1.00 1.00 1.00
credit 1.75  59.10 14.31  52.72 13.35  0.96 0.03 0.89 0.97 1.00 1.00 1.00
credit 2.00  60.26 13.91  53.77 12.85  0.95 0.04 0.86 0.96 1.00 1.00 1.00
credit 2.50  62.41 13.12  55.70 12.05  0.93 0.06 0.80 0.95 1.00 1.00 1.00
dermatology 0.50  62.19 19.76  48.81 17.88  0.96 0.03 0.89 0.96 1.00 1.00 1.00
dermatology 0.75  66.75 17.65  52.67 16.44  0.93 0.05 0.79 0.93 1.00 0.99 0.99
dermatology 1.00  70.44 15.83  55.88 15.21  0.89 0.08 0.69 0.90 1.00 0.98 0.99
dermatology 1.25  73.46 14.28  58.57 14.20  0.85 0.10 0.60 0.86 1.00 0.98 0.98
dermatology 1.50  75.94 12.97  60.93 13.30  0.82 0.12 0.52 0.83 1.00 0.97 0.98
dermatology 1.75  78.04 11.89  62.98 12.60  0.79 0.13 0.46 0.80 1.00 0.95 0.97
dermatology 2.00  79.80 10.96  64.78 12.00  0.75 0.15 0.39 0.77 0.99 0.94 0.96
dermatology 2.50  82.66 9.45  67.80 10.95  0.70 0.17 0.32 0.72 0.99 0.92 0.94
mammography 0.50  75.64 8.95  69.22 9.88  0.62 0.28 0.20 0.61 1.00 0.98 1.00
mammography 0.75  78.57 6.51  72.46 7.04  0.51 0.34 0.07 0.45 1.00 0.98 1.00
mammography 1.00  80.36 5.26  74.39 5.48  0.44 0.36 0.02 0.33 1.00 0.97 0.99
mammography 1.25  81.62 4.44  75.64 4.66  0.39 0.37 0.01 0.24 1.00 0.95 0.99
mammography 1.50  82.54 3.82  76.56 4.14  0.35 0.37 0.00 0.17 1.00 0.93 0.99
mammography 1.75  83.25 3.36  77.29 3.81  0.32 0.36 0.00 0.12 1.00 0.91 0.98
mammography 2.00  83.81 2.98  77.85 3.56  0.29 0.35 0.00 0.08 1.00 0.89 0.98
mammography 2.50  84.61 2.40  78.70 3.22  0.25 0.34 0.00 0.04 1.00 0.84 0.96
"""


def _rows() -> dict[tuple[str, float], Row]:
    lines = (line.split() for line in _PRINTED.split("\n") if line)
    return {(name, float(epsilon)): Row(*map(float, rest)) for name, epsilon, *rest in lines}


PUBLISHED = _rows()
SETS = tuple(dict.fromkeys(name for name, _ in PUBLISHED))

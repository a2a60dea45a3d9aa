"""Fit diffprivlib 0.6.2 many times, and keep quantiles of its weights.

It needs a separate environment, since that version does not import with current
releases: Python 3.11 with diffprivlib==0.6.2, scikit-learn==1.2.0, numpy<2, setuptools<70. From
any environment:

    python tests/training/perturbation/diffprivlib_quantiles.py PYTHON [FITS] > quantiles.json

PYTHON is the interpreter of that environment. The data are formulas of whole numbers, so that
no generator has to agree between versions. This file imports nothing of Veracal.
"""

import json
import subprocess
import sys

LEVELS = [level / 20 for level in range(1, 20)]
ROWS = 60
SETTINGS = [
    {"epsilon": epsilon, "norm": norm, "C": 1.0, "k": k}
    for epsilon in (0.5, 2.5)
    for norm in (1.0, 6.0)
    for k in (2, 3)
]


def table(k):
    """Rows of two features, some longer than 6, and labels in range(k)."""
    rows = [[(7 * i % 11 - 5) * 0.8, (5 * i % 13 - 6) * 0.9] for i in range(ROWS)]
    noisy = [row[0] - row[1] / 2 + (3 * i % 7 - 3) * 0.7 for i, row in enumerate(rows)]
    cuts = [0.0] if k == 2 else [-1.5, 1.5]
    return rows, [sum(value > cut for cut in cuts) for value in noisy]


def fitted(setting, fits):
    """Weights of many fits: for each binary model the features' and the intercept's."""
    import warnings

    import numpy as np
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")
    rows, labels = map(np.array, table(setting["k"]))
    for _ in range(fits):
        model = LogisticRegression(
            epsilon=setting["epsilon"],
            data_norm=setting["norm"],
            C=setting["C"],
            max_iter=1000,
            tol=1e-8,
        ).fit(rows, labels)
        yield np.hstack([model.coef_, model.intercept_[:, None]]).ravel().tolist()


def measured(fits):
    """Quantiles of every weight under every setting."""
    import diffprivlib
    import numpy as np
    import sklearn

    result = []
    for setting in SETTINGS:
        weights = np.array(list(fitted(setting, fits)))
        quantiles = np.quantile(weights, LEVELS, axis=0).T
        rounded = [[float(f"{value:.5g}") for value in row] for row in quantiles]
        result.append({**setting, "quantiles": rounded})
    versions = {"diffprivlib": diffprivlib.__version__, "scikit-learn": sklearn.__version__}
    return {"versions": versions, "fits": fits, "levels": LEVELS, "settings": result}


def ask(python, fits):
    """Run this file with another interpreter, and read its output."""
    command = [python, __file__, "--measure", str(fits)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        json.dump(measured(int(sys.argv[2])), sys.stdout)
    else:
        fits = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
        answer = json.dumps(ask(sys.argv[1], fits), indent=None)
        print(answer.replace('{"epsilon"', '\n{"epsilon"').replace(" [[", "\n  [["))

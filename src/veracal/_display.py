"""Estimators as notebooks show them."""

import warnings

from sklearn.base import BaseEstimator


class DisplayMixin(BaseEstimator):  # type: ignore[misc]
    """An estimator whose documentation has sections of ours."""

    def _html_repr(self) -> str:
        """What scikit-learn draws, without its warning that *Guarantees* is new to it."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unknown section")
            drawn: str = super()._html_repr()
        return drawn

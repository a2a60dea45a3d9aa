"""Display of estimators in notebooks."""

import warnings

from sklearn.base import BaseEstimator


class DisplayMixin(BaseEstimator):  # type: ignore[misc]
    """Mixin for estimators whose docstrings have additional sections."""

    def _html_repr(self) -> str:
        """HTML of scikit-learn, without its warning about the unknown section *Guarantees*."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unknown section")
            html: str = super()._html_repr()
        return html

"""What all private fitters share."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from veracal.calibration.maps import Map
from veracal.calibration.private.asking import Ask, composed, planned, stated, total_of, unit_of
from veracal.data import Scores
from veracal.privacy import Event, Item, Relation, Release, Source, Statement, Unit


class PrivateFitter(BaseEstimator):  # type: ignore[misc]
    """A fitter of a map that asks a source, whoever that is, and reads no record itself."""

    keeps: ClassVar[bool] = False  # whether its maps are known to keep all predictions
    infers: ClassVar[bool] = False  # whether its answers also say whether its map helps

    map_: Map
    private_: bool
    releases_: tuple[Release, ...]
    _ledger_total: str | None = None

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        return composed(ask.event(relation, unit) for ask in self._asks())

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this fit."""
        return planned(self._asks(), relation, unit, part)

    def _asks(self) -> list[Ask]:
        """The questions of a fit, each with its cost; for fitters that ask for pure noise."""
        raise NotImplementedError

    def transform(self, scores: Scores) -> Scores:
        """Map scores, which are only read and may be anybody's."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    @property
    def statement_(self) -> Statement | None:
        """What the fit promises to whom; None where nothing protects it: public records."""
        check_is_fitted(self, "map_")
        covers, unit, delta = self._about
        return stated(
            self.releases_, unit, covers=covers, delta=delta, ledger_total=self._ledger_total
        )

    def _keep(
        self,
        map_: Map,
        releases: Sequence[Release],
        source: Source,
        *,
        covers: str,
        delta: float = 0.0,
    ) -> Self:
        """Keep what was learnt, and what it promises."""
        self.map_ = map_
        self.releases_ = tuple(releases)
        self.private_ = all(release.private for release in self.releases_)
        self._about = covers, unit_of(source), delta  # never the source: it has the records
        self._ledger_total = total_of(source)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

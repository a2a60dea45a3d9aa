"""What a classifier needs that is trained on the records of several ranks."""

from abc import abstractmethod
from typing import Any, Self

from veracal.data import Dataset
from veracal.privacy import Unit
from veracal.training.deep.ranks import Link, Ranks, Told, settle
from veracal.training.deep.together import Alone, Course, Following, Leading
from veracal.training.descending import DescentClassifier
from veracal.training.facts import Facts


class SharedClassifier(DescentClassifier):
    """A private classifier that may be trained by all ranks of ``torch.distributed``.

    A final class stores ``across`` among its parameters, and descends as :meth:`_course` says.
    """

    across: Ranks | None

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.across is None:
            return
        if not isinstance(self.across, Ranks):
            raise ValueError(f"Expected across to be Ranks(...) or None, got {self.across!r}.")
        if self.size is None:
            raise ValueError(
                "Expected a declared size across ranks, got size=None. Give size=..., the "
                "public number of records on all ranks together."
            )
        if self.random_state is not None:
            raise ValueError(
                "Expected random_state=None across ranks, since with one seed for all of them "
                f"the coins of all would be the same, got random_state={self.random_state!r}."
            )

    def _check_alone(self) -> None:
        """Refuse arrays across ranks."""
        if self.across is not None:
            raise ValueError(
                "Expected fit_records(dataset) across ranks, got fit(X, y), which looks at "
                "records before rank 0 has paid."
            )

    @abstractmethod
    def _told(self, facts: Facts) -> dict[str, Any]:
        """Settings of a fit that must be the same on all ranks, as what JSON can hold."""

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        Across ranks, also settings that are not the same on all of them; and every rank but
        rank 0 waits here until rank 0 has paid and begins.
        """
        if self.across is None:
            super().check_records(dataset)
            return
        unit, size = self.unit or Unit(), int(self.size or 0)
        self._given = settle(
            self._linked(), lambda: self._share(dataset), unit, self.across, size
        )

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken.

        Across ranks, rank 0 hears of whatever fails on another one, and stops all of them.
        """
        try:
            return super().fit_records(dataset)
        except Exception:
            if self.across is not None:
                self._linked().excuse()
            raise

    def _share(self, dataset: Dataset) -> Told:
        """What is public about the records of this rank, if they can be fitted."""
        super().check_records(dataset)
        return Told(
            self._told(self._public(dataset)),
            # Replacing a record leaves every rank as many as it has: that is public then.
            len(dataset) if self.relation == "replace-one" else None,
            None if dataset.units is None else dataset.at_most,
            (*dataset.dealt_by, *dataset.drawn_by),
        )

    def check_paying(self, unit: Unit) -> None:
        """Refuse a ledger elsewhere than on rank 0, or one that protects another unit."""
        link = self._linked()
        if not link.leads:
            raise ValueError(
                f"Expected the ledger on rank 0, got one on rank {link.rank}. Call "
                "fit_records(dataset) here: it waits until rank 0 has paid."
            )
        link.over = False
        if unit != (self.unit or Unit()):
            problem = ValueError(
                f"Expected unit={unit!r}, which the ledger protects on all ranks, got "
                f"unit={self.unit!r}."
            )
            link.stop(problem)
            raise problem

    def called_off(self, problem: BaseException) -> None:
        """Tell all other ranks that there will be no fit."""
        self._linked().stop(problem)

    def _linked(self) -> Link:
        """The way to other ranks."""
        if "_link" not in self.__dict__:
            self._link = Link()
        return self._link

    def _note_charge(self) -> None:
        if self.across is None or self._leads:
            super()._note_charge()
        else:
            link = self._linked()
            self.charged_, self._ledger_total = link.charged, link.ledger_total

    @property
    def _all_here(self) -> bool:
        return self.across is None

    @property
    def _leads(self) -> bool:
        """Whether steps are taken, and checkpoints written, in this process."""
        return self.across is None or self._linked().leads

    def _course(self) -> Course:
        """Whether there are other ranks, and who leads."""
        if self.across is None:
            return Alone()
        link = self._linked()
        given = self.__dict__.pop("_given", None)
        return Leading(link) if given is None else Following(link, given)

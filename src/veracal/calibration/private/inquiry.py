"""Questions to one source or to several, all answered by the same ones."""

from collections.abc import Callable, Iterable

from veracal.calibration.private.asking import Ask, named, unaffordable
from veracal.calibration.private.same_sources import SameSources, added_over, silences
from veracal.privacy import Item, Query, Relation, Release, Source, Unit
from veracal.privacy.answers.judging import Wanted
from veracal.privacy.answers.pooling import Path, is_several


class Inquiry:
    """Questions to a source, one after the other.

    If the source is a pool, some of its sources may fall silent on the way. Every answer is
    then added again over the *cohort*, those that have answered everything so far, so that all
    answers are about the same records. Who was silent once is not asked again.

    Parameters
    ----------
    source : Source
    request : str, optional
        Id of the whole; every question gets one of its own from it. Without one every question
        is its own id.

    Guarantees
    ----------
    Adding again over fewer sources is made of released answers, and costs nothing. Every source
    that was asked counts in a statement with everything it was asked for, whether or not it
    answered and whether or not its answers were used.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.privacy import Count, Pool, Public
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> inquiry = Inquiry(Pool([Public(scores), Public(scores)], least=1))
    >>> inquiry.ask(Ask(Count(), 1_000), "count").value, inquiry.present
    (4.0, 2)
    """

    def __init__(self, source: Source, request: str | None = None) -> None:
        self.source, self.request = source, request
        self._cohort = SameSources(source, {}) if is_several(source) else source
        self._releases = list[Release]()

    def afford(self, items: Callable[[Relation, Unit, str | None], Iterable[Item]]) -> None:
        """Refuse what cannot be paid for to the last, before the first is charged.

        Of a pool that needs only some of its sources, those that cannot pay for everything are
        left out, uncharged, if enough remain.

        Parameters
        ----------
        items : callable
            As for :func:`~veracal.calibration.private.asking.afford`.
        """
        poor = unaffordable(self.source, items, self.request)
        if isinstance(self._cohort, SameSources):
            self._cohort.silent |= poor

    def ask(self, ask: Ask, what: str) -> Release:
        """Ask a question.

        Parameters
        ----------
        ask : Ask
        what : str
            Which one it is, for its id.

        Raises
        ------
        SilentError
            If too few of several sources have answered everything so far.
        """
        return self._asked(Wanted(ask.query, micro_epsilon=ask.micro_epsilon), what)

    def ask_gaussian(self, query: Query, noise_multiplier: float, what: str) -> Release:
        """Ask a question with Gaussian noise."""
        return self._asked(Wanted(query, noise_multiplier=noise_multiplier), what)

    def _asked(self, wanted: Wanted, what: str) -> Release:
        """Ask whoever is in the cohort."""
        self._releases.append(wanted.of(self._cohort, named(self.request, what)))
        return self._releases[-1]

    @property
    def answers(self) -> tuple[Release, ...]:
        """All answers so far, of the cohort."""
        return tuple(added_over(self._cohort, release) for release in self._releases)

    @property
    def releases(self) -> tuple[Release, ...]:
        """All answers as they were given, those of sources that fell silent later included."""
        return tuple(self._releases)

    @property
    def asked(self) -> int:
        """Number of single sources that there are to ask."""
        return len(silences(self._cohort))

    @property
    def present(self) -> int:
        """Number of single sources that have answered everything so far."""
        return silences(self._cohort).count(None)

    @property
    def silences(self) -> dict[Path, str]:
        """Who is no longer asked and why, by the number of the source in the pool."""
        return dict(self._cohort.silent) if isinstance(self._cohort, SameSources) else {}

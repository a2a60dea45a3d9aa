"""Several sources that answer as one, though some may be silent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from veracal import _checks
from veracal.privacy.answers.holder import Holder
from veracal.privacy.answers.judging import Wanted
from veracal.privacy.answers.pooling import (
    SILENT,
    AnswersByRound,
    NotAsked,
    Path,
    PooledRelease,
    check_sum,
    is_several,
    told,
    within_each,
)
from veracal.privacy.answers.sources import GaussianSource, Source, declares


@dataclass(frozen=True, eq=False)
class Pool(AnswersByRound):
    r"""Several sources that answer as one, by the sum of their answers.

    Each source adds its own noise and charges its own ledger the full ``micro_epsilon``.

    Parameters
    ----------
    sources : iterable of Source
        A pool may be one of them.
    least : int, optional
        How many must answer. The others may be *silent*: refuse for want of budget, fail, be
        out of reach, or answer nonsense, which is left out, too. Without it all must answer,
        and the first that does not ends the question.
    most_records : int, optional
        *Declared*: no source has more records. An answer farther out than so many records and
        noise can bring it is nonsense. Without it only numbers that nobody can have are.

    Guarantees
    ----------
    If no unit has records at two sources, each unit pays ``micro_epsilon`` once. One with
    records at several pays at each of them. Replacing a record means replacing it inside its
    source; moving one from source to source costs both. What a source was charged stays
    charged, whether or not its answer is used, and asking again repeats its answer.

    Which answers are nonsense is decided by released answers and public numbers alone
    (:mod:`veracal.privacy.answers.judging`), so it costs nothing. An honest source is left out
    with a probability below :math:`2^{-40}` for each answer. That a source refuses, fails or
    is late is told without noise, so none of that may depend on its records: a
    :class:`Holder` refuses by its ledger alone, but the time it takes is not covered.
    """

    sources: Iterable[Source]
    least: int | None = None
    most_records: int | None = None

    def __post_init__(self) -> None:
        sources = tuple(self.sources)
        if not sources or len({id(source) for source in sources}) < len(sources):
            raise ValueError(f"Expected different sources, at least one, got {sources!r}.")
        object.__setattr__(self, "sources", sources)
        _check_apart(sources)
        counts = range(1, len(sources) + 1)
        if self.least is not None and (self.least is True or self.least not in counts):
            raise ValueError(
                f"Expected least to be a number of sources from 1 to {len(sources)}, got "
                f"least={self.least!r}."
            )
        if self.most_records is not None:
            _checks.whole(most_records=self.most_records, least=0)

    def round(
        self,
        wanted: Wanted,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all sources but those that were silent before.

        Parameters
        ----------
        wanted : Wanted
        request : str, optional
        silent : mapping of path to reason, optional
            Who is not asked, and why; a path is the number of a source, followed by a number
            inside of it if that is a pool.

        Raises
        ------
        SilentError
            If fewer than ``least`` answered.
        """
        self._check(wanted)
        silent = silent or {}
        within = within_each(silent)
        given = [
            NotAsked(silent[i,])
            if (i,) in silent
            else self._one(wanted, source, _numbered(request, i), within.get(i, {}))
            for i, source in enumerate(self.sources)
        ]
        return told(
            wanted,
            given,
            tuple(self.sources),
            least=self.least,
            most_records=self.most_records,
            silent=silent,
        )

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return [
            (i, *path)
            for i, source in enumerate(self.sources)
            for path in (source.paths() if is_several(source) else [()])
        ]

    def members(self) -> Sequence[Source]:
        """The sources, in order."""
        return tuple(self.sources)

    def _check(self, wanted: Wanted) -> None:
        """Refuse what cannot be asked of several sources, before anybody is charged."""
        check_sum(wanted.query)
        gaussian = wanted.noise_multiplier is not None
        if gaussian and not all(isinstance(one, GaussianSource) for one in self.sources):
            raise ValueError(
                "Expected sources that all answer with Gaussian noise, got one that does not. "
                "Ask for Laplace noise, or leave it out."
            )

    def _one(
        self,
        wanted: Wanted,
        source: Source,
        request: str | None,
        silent: Mapping[Path, str],
    ) -> object:
        """What one source sends, or with which error it was silent."""
        try:
            if is_several(source):
                return source.round(wanted, request=request, silent=silent)
            return wanted.of(source, request)
        except tuple(kind for kind, _ in SILENT) as error:
            if self.least is None:
                raise
            return error


def _check_apart(sources: Iterable[object]) -> None:
    """Refuse what answers nothing, answers twice, or promises something else than the others.

    All of it is public, and known before anybody is charged: answers that come twice from one
    ledger are the same, noise included, and those under two relations do not add up.
    """
    single = list(_singles(sources))
    for one in single:
        if not callable(getattr(one, "answer", None)):
            raise ValueError(
                f"Expected sources, got {type(one).__name__}. Put a ledger before each set of "
                "scores, as in Holder(scores, ledger); or Public(scores) if they are public."
            )
    holders = [one for one in single if isinstance(one, Holder)]
    accounts = {(one.ledger.path.resolve(), one.part) for one in holders}
    if len({id(one) for one in single}) < len(single) or len(accounts) < len(holders):
        raise ValueError(
            "Expected different sources, each with a ledger or a part of one for itself, got "
            "two that share one. Open a ledger for each."
        )
    if len({one.relation for one in single if declares(one)}) > 1:
        raise ValueError(
            "Expected sources that protect under one relation, got add-remove and replace-one. "
            "Leave out those of one of them: their answers do not add up to one guarantee."
        )


def _singles(sources: Iterable[object]) -> Iterator[object]:
    """Those that are no pool, in pools inside as well."""
    for one in sources:
        if isinstance(one, Pool):
            yield from _singles(one.sources)
        else:
            yield one


def _numbered(request: str | None, i: int) -> str | None:
    """Id of the request to one source of several."""
    return None if request is None else f"{request}/{i}"

"""Several sources that are asked many things, all of which the same ones have answered."""

from collections.abc import Mapping, Sequence

from veracal.privacy import PooledRelease, Release, Source
from veracal.privacy.answers.judging import Wanted
from veracal.privacy.answers.pooling import AnswersByRound, Path, Several


class SameSources(AnswersByRound):
    """A pool in which whoever was silent once stays silent: map, guard and figures agree.

    Parameters
    ----------
    source : Several
    silent : mapping of path to str
        Who is not asked from the beginning, and why.

    Guarantees
    ----------
    It asks the source and nobody else. Adding again over fewer sources is made of released
    answers, and costs nothing.
    """

    def __init__(self, source: Several, silent: Mapping[Path, str]) -> None:
        self.source, self.silent = source, dict(silent)

    def round(
        self,
        wanted: Wanted,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""
        left_out = {**self.silent, **(silent or {})}
        release = self.source.round(wanted, request=request, silent=left_out)
        self.silent = {**left_out, **release.silent()}
        return release

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return self.source.paths()


def added_over(source: Source, release: Release) -> Release:
    """An answer that was given before, of those alone that are still in the cohort."""
    if isinstance(source, SameSources) and isinstance(release, PooledRelease):
        return release.without(source.silent)
    return release


def silences(source: Source) -> tuple[str | None, ...]:
    """Why each single source was silent, None for those that answered everything."""
    if not isinstance(source, SameSources):
        return (None,)
    return tuple(_why(path, source.silent) for path in source.paths())


def _why(path: Sequence[int], silent: Mapping[Path, str]) -> str | None:
    """Why a source was silent, or a pool that it is in."""
    ends = (tuple(path[:length]) for length in range(1, len(path) + 1))
    return next((silent[end] for end in ends if end in silent), None)

"""The errors a caller may want to catch."""


class VeracalError(Exception):
    """Root of every error Veracal raises on purpose."""


class DataError(VeracalError, ValueError):
    """A file, a table or an array is not what was declared.

    Parameters
    ----------
    where : str
        File, column or argument that is wrong, as the caller knows it.
    expected, found : str
        What was declared or is allowed, and what was there instead.
    remedy : str
        What the caller can do about it: one or two full sentences.

    Examples
    --------
    >>> print(DataError("age", "a number", "'old'", "Correct the record."))
    age: expected a number, found 'old'. Correct the record.
    """

    def __init__(self, where: str, expected: str, found: str, remedy: str) -> None:
        super().__init__(where, expected, found, remedy)
        self.where, self.expected, self.found, self.remedy = where, expected, found, remedy

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}. {self.remedy}"


class SchemaError(DataError):
    """A schema contradicts itself, or says something that cannot be meant."""


class LimitError(DataError):
    """An input is larger than the limits allow; nothing of it was kept."""


class BudgetError(VeracalError):
    """A charge does not fit into what is left; nothing was charged and no record was read."""


class ConflictError(VeracalError):
    """A request id was used before, for another request; nothing was charged."""


class PrecisionError(VeracalError, RuntimeError):
    """Something lowered the precision of a private computation; its result was not used."""


class AnswerError(VeracalError):
    """An answer was paid for and could not be computed; asking again does not help."""


class SilentError(VeracalError):
    """A source did not answer, or of several sources too few did.

    Parameters
    ----------
    problem : str
        Full sentences, which tell nothing about records.
    silences : tuple of (str or None)
        Of several sources, in their order, why each of them was silent; None for one that
        answered.
    """

    def __init__(self, problem: str, silences: "tuple[str | None, ...]" = ()) -> None:
        super().__init__(problem, silences)
        self.problem, self.silences = problem, silences

    def __str__(self) -> str:
        return self.problem


class WaitingError(VeracalError):
    """Answers have to be carried by somebody first; what was asked stays asked.

    Parameters
    ----------
    problem : str
        Full sentences: what to carry where.
    sources : tuple of str
        Names of those who are waited for.
    """

    def __init__(self, problem: str, sources: "tuple[str, ...]" = ()) -> None:
        super().__init__(problem, sources)
        self.problem, self.sources = problem, sources

    def __str__(self) -> str:
        return self.problem


class TransportError(VeracalError):
    """Whoever carries requests and answers cannot be reached, or is not who it should be."""


class LedgerError(VeracalError):
    """A ledger is damaged, or cannot be used where it is.

    Attributes
    ----------
    problems : tuple of str
        Everything that was found, in full sentences.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return " ".join(self.problems)


class RunError(VeracalError):
    """A run of an audit could not be trained.

    Attributes
    ----------
    run : int or None
        Its number, where it has one.
    cause : str
        What was raised, as its class and its message.
    """

    def __init__(self, run: int | None, cause: str) -> None:
        super().__init__(run, cause)
        self.run, self.cause = run, cause

    def __str__(self) -> str:
        which = "A run" if self.run is None else f"Run {self.run}"
        return (
            f"{which} could not be trained: {self.cause.rstrip('.')}. With keep, runs that "
            "finished before are kept: correct the model or the records, and audit again."
        )


class WorkerError(VeracalError):
    """A worker or a cluster is not there, or no longer."""


class MissingExtraError(VeracalError, ImportError):
    """An optional dependency is not installed."""

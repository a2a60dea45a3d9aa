"""Exceptions that callers may catch."""


class VeracalError(Exception):
    """Base class of all errors that Veracal raises deliberately."""


class DataError(VeracalError, ValueError):
    """A file, a table or an array violates its declaration.

    Parameters
    ----------
    where : str or path
        File, column or argument, as the caller named it.
    expected, found : str
        Declared or allowed value, and the actual one.
    remedy : str
        What the caller can do: one or two full sentences.

    Examples
    --------
    >>> print(DataError("age", "a number", "'old'", "Correct the record."))
    age: expected a number, found 'old'. Correct the record.
    """

    def __init__(self, where: object, expected: str, found: str, remedy: str) -> None:
        super().__init__(str(where), expected, found, remedy)
        self.where, self.expected, self.found, self.remedy = self.args

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}. {self.remedy}"


class SchemaError(DataError):
    """A schema is inconsistent or has an invalid declaration."""


class LimitError(DataError):
    """An input exceeds the limits; nothing of it was kept."""


class BudgetError(VeracalError):
    """A charge exceeds the remaining budget; nothing was charged and no record was read."""


class ConflictError(VeracalError):
    """A request id was already used for another request; nothing was charged."""


class PrecisionError(VeracalError, RuntimeError):
    """The precision of a private computation was reduced; its result was not used."""


class AnswerError(VeracalError):
    """A query was charged and could not be answered; repeating it does not help."""


class DropoutError(VeracalError):
    """A source did not respond, or too few of several sources did.

    Parameters
    ----------
    problem : str
        Full sentences that reveal nothing about records.
    dropouts : tuple of (str or None)
        Reason for each of several sources, in their order, why it did not respond; None for
        one that did.
    """

    def __init__(self, problem: str, dropouts: "tuple[str | None, ...]" = ()) -> None:
        super().__init__(problem, dropouts)
        self.problem, self.dropouts = problem, dropouts

    def __str__(self) -> str:
        return self.problem


class PendingError(VeracalError):
    """Responses have not arrived yet; the requests remain open.

    Parameters
    ----------
    problem : str
        Full sentences: which files to transfer where.
    sources : tuple of str
        Names of the sources without a response.
    """

    def __init__(self, problem: str, sources: "tuple[str, ...]" = ()) -> None:
        super().__init__(problem, sources)
        self.problem, self.sources = problem, sources

    def __str__(self) -> str:
        return self.problem


class TransportError(VeracalError):
    """The transport cannot be reached, or fails authentication."""


class LedgerError(VeracalError):
    """A ledger is damaged, or cannot be used at its location.

    Attributes
    ----------
    problems : tuple of str
        All problems, in full sentences.
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
        Its number, if it has one.
    cause : str
        Class and message of the exception.
    """

    def __init__(self, run: int | None, cause: str) -> None:
        super().__init__(run, cause)
        self.run, self.cause = run, cause

    def __str__(self) -> str:
        which = "A run" if self.run is None else f"Run {self.run}"
        return (
            f"{which} could not be trained: {self.cause.rstrip('.')}. With keep, runs that "
            "finished before are kept: correct the model or the records, and repeat the audit."
        )


class WorkerError(VeracalError):
    """A worker or a cluster is not available, or no longer."""


class MissingExtraError(VeracalError, ImportError):
    """An optional dependency is not installed."""

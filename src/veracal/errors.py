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


class FetchError(DataError):
    """A public data set could not be fetched, or is not the one expected."""


class MissingExtraError(VeracalError, ImportError):
    """An optional dependency is not installed."""

"""The next piece of a file, read while the present one is worked on."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterable[T]) -> Generator[T]:
    """Take items from an iterable on a second thread, one ahead of whoever wants them.

    It pays where making an item lets go of the interpreter, as Arrow does. Whoever stops early
    closes the generator, which waits for the item that is being made: when it is closed, no
    thread is left that would touch the file.

    Raises
    ------
    BaseException
        Whatever the iterable raises, after the items that came before it.
    """
    source = iter(items)
    del items
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        try:
            coming = thread.submit(next, source, _END)
            while (item := coming.result()) is not _END:
                coming = thread.submit(next, source, _END)
                yield item  # type: ignore[misc]
        finally:
            del source

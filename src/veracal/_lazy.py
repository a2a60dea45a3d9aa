"""Public names of a package that are imported when they are first used (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    The names and their modules are those that the package imports under ``TYPE_CHECKING``, so
    that type checkers and the interpreter read the same list. It is read from the package's
    source when a name is first used, which takes a millisecond.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    """

    @cache
    def modules() -> dict[str, str]:
        return type_checking_imports(package)

    def getattr_(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules()[name]), name)
        setattr(sys.modules[package], name, value)  # __getattr__ is not called again
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules()})

    return getattr_, dir_


def type_checking_imports(package: str) -> dict[str, str]:
    """Names that a package imports under ``TYPE_CHECKING``, and the modules they come from."""
    loader: Any = getattr(find_spec(package), "loader", None)
    source = loader.get_source(package)
    if source is None:
        raise ImportError(f"The source of {package} is needed: install it with its .py files.")
    return {
        alias.name: statement.module or ""
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        and isinstance(block.test, ast.Name)
        and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

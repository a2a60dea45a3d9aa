"""Public names of a package that are imported when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, exports: Mapping[str, str | tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    exports : Mapping of str to str or tuple of str
        The public names that the package takes from each of its modules or sub-packages. A text
        separates them by blanks.
    """
    modules = {
        name: module
        for module, names in exports.items()
        for name in (names.split() if isinstance(names, str) else names)
    }

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # __getattr__ is not called again
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return getattr_, dir_

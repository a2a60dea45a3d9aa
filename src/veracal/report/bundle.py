"""The script that draws: Vega, Vega-Lite and vega-embed, made once and kept."""

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from veracal._checks import extra
from veracal.artifact.folder import read_file
from veracal.data.files import placed
from veracal.data.places import cache_folder, private_folder
from veracal.errors import VeracalError

_MOST = 16 * 2**20  # bytes; it has less than one million


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script.

    To make it takes seconds, so that it is kept in the user's cache, in a folder that nobody
    else can enter, under a name with its hash. Where that cannot be, it is made each time.

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.
    """
    maker = extra("vl_convert", "report")
    name = f"vega-{maker.__version__}"
    made = kept(name)
    if made is None:
        made = str(maker.javascript_bundle())
        keep(name, made)
    # Inside a script element these two would end it, or hide its end.
    if "</script" in made.lower() or "<!--" in made:
        raise ValueError(f"Expected a script that can stand in a page, got {name} with a tag.")
    return made


def kept(name: str) -> str | None:
    """A script of that name whose bytes are those it was kept with; None if there is none."""
    with suppress(VeracalError, OSError):
        folder = private_folder(_place())
        for path in folder.glob(f"{name}-*.js"):
            content = read_file(folder, path.name, _MOST)
            if path.name == _named(name, content):
                return content.decode()
    return None


def keep(name: str, text: str) -> None:
    """Keep a script for the next time, if there is a place for it."""
    content = text.encode()
    with (
        suppress(VeracalError, OSError),
        placed(private_folder(_place()) / _named(name, content), force=True) as file,
    ):
        file.write(content)


def _named(name: str, content: bytes) -> str:
    """The name of a file that holds a script."""
    return f"{name}-{hashlib.sha256(content).hexdigest()}.js"


def _place() -> Path:
    """Where scripts are kept."""
    return cache_folder() / "scripts"

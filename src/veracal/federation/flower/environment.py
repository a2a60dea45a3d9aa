"""What Flower is told before it starts: call nobody, install nothing, stay in your folder."""

import os
from pathlib import Path

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(home: Path) -> dict[str, str]:
    """Variables for a program of Flower's.

    Whatever the caller's environment says to Flower is left out: some of its variables open
    further ports.

    Parameters
    ----------
    home : path
        Where Flower may write. Even with telemetry off it keeps an identity there.

    Returns
    -------
    dict
        The caller's variables without Flower's own, and ours.
    """
    kept = {name: value for name, value in os.environ.items() if not _is_flowers(name)}
    return kept | OFF | {"FLWR_HOME": str(home.absolute())}


def switch_off(home: Path) -> None:
    """Tell Flower the same in this program, before the first of its modules is imported."""
    for name in [name for name in os.environ if _is_flowers(name)]:
        del os.environ[name]
    os.environ.update(OFF, FLWR_HOME=str(home.absolute()))


def _is_flowers(name: str) -> bool:
    """Whether a variable speaks to Flower."""
    return name.startswith("FLWR_")

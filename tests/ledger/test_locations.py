"""The default ledger of a data set is one file, independent of the working directory."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from veracal.accounting import Budget
from veracal.errors import DataError, LedgerError
from veracal.ledger import default_ledger_path, open_ledger
from veracal.ledger import locations as places


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERACAL_LEDGERS", str(tmp_path / "ledgers"))
    Path("visits.csv").write_text("a,b\n1,2\n")
    return tmp_path / "ledgers"


def test_a_file_has_one_ledger_for_all_its_paths(folder, tmp_path):
    path = default_ledger_path("visits.csv")
    assert path.parent == folder
    assert path.name.startswith("visits-") and path.suffix == ".ledger"
    assert len(path.stem) == len("visits-") + 16
    Path("link.csv").symlink_to("visits.csv")
    Path("sub").mkdir()
    for same in (tmp_path / "visits.csv", "./sub/../visits.csv", "link.csv"):
        assert default_ledger_path(same) == path
    Path("other").mkdir()
    Path("other/visits.csv").write_text("")
    assert default_ledger_path("other/visits.csv") != path
    assert default_ledger_path("other").name.startswith("other-")


def test_a_hard_link_has_the_ledger_of_its_file(folder, tmp_path):
    place = default_ledger_path("visits.csv")
    Path("hard.csv").hardlink_to("visits.csv")
    assert default_ledger_path("hard.csv") != place  # nothing was opened yet
    places.open_ledger_for_data(place, Budget(1.0), "visits.csv")
    assert default_ledger_path("hard.csv") == default_ledger_path("visits.csv") == place
    assert places.resolve_ledger("hard.csv") == place
    Path("copy.csv").write_bytes(Path("visits.csv").read_bytes())
    assert default_ledger_path("copy.csv") != place  # a copy is a separate data set
    Path("visits.csv").unlink()
    assert default_ledger_path("hard.csv") != place  # its path is all that was known


def test_a_folder_of_arrays_and_its_matrix_have_one_ledger():
    Path("arrays").mkdir()
    Path("arrays/X.npy").touch()
    assert default_ledger_path("arrays/X.npy") == default_ledger_path("arrays")
    assert places.display_name("arrays/X.npy") == "arrays"


def test_a_built_in_data_set_has_a_ledger_by_name(folder):
    assert default_ledger_path("wine") == folder / "builtin-wine.ledger"
    with pytest.raises(LedgerError, match="no such file"):
        default_ledger_path("wines")


def test_the_folder_is_private_to_its_owner(folder):
    old = os.umask(0)
    try:
        default_ledger_path("wine")
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o750)
    with pytest.raises(LedgerError, match="chmod 700"):
        default_ledger_path("wine")


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("VERACAL_LEDGERS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_ledger_path("wine").parent == tmp_path / "data" / "veracal" / "ledgers"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        local = tmp_path / ".local" / "share" / "veracal" / "ledgers"
        assert default_ledger_path("wine").parent == local


def test_an_error_names_a_folder_that_cannot_be_created(monkeypatch):
    monkeypatch.setenv("VERACAL_LEDGERS", str(Path("visits.csv").absolute() / "x"))
    with pytest.raises(LedgerError, match="VERACAL_LEDGERS"):
        default_ledger_path("wine")


def test_the_path_of_the_data_is_beside_the_ledger_and_not_in_it(tmp_path):
    ledger = open_ledger(default_ledger_path("visits.csv"), Budget(1.0), data="visits.csv")
    places.write_data_path(ledger.path, "visits.csv")
    assert places.read_data_path(ledger.path) == str(tmp_path / "visits.csv")
    (beside,) = [path for path in ledger.path.parent.iterdir() if path != ledger.path]
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    assert str(tmp_path).encode() not in ledger.path.read_bytes()
    assert list(places.list_default_ledgers()) == [ledger.path]
    beside.write_text("[")
    assert places.read_data_path(ledger.path) is None


def test_a_ledger_opened_for_data_always_has_its_path(tmp_path, monkeypatch):
    """After a kill at any time, there is no ledger, or one with the path of its data."""
    place = default_ledger_path("visits.csv")
    written = []

    def note(ledger, data):
        written.append(os.path.lexists(ledger))
        real(ledger, data)

    real = places.write_data_path
    monkeypatch.setattr(places, "write_data_path", note)
    places.open_ledger_for_data(place, Budget(1.0), "visits.csv")
    assert written == [False] and places.read_data_path(place) == str(tmp_path / "visits.csv")


KILLED = """
import os, signal
from veracal.accounting import Budget
from veracal.ledger import default_ledger_path
from veracal.ledger import locations as places

places.open_ledger = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
places.open_ledger_for_data(default_ledger_path("visits.csv"), Budget(1.0), "visits.csv")
"""


def test_a_killed_opening_can_be_repeated(tmp_path):
    place = default_ledger_path("visits.csv")
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert places.read_data_path(place) is not None and not place.exists()
    assert list(places.list_default_ledgers()) == []
    ledger = places.open_ledger_for_data(place, Budget(1.0), "visits.csv")
    assert ledger.opening.data == "visits.csv"
    assert places.read_data_path(place) == str(tmp_path / "visits.csv")


def test_a_rejected_opening_leaves_no_file_and_no_change():
    place = default_ledger_path("visits.csv")
    with pytest.raises(ValueError, match="kind"):
        places.open_ledger_for_data(place, Budget(1.0), "visits.csv", kind="other")
    assert list(place.parent.iterdir()) == []
    places.open_ledger_for_data(place, Budget(1.0), "visits.csv")
    noted = places.read_data_path(place)
    Path("other.csv").touch()
    with pytest.raises(DataError, match="a new"):
        places.open_ledger_for_data(place, Budget(1.0), "other.csv")
    assert places.read_data_path(place) == noted


def test_the_path_of_the_data_is_restored_only_for_that_data(tmp_path):
    ledger = open_ledger(default_ledger_path("visits.csv"), Budget(1.0), data="visits.csv")
    Path("other.csv").touch()
    places.restore_data_path(ledger, "other.csv")
    assert places.read_data_path(ledger.path) is None
    places.restore_data_path(ledger, "visits.csv")
    assert places.read_data_path(ledger.path) == str(tmp_path / "visits.csv")


def test_a_ledger_is_resolved_from_its_file_or_its_data():
    with pytest.raises(LedgerError, match="has no ledger yet"):
        places.resolve_ledger("visits.csv")
    ledger = open_ledger(default_ledger_path("visits.csv"), Budget(1.0))
    named = open_ledger("mine.db", Budget(1.0))
    assert places.resolve_ledger("visits.csv") == ledger.path
    assert places.resolve_ledger("mine.db") == Path("mine.db")
    assert places.resolve_ledger("gone") == Path("gone")
    assert named.verify() == named.head


@pytest.mark.parametrize(
    ("given", "expected"), [("visits.csv", "visits.csv"), ("wine", "wine"), ("/", "data")]
)
def test_display_names_of_data_sets(given, expected):
    assert places.display_name(given) == expected

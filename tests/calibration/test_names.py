"""Every public name of the room is there, and what is heavy comes only when it is asked for."""

import subprocess
import sys

import pytest

import veracal.calibration


def test_every_name_is_there():
    assert list(veracal.calibration.__all__) == sorted(set(veracal.calibration.__all__))
    for name in veracal.calibration.__all__:
        assert getattr(veracal.calibration, name).__name__ == name
        assert name in dir(veracal.calibration)
    assert set(veracal.calibration._LATE) < set(veracal.calibration.__all__)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = veracal.calibration.nothing


def test_whoever_measures_brings_no_accounting_along():
    code = (
        "import sys, veracal.calibration as room\nroom.measure, room.stream_totals\n"
        "heavy = {'opendp', 'dp_accounting', 'veracal.queries'} & set(sys.modules)\n"
        "room.PrivateTemperature\n"
        "sys.exit(', '.join(heavy) or 'opendp' not in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

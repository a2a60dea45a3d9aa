"""The log of refusals is bounded, printable, and in order."""

from pathlib import Path

from veracal.federation.source.folder import MAX_LINES, RefusalLog


def test_a_reason_is_stored_as_one_printable_line(tmp_path: Path):
    log = RefusalLog(tmp_path / "log")
    assert log.lines() == []
    log.add("first\nsecond\x1b[2J\u2028 " + "x" * 1_000)
    ((when, why),) = log.lines()
    assert when[4] == "-" and why.startswith("first second?[2J") and len(why) == 400
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_only_the_latest_refusals_are_stored(tmp_path: Path):
    log = RefusalLog(tmp_path / "log")
    for number in range(MAX_LINES + 500):
        log.add(f"reason number {number:05d} in some words more")
    lines = (tmp_path / "log").read_text().splitlines()
    assert MAX_LINES <= len(lines) <= MAX_LINES + 200
    assert log.lines()[-1][1].startswith("reason number 01499")
    assert len(log.lines()) == MAX_LINES

"""A rollback of a ledger is detected by its heads, by copies elsewhere, or by a request."""

import shutil
from pathlib import Path

import pytest

from tests.federation.source.enrolled import EnrolledSource, declaration, make_source, scores
from veracal.accounting import Budget
from veracal.errors import DataError, LedgerError
from veracal.federation.source.enrolling import enroll, propose, revoke
from veracal.federation.source.enrollment import find_problems, read_enrollment
from veracal.federation.source.folder import RollbackError, create_source, read_source

INVERSE = {"inverse": 1 << 16}


def copied(ledger: Path, to: Path) -> Path:
    """A copy of a ledger that is not being written."""
    return Path(shutil.copy(ledger, to))


def put_back(copy: Path, ledger: Path) -> None:
    """Restore a copy, as a backup does."""
    for ending in ("-wal", "-shm"):
        Path(f"{ledger}{ending}").unlink(missing_ok=True)
    shutil.copy(copy, ledger)


def test_an_older_ledger_is_refused_until_the_right_one_is_restored(
    north: EnrolledSource, tmp_path: Path
):
    ledger = north.folder / "spent.ledger"
    north.ask()
    old = copied(ledger, tmp_path / "old")
    north.ask("bins")
    new = copied(ledger, tmp_path / "new")
    put_back(old, ledger)
    for server in (north.server, north.reopened().server):
        assert server.reply(north.raw("gap", argument=INVERSE)) == server.refusal
        assert "older copy of spent.ledger was restored: it lacks entry 2" in north.why
        assert server.reply(north.raw()) == server.refusal  # what it has answered, neither
    assert len(north.ledger.entries()) == 1
    put_back(new, ledger)
    assert north.ask("gap", argument=INVERSE).head.index == 3


def test_a_fresh_ledger_in_place_of_a_used_one_is_refused(
    north: EnrolledSource, tmp_path: Path
):
    old = copied(north.folder / "spent.ledger", tmp_path / "old")
    north.ask()
    put_back(old, north.folder / "spent.ledger")
    assert north.reopened().server.reply(north.raw("bins")) == north.server.refusal


def test_a_rollback_of_the_folder_is_detected_by_the_external_heads(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    north = make_source(tmp_path / "north", heads=elsewhere)
    north.ask()
    shutil.copytree(north.path, tmp_path / "backup")
    north.ask("bins")
    shutil.rmtree(north.path)
    shutil.copytree(tmp_path / "backup", north.path)
    assert north.reopened().server.reply(north.raw("bins-paper")) == north.server.refusal
    assert "lacks entry 2" in north.why


def test_a_rollback_of_the_folder_is_detected_by_a_quoted_head(tmp_path: Path):
    north = make_source(tmp_path / "north")
    north.ask()
    shutil.copytree(north.path, tmp_path / "backup")
    head = north.ask("bins").head
    shutil.rmtree(north.path)
    shutil.copytree(tmp_path / "backup", north.path)
    again = north.reopened()
    assert again.server.reply(north.raw("bins-paper", head=head)) == north.server.refusal
    assert "lacks entry 2" in north.why
    # And from now on also without it, after a restart too.
    assert again.server.reply(north.raw("bins-paper")) == north.server.refusal
    assert again.reopened().server.reply(north.raw("bins-paper")) == north.server.refusal


@pytest.mark.parametrize("quoting", [True, False])
def test_an_open_server_records_a_rollback_for_later_servers(tmp_path: Path, quoting: bool):
    north = make_source(tmp_path / "north")
    north.ask()
    shutil.copytree(north.path, tmp_path / "backup")
    head = north.ask("bins").head
    shutil.rmtree(north.path)
    shutil.copytree(tmp_path / "backup", north.path)
    raw = north.raw("bins-paper", head=head if quoting else None)
    for _ in range(3):
        assert north.server.reply(raw) == north.server.refusal
    assert north.reopened().server.reply(north.raw("bins-paper")) == north.server.refusal
    assert len((north.folder / "heads").read_text().splitlines()) == 2


def test_a_quoted_head_with_an_invalid_signature_is_refused_and_not_stored(
    north: EnrolledSource,
):
    head = north.ask().head
    forged = type(head)(head.source, 9, "f" * 64, head.hash, head.signature)
    assert north.server.reply(north.raw("bins", head=forged)) == north.server.refusal
    assert "did not sign" in north.why
    assert north.ask("bins").head.index == 2


def test_incomplete_foreign_and_forged_heads_are_ignored(north: EnrolledSource):
    head = north.ask().head
    path = north.folder / "heads"
    forged = path.read_text().replace('"index":1', '"index":5')
    rubbish = (b"\xff\n", b"[]\n", b"5\n", b"{}\n", b"x" * 9_000 + b"\n", b'{"source":1}\n')
    with path.open("ab") as file:
        file.write(forged.encode() + b"".join(rubbish) + b'{"hash":"torn')
    again = north.reopened()
    assert again.ask("bins").head.index == 2
    assert again.reopened().ask("bins-paper").head.previous != head.hash
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("which", ["inside", "elsewhere"])
def test_without_a_file_of_heads_all_requests_are_refused(tmp_path: Path, which: str):
    elsewhere = tmp_path / "elsewhere"
    north = make_source(tmp_path / "north", heads=elsewhere)
    gone = north.folder / "heads" if which == "inside" else elsewhere
    kept = gone.read_bytes()
    gone.unlink()
    assert north.server.reply(north.raw()) == north.server.refusal
    assert "Mount or restore it" in north.why and not north.ledger.entries()
    gone.write_bytes(kept)
    assert north.ask().units


def test_several_sources_can_share_an_external_file_of_heads(tmp_path: Path):
    elsewhere = tmp_path / "heads"
    one, two = (make_source(tmp_path / name, heads=elsewhere) for name in ("one", "two"))
    for source in (one, two, one):
        source.ask()
    assert len(elsewhere.read_text().splitlines()) == 4  # two enrollments, two answers


def test_a_rollback_of_the_institutions_ledger_prevents_enrollment(tmp_path: Path):
    folder = tmp_path / "north"
    create_source(folder, "North", Budget(1.5))
    old = copied(folder / "shares.ledger", tmp_path / "old")
    enroll(folder, scores(), declaration())
    put_back(old, folder / "shares.ledger")
    with pytest.raises(RollbackError, match="older copy of shares.ledger"):
        propose(folder, scores(), declaration())


def test_a_revocation_survives_a_rollback_of_the_folder(tmp_path: Path):
    north = make_source(tmp_path / "north", heads=tmp_path / "elsewhere")
    north.ask()
    shutil.copytree(north.path, tmp_path / "backup")
    source = read_source(north.path)
    enrollment = read_enrollment(source, north.terms.source)
    revoke(source, enrollment)
    revoke(source, enrollment)
    assert list(find_problems(source, enrollment)) == []
    shutil.rmtree(north.path)
    shutil.copytree(tmp_path / "backup", north.path)
    assert north.reopened().server.reply(north.raw()) == north.server.refusal
    assert "was revoked" in north.why
    (problem,) = find_problems(source, enrollment)
    assert "an older copy was restored" in problem


def test_the_external_file_of_heads_must_lie_outside_of_the_folder(tmp_path: Path):
    with pytest.raises(DataError, match="outside of the source's folder"):
        create_source(tmp_path / "n", "North", Budget(1.0), heads=tmp_path / "n" / "heads2")
    with pytest.raises(DataError, match="no such folder"):
        create_source(tmp_path / "n", "North", Budget(1.0), heads=tmp_path / "no" / "heads")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", Path("/dev/full")):
        with pytest.raises(LedgerError, match="cannot be used"):
            create_source(tmp_path / "n", "North", Budget(1.0), heads=place)
    assert not (tmp_path / "n").exists()

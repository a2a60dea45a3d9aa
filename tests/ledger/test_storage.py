"""A ledger's file is whole, private and guarded, and says so when it is not."""

import os
import random
import resource
import shutil
import sqlite3
import stat
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from veracal.accounting.events import Budget, Gaussian, Pure
from veracal.errors import BudgetError, DataError, LedgerError
from veracal.ledger import storage as filesystems
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.ledger.policies import Item
from veracal.ledger.storage import check_local, file_system_type


@pytest.fixture
def ledger(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0), partitions=("train", "test"))
    ledger.charge(Pure(0.1), "first", partition="train")
    ledger.answer(Pure(0.2), "second", lambda: b"answer", request="r", body=b"?")
    ledger.charge(Pure(0.3), "third")
    return ledger


def sql(path, *statements):
    """Run statements on the file behind the ledger's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements]


# ---------------------------------------------------------------- making one


def test_a_new_ledger_is_complete_and_private_to_its_owner(tmp_path):
    old = os.umask(0)
    try:
        ledger = open_ledger(tmp_path / "ledger", Budget(1.0))
        ledger.charge(Pure(0.1), "x")
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_the_log_is_private_and_synchronized(ledger):
    def compute():
        log = Path(f"{ledger.path}-wal")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        return b""

    ledger.answer(Pure(0.1), "x", compute, request="x", body=b"")
    with ledger_store.reading(ledger.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_no_file_is_overwritten_and_no_log_is_replayed(tmp_path, ending):
    path = tmp_path / f"ledger{ending}"
    path.write_text("here before")
    with pytest.raises(DataError, match="expected a new file"):
        open_ledger(tmp_path / "ledger", Budget(1.0))
    assert path.read_text() == "here before" and len(list(tmp_path.iterdir())) == 1


def test_a_broken_link_counts_as_an_existing_file(tmp_path):
    (tmp_path / "ledger").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="expected a new file"):
        open_ledger(tmp_path / "ledger", Budget(1.0))


def test_of_several_openings_one_succeeds(tmp_path):
    opened, refused = [], []

    def attempt():
        try:
            opened.append(open_ledger(tmp_path / "ledger", Budget(1.0)).head)
        except DataError:
            refused.append(1)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1 and len(refused) == 7
    assert Ledger(tmp_path / "ledger").head == opened[0]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_creation_leaves_no_file(tmp_path, monkeypatch):
    def stop(self, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(LedgerError, match="Input/output error"):
        open_ledger(tmp_path / "ledger", Budget(1.0))
    assert not list(tmp_path.iterdir())


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(DataError, match="a folder that exists"):
        open_ledger(tmp_path / "gone" / "ledger", Budget(1.0))


# ---------------------------------------------------------------- what is no ledger


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text").write_text("no database " * 1000)
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    sql(tmp_path / "other", "CREATE TABLE t (x)")
    for name, words in {
        "gone": "does not exist",
        "text": "not a database",
        "empty": "another database",
        "folder": "expected a regular file",
        "other": "another database",
    }.items():
        with pytest.raises(LedgerError, match=words):
            Ledger(tmp_path / name)
    assert not (tmp_path / "gone").exists()
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_second_name_is_rejected(ledger, tmp_path):
    (tmp_path / "link").symlink_to(ledger.path)
    with pytest.raises(LedgerError, match="found a link"):
        Ledger(tmp_path / "link")
    (tmp_path / "hard").hardlink_to(ledger.path)
    for name in ("hard", "ledger"):
        with pytest.raises(LedgerError, match="Use the file itself"):
            Ledger(tmp_path / name)


def test_another_format_is_rejected(ledger):
    sql(ledger.path, "PRAGMA user_version = 3")
    with pytest.raises(LedgerError, match="expected a ledger of format 2, found format 3"):
        ledger.charge(Pure(0.1), "x")


def test_another_journal_mode_is_rejected(ledger):
    sql(ledger.path, "PRAGMA journal_mode = DELETE")
    with pytest.raises(LedgerError, match="journal_mode=delete and synchronous=2"):
        ledger.charge(Pure(0.1), "x")


def test_settings_are_verified(ledger, monkeypatch):
    connect = ledger_store.connect

    @contextmanager
    def careless(path, *settings):
        with connect(path, *settings) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            yield connection

    monkeypatch.setattr(ledger_store, "connect", careless)
    with pytest.raises(LedgerError, match="journal_mode=wal and synchronous=1"):
        ledger.charge(Pure(0.1), "x")


def test_attached_databases_are_rejected(ledger, monkeypatch):
    connect = ledger_store.connect

    @contextmanager
    def attached(path, *settings):
        with connect(path, *settings) as connection:
            connection.execute("ATTACH DATABASE ':memory:' AS another")
            yield connection

    monkeypatch.setattr(ledger_store, "connect", attached)
    with pytest.raises(LedgerError, match="others attached"):
        ledger.charge(Pure(0.1), "x")


# ---------------------------------------------------------------- file systems

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /mnt rw shared:13 master:2 - nfs4 host:/export rw,vers=4.2
31 30 8:2 / /mnt/local rw - xfs /dev/sdb rw
32 22 0:30 / /data rw - ext4 /dev/sdc rw
33 32 0:31 / /data rw - fuse.sshfs host: rw
34 22 0:32 / /my\040disk rw - cifs //host/share rw
35 22 8:3 / /windows rw - fuseblk /dev/sdd rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/mnt", "nfs4"),
        ("/mnt/a/b", "nfs4"),
        ("/mnt/local/a", "xfs"),
        ("/mnt/localized", "nfs4"),
        ("/mntx", "ext4"),
        ("/data/x", "fuse.sshfs"),  # mounted over what was there
        ("/my disk/x", "cifs"),
        ("/windows", "fuseblk"),
    ],
)
def test_the_deepest_and_last_mount_decides(path, kind):
    assert file_system_type(path, MOUNTS) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "ceph",
        "lustre",
        "afs",
        "glusterfs",
        "fuse.sshfs",
        "fuse",
        "virtiofs",
    ],
)
def test_shared_file_systems_are_rejected(tmp_path, monkeypatch, kind):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0))
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / / rw - {kind} host rw\n")
    monkeypatch.setattr(filesystems, "_MOUNTS", mounts)
    with pytest.raises(LedgerError, match=f"expected a local file system, found {kind}"):
        open_ledger(tmp_path / "another", Budget(1.0))
    with pytest.raises(LedgerError, match="a budget could be spent twice"):
        ledger.charge(Pure(0.1), "x")  # moved there after its creation
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_file_systems_are_accepted(tmp_path, monkeypatch, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / / rw - {kind} host rw\n")
    monkeypatch.setattr(filesystems, "_MOUNTS", mounts)
    check_local(tmp_path)
    # It was checked, not overlooked.
    assert file_system_type(str(tmp_path), mounts.read_text()) == kind
    monkeypatch.setattr(filesystems, "_MOUNTS", tmp_path / "no such list")
    check_local(tmp_path)


# ---------------------------------------------------------------- when the system says no


def child(work):
    """Run work in a separate process, and return its output."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as file:
        return file.read()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_full_disk_loses_nothing(ledger):
    before = ledger.entries()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        try:
            ledger.answer(Pure(0.1), "x", lambda: bytes(100_000), request="x", body=b"")
        except LedgerError as error:
            return str(error)
        return "granted"

    assert "Nothing was released" in child(work)
    assert ledger.entries() == before and ledger.verify()
    ledger.answer(Pure(0.1), "x", lambda: bytes(100_000), request="x", body=b"")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_read_only_ledger_is_reported(ledger):
    ledger.path.chmod(0o444)
    ledger.path.parent.chmod(0o555)

    def work():
        if os.geteuid() == 0:
            # Another user must be able to reach the folder of the test.
            for folder in ledger.path.parents:
                if folder.stat().st_mode & 0o011 != 0o011:
                    folder.chmod(0o755)
            os.setgroups([])
            os.setuid(65_534)
        try:
            ledger.charge(Pure(0.1), "x")
        except LedgerError as error:
            return str(error)
        return "granted"

    said = child(work)
    ledger.path.parent.chmod(0o755)
    ledger.path.chmod(0o600)
    assert "Give its owner write permission" in said
    assert len(ledger.entries()) == 3


def test_a_permanent_lock_is_reported(ledger, monkeypatch):
    monkeypatch.setattr(ledger_store, "BUSY_TIMEOUT", 0.1)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="locked.* try again"):
            ledger.charge(Pure(0.1), "x")
    assert len(ledger.entries()) == 3


# ---------------------------------------------------------------- tampering

COLUMNS = (
    "id, record, hash, scope, request, run, account, filter, cost, cost_delta, outcome, "
    "settles, adds, answer"
)


def entry(
    number="4",
    request="NULL",
    account="NULL",
    filter="1",
    cost="0",
    delta="0",
    outcome="'charged'",
    settles="NULL",
    adds="0",
):
    """A statement that inserts an entry, without a record that would mean anything."""
    values = (
        f"{number}, '', '', 0, {request}, NULL, {account}, {filter}, {cost}, {delta}, "
        f"{outcome}, {settles}, {adds}, NULL"
    )
    return f"INSERT INTO entries ({COLUMNS}) VALUES ({values})"


ACCOUNT = "INSERT INTO accounts (name, filter, entry, total, total_delta) VALUES "

FORBIDDEN = {
    "UPDATE accounts SET total = 9000000": "totals do not change",
    "UPDATE accounts SET spent = 0": "nothing is given back",
    "UPDATE accounts SET spent = 1000001": "CHECK constraint",
    "UPDATE accounts SET name = 'x' WHERE name = 'test'": "totals do not change",
    "UPDATE accounts SET filter = 2": "totals do not change",
    "UPDATE accounts SET entry = 1": "totals do not change",
    "DELETE FROM accounts": "accounts are not deleted",
    f"{ACCOUNT} ('x', 1, NULL, 9, 9)": "only added by an extension or a run",
    f"{ACCOUNT} ('x', 2, 3, 9, 9)": "only added by an extension or a run",
    f"{ACCOUNT} ('x', 2, 9, 9, 9)": "only added by an extension or a run",
    "UPDATE entries SET answer = x'00'": "entries do not change",
    "UPDATE entries SET cost = 1": "entries do not change",
    "DELETE FROM entries WHERE id = 3": "entries are not deleted",
    entry(number="9", cost="1"): "entries follow one another",
    entry(): "CHECK constraint",
    entry(cost="900000"): "CHECK constraint",
    entry(cost="-1", delta="2"): "CHECK constraint",
    entry(cost="0.5"): "CHECK constraint",
    entry(cost="1", filter="NULL"): "CHECK constraint",
    entry(cost="1", adds="1"): "CHECK constraint",
    entry(cost="1", settles="1"): "only a reservation or a run is settled",
    entry(settles="9"): "only a reservation or a run is settled",
    entry(request="'r'", cost="1"): "UNIQUE constraint",
    "UPDATE opening SET record = ''": "the opening does not change",
    "DELETE FROM opening": "the opening is not deleted",
    "INSERT INTO opening VALUES (2, '', '')": "CHECK constraint",
}


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_database_enforces_its_invariants(ledger, statement):
    head = ledger.head
    with pytest.raises(sqlite3.IntegrityError, match=FORBIDDEN[statement]):
        sql(ledger.path, statement)
    assert ledger.verify() == head


def test_an_entry_debits_its_account_in_the_same_statement(ledger):
    sql(ledger.path, entry(account="'test'", cost="7"))
    assert sql(ledger.path, "SELECT name, spent FROM accounts") == [
        [("test", 500_007), ("train", 600_000)]
    ]
    with pytest.raises(LedgerError, match="Entry 4 does not match its hash"):
        ledger.charge(Pure(0.1), "x")


def force(path, *statements):
    """Change a ledger like a knowledgeable attacker, without changing its triggers."""
    triggers = sql(path, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")[0]
    sql(
        path,
        "PRAGMA ignore_check_constraints = ON",
        *(f"DROP TRIGGER {name}" for name, _ in triggers),
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in (*statements, *(script for _, script in triggers)):
            connection.execute(statement)


FORGED = {
    "UPDATE accounts SET spent = 0 WHERE name = 'train'": "Account 'train' says",
    "UPDATE accounts SET total = 9000000": "Account 'test' does not have the total",
    "DELETE FROM accounts WHERE name = 'test'": "Account 'test' is missing",
    f"{ACCOUNT} ('new', 1, NULL, 9, 0)": "Account 'new' is not in the opening",
    "UPDATE accounts SET filter = 2 WHERE name = 'test'": "moved to another filter",
    "UPDATE entries SET answer = x'00' WHERE id = 2": "Entry 2: its answer does not match",
    "UPDATE entries SET answer = NULL WHERE id = 2": "Entry 2: its answer does not match",
    "UPDATE entries SET request = 'q' WHERE id = 2": "Entry 2: its columns do not match",
    "UPDATE entries SET cost = 1 WHERE id = 1": "Entry 1: its columns do not match",
    "UPDATE entries SET record = replace(record, 'first', 'worst')": (
        "Entry 1: its record does not match its hash"
    ),
    "UPDATE entries SET record = replace(record, '100000', '100') WHERE id = 1": (
        "it was charged 100 and costs 100000"
    ),
    "UPDATE entries SET record = 'x' WHERE id = 2": "Entry 2: An entry cannot be read",
    "UPDATE entries SET record = x'80' WHERE id = 2": "Entry 2",
    "UPDATE entries SET hash = 'x' WHERE id = 3": "Entry 3: its record does not match its hash",
    "DELETE FROM entries WHERE id = 2": "Entry 2: its number is 3",
    "DELETE FROM entries WHERE id = 3": "Account 'test' says",
    "UPDATE entries SET id = 9 WHERE id = 3": "Entry 3: its number is 9",
    "UPDATE opening SET record = replace(record, '1.0', '9.0')": "opening record does not",
    "DELETE FROM opening": "opening record does not match",
}


@pytest.mark.parametrize("statement", FORGED)
def test_every_change_is_detected_and_located(ledger, statement):
    force(ledger.path, statement)
    with pytest.raises(LedgerError, match=FORGED[statement]):
        Ledger.verify(ledger)


def test_removed_triggers_are_detected_at_the_next_charge(ledger):
    for statement in (
        "DROP TRIGGER entries_debit",
        "CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT 1; END",
        "CREATE TABLE another (x)",
    ):
        shutil.copy(ledger.path, f"{ledger.path}-copy")
        copy = Path(f"{ledger.path}-copy")
        sql(copy, statement)
        for use in (Ledger, lambda path: Ledger.verify(Ledger(path))):
            with pytest.raises(LedgerError, match="its tables or triggers were changed"):
                use(copy)
        copy.unlink()


def test_a_recomputed_chain_fails_against_a_noted_head(ledger, tmp_path):
    head = ledger.head
    again = open_ledger(tmp_path / "again", Budget(1.0), partitions=("train", "test"))
    again.charge(Pure(0.1), "first", partition="train")
    assert again.verify()  # it is valid on its own
    with pytest.raises(LedgerError, match="is not in the chain"):
        again.verify(head)


def test_an_older_copy_fails_against_a_noted_head(ledger, tmp_path):
    shutil.copy(ledger.path, tmp_path / "old")
    early = ledger.head
    late = ledger.charge(Pure(0.1), "fourth").hash
    assert ledger.verify(early) == late == ledger.verify(late)
    shutil.move(tmp_path / "old", ledger.path)
    assert ledger.verify(early) == early
    with pytest.raises(LedgerError, match="replaced by an older copy"):
        ledger.verify(late)


def test_all_problems_are_reported_together(ledger):
    force(ledger.path, "UPDATE entries SET hash = 'x'", "UPDATE accounts SET spent = 0")
    with pytest.raises(LedgerError) as caught:
        ledger.verify()
    assert len(caught.value.problems) >= 6
    assert str(ledger.path) in caught.value.problems[0]


def test_a_plan_that_costs_more_than_stated_is_detected(tmp_path):
    ledger = open_ledger(
        tmp_path / "plan", Budget(1.0, 1e-5), kind="plan", plan=[Item("x", Gaussian(20.0), 3)]
    )
    record, _ = sql(ledger.path, "SELECT record FROM opening", "SELECT 1")
    forged = record[0][0].replace('"times":3', '"times":300')
    digest = ledger_tables.digest(forged)
    force(
        ledger.path,
        f"UPDATE opening SET record = '{forged}', hash = '{digest}'",
        "UPDATE accounts SET total = 300",
    )
    with pytest.raises(LedgerError, match="The plan for partition 'records' costs epsilon="):
        ledger.verify()


def test_damaged_files_are_never_accepted(ledger, tmp_path):
    """Whatever byte is flipped, the ledger is refused or it is exactly what it was."""
    content, entries = ledger.path.read_bytes(), ledger.entries()
    pick, refused, path = random.Random(0), 0, tmp_path / "rotten"
    for _ in range(150):
        at = pick.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        try:
            rotten = Ledger(path)
            rotten.verify()
            assert rotten.entries() == entries
            _, answer = rotten.answer(Pure(0.2), "second", bytes, request="r", body=b"?")
            assert answer == b"answer"
        except (LedgerError, BudgetError):
            refused += 1
        for ending in ("", "-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
    assert refused > 20  # the rest is room that no record takes

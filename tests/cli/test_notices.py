"""Only the data holder is told of new individuals, before a charge."""

import io
import json
import signal
import sys
from pathlib import Path

import pytest

from veracal.cli import main
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.ledger import Ledger, default_ledger_path

N = 160
SCHEMA = """format = 1
size = 160
name = "visits"
[columns.who]
kind = "unit"
max_contributions = 1
[columns.age]
kind = "number"
lower = 0
upper = 100
[columns.ill]
kind = "target"
classes = [0, 1]
"""
QUICK = """format = 1
[data]
source = 'visits.csv'
schema = 'visits.toml'
[privacy]
epsilon = 3
[model]
epochs = 2.0
[measurement]
bins = 2
reserve = 1
"""
FIT = ("fit", "--config", "quick.toml")


def write_table(spelling: str = "{}", first: int = 0, n: int = N) -> None:
    lines = [f"{spelling.format(i)},{i % 97},{i % 2}" for i in range(first, first + n)]
    Path("visits.csv").write_text("\n".join(["who,age,ill", *lines]) + "\n")


def keys(value: object) -> set[str]:
    """Every key in a JSON value."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys, value.values()))


@pytest.fixture
def ledger(run, tmp_path) -> Ledger:
    """The ledger of a table that was fitted, with room for more."""
    Path("visits.toml").write_text(SCHEMA)
    Path("quick.toml").write_text(QUICK)
    write_table()
    code, _, err = run(*FIT, "--out", "model")
    assert code == 0 and "For the data holder only" not in err, err
    actual = Ledger(default_ledger_path("visits.csv"))
    actual.extend(epsilon=3.0, delta=1e-3)
    return actual


def store(ledger: Ledger) -> bytes:
    return Path(f"{ledger.path}.partitions").read_bytes()


def assert_notice(
    err: str, new: int, absent: int, what: str = "is assigned to a partition"
) -> None:
    err = " ".join(err.split())
    assert f"For the data holder only: {new} of {N} units are new to this ledger" in err, err
    assert f"{absent} of earlier runs are not in these records" in err
    assert what in err and "spelled differently" in err


@pytest.mark.parametrize(
    ("spelling", "new"), [("{:03}", 100), ("{} ", N), ("p{}", N)], ids=["zeros", "blank", "p"]
)
def test_fit_reports_respelled_ids_before_its_charge(run, ledger, spelling, new, monkeypatch):
    write_table(spelling)
    head, kept = ledger.head, store(ledger)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    for _ in range(2):  # the second attempt gets the same notice as the first
        with monkeypatch.context() as patch:
            patch.setattr("veracal.workflow.charging.DataAccount.charge", interrupt)
            code, out, err = run(*FIT, "--version", "2", "--out", "other")
        assert code == 1 and not out and "Stopped" in err
        assert_notice(err, new, new)
        assert (ledger.head, store(ledger)) == (head, kept)
    code, _, err = run(*FIT, "--version", "2", "--out", "other")
    assert code == 0 and err.count("For the data holder only") == 1
    assert_notice(err, new, new)


def test_the_notice_is_in_no_result(run, ledger):
    """Results, artifact and ledger of a run with new units look as those of one without."""
    first = run(*FIT, "--out", "model", "--force", "--json")
    write_table(first=40)
    code, out, err = run(*FIT, "--version", "2", "--out", "other", "--json")
    assert code == 0
    assert_notice(err, 40, 40)
    assert keys(json.loads(out)) == keys(json.loads(first[1]))
    for name in sorted(path.name for path in Path("model").iterdir()):
        content = Path("other", name).read_bytes()
        assert b"For the data holder only" not in content and b"new to this" not in content, (
            name
        )
        if name.endswith(".json"):
            before = Path("model", name).read_bytes()
            assert keys(json.loads(content)) == keys(json.loads(before)), name
    code, chain, _ = run("ledger", "export", str(ledger.path), "--answers")
    runs = json.loads(chain)["entries"]
    half = [entry for entry in runs if entry.get("run") == 1]
    later = [entry for entry in runs if entry.get("run") == 2]
    assert code == 0 and keys(half) == keys(later)


def test_fewer_or_equal_units_give_no_notice(run, ledger):
    write_table(n=100)
    code, _, err = run(*FIT, "--version", "2", "--out", "other")
    assert code == 0 and "For the data holder only" not in err


def test_compare_reports_new_units_before_its_charge(run, ledger, monkeypatch):
    write_table("p{}")
    head, kept = ledger.head, store(ledger)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    methods = ("--methods", "logistic/none,logistic/temperature")
    words = ("compare", "visits.csv", *methods, "--out", "both")
    with monkeypatch.context() as patch:
        patch.setattr("veracal.workflow.charging.DataAccount.charge", interrupt)
        code, _, err = run(*words, "--config", "quick.toml")
    assert code == 1
    assert_notice(err, N, N)
    assert (ledger.head, store(ledger)) == (head, kept)
    code, _, err = run(*words, "--config", "quick.toml")
    assert code == 0
    assert_notice(err, N, N)


def test_remeasure_reports_and_omits_new_units_before_its_charge(run, ledger, monkeypatch):
    write_table("{:03}")
    head, kept = ledger.head, store(ledger)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("veracal.workflow.running.RunPlan.measure", interrupt)
        code, out, err = run("evaluate", "model", "--remeasure")
    assert code == 1 and not out
    assert_notice(err, 100, 100, "100 rows of theirs are in no partition")
    assert (ledger.head, store(ledger)) == (head, kept)
    code, out, err = run("evaluate", "model", "--remeasure", "--json")
    assert code == 0 and "new" not in keys(json.loads(out))
    assert_notice(err, 100, 100, "100 rows of theirs are in no partition")
    assert store(ledger) == kept


@pytest.fixture
def enroll(run):
    words = ("--name", "North", "--epsilon", "1", "--unit", "who")
    assert run("source", "init", "north", *words)[0] == 0
    key = PrivateKey.new().public.text

    def command(*more: str) -> tuple[int, str, str]:
        return run(
            *("source", "enroll", "north", "--model", "model", "--data", "visits.csv"),
            *("--coordinator", key, "--epsilon", "1", "--out", "north.terms"),
            *("--min-records", "1", "--partition", "test", *more),
        )

    return command


def test_an_enrollment_reports_new_units_before_it_is_accepted(enroll, ledger, monkeypatch):
    write_table("{:03}")
    head, kept = ledger.head, store(ledger)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    for _ in range(2):
        code, _, err = enroll()
        assert code == 1
        assert_notice(err, 100, 100)
        assert (ledger.head, store(ledger)) == (head, kept)
    code, out, err = enroll("--yes", "--json")
    assert code == 0, err
    assert_notice(err, 100, 100)
    assert store(ledger) != kept and "new to this ledger" not in out
    assert b"new to this ledger" not in Path("north.terms").read_bytes()


def test_an_enrollment_by_another_id_column_is_rejected(enroll, run, ledger):
    """By another column each individual has another id, and draws another partition."""
    kept = store(ledger)
    other = SCHEMA.replace("[columns.who]", "[columns.bed]")
    Path("other.toml").write_text(other)
    Path("visits.csv").rename("kept.csv")
    text = Path("kept.csv").read_text().replace("who,", "bed,")
    Path("other.csv").write_text(text)
    words = ("--schema", "other.toml", "--config", "quick.toml", "--out", "other")
    assert run("fit", "other.csv", *words, "--ledger", "other.ledger")[0] == 0
    Path("visits.csv").write_text(text)
    code, out, err = enroll("--yes", "--model", "other")
    assert code == 1 and not out and "in two partitions" in err, err
    assert store(ledger) == kept


def test_an_enrollment_beyond_a_cap_is_rejected_before_a_record_is_read(
    enroll, ledger, monkeypatch
):
    def read(*_, **__):
        raise AssertionError("a record was read")

    monkeypatch.setattr("veracal.data.load", read)
    head = ledger.head
    code, out, err = enroll("--yes", "--epsilon", "9")
    assert code == 1 and not out and "veracal ledger extend" in err
    code, out, err = enroll("--yes", "--epsilon", "2")  # the data set's ledger has as much
    assert code == 1 and not out and ledger.head == head
    with pytest.raises(AssertionError, match="a record was read"):
        enroll("--yes")


# ---------------------------------------------------------------- at a terminal


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_terminal(monkeypatch):
    """Runs a fit at a terminal, and answers its prompts."""
    monkeypatch.setenv("TERM", "dumb")

    def command(answer: str) -> tuple[int, str]:
        screen, handler = Terminal(), signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(sys, "argv", ["veracal", *FIT, "--version", "2", "--out", "other"])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", Terminal(answer))
            patch.setattr(sys, "stderr", screen)
            with pytest.raises(SystemExit) as left:
                main()
        signal.signal(signal.SIGINT, handler)
        return int(left.value.code or 0), " ".join(screen.getvalue().split())

    return command


def test_a_terminal_asks_for_confirmation_if_most_units_are_new(ledger, at_terminal):
    """The charge would follow before the data holder has read the figures."""
    write_table("p{}")
    head, kept = ledger.head, store(ledger)
    code, reported = at_terminal("n\n")
    assert code == 1 and "nothing was charged" in reported, reported
    assert_notice(reported, N, N)
    assert (ledger.head, store(ledger)) == (head, kept)
    code, reported = at_terminal("y\n")
    assert code == 0 and len(ledger.runs()) == 2, reported


def test_a_terminal_does_not_ask_if_most_units_are_known(ledger, at_terminal):
    write_table(first=40)
    code, reported = at_terminal("")
    assert code == 0 and "For the data holder only" in reported and "anyway?" not in reported, (
        reported
    )

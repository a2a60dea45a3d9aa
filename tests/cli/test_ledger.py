"""The ledger commands open, show, verify and export."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from veracal.accounting.events import Gaussian, Pure
from veracal.ledger.ledger import Ledger
from veracal.ledger.locations import default_folder
from veracal.ledger.policies import Item

Run = Callable[..., tuple[int, str, str]]
PLAN = """
[[items]]
purpose = "count"
event = {kind = "Gaussian", noise = 20.0}
times = 10
"""


@pytest.fixture
def study(run: Run) -> Ledger:
    assert (
        run(
            "ledger", "open", "study", "--epsilon", "1", "--partition", "a", "--partition", "b"
        )[0]
        == 0
    )
    ledger = Ledger(Path("study"))
    ledger.charge(Pure(0.25), "count[bold]", partition="a")
    ledger.answer(Pure(0.5), "asking", lambda: b"\x01\x02", request="r", body=b"?")
    return ledger


def test_open_prints_the_ledger(run: Run) -> None:
    code, out, err = run(
        *(
            "ledger",
            "open",
            "study",
            "--epsilon",
            "0.7",
            "--unit",
            "patient",
            "--max-contributions",
            "3",
        )
    )
    assert code == 0 and err == ""
    assert "epsilon 0.7, delta 0" in out and "one patient (at most 3 rows)" in out
    assert "Nothing was charged yet" in out
    assert run("ledger", "show", "study")[:2] == (0, out)
    assert Ledger(Path("study")).caps.accounts(1)["records"].amount == 700_000


def test_spending_is_rounded_up_and_the_rest_down(run: Run) -> None:
    code, out, _ = run(
        "ledger", "open", "study", "--epsilon", "12.345604", "--delta", "0.00017544"
    )
    assert code == 0 and "epsilon 12.3457, delta 0.0001755" in out  # to the nearest: 12.3456
    run("ledger", "open", "pure", "--epsilon", "22.222206")
    Ledger(Path("pure")).charge(Pure(11.111103), "x")
    out = run("ledger", "show", "pure")[1]
    assert out.count("epsilon 11.1112") == 1 and out.count("epsilon 11.1111") == 1


def test_the_kind_follows_from_the_options(run: Run) -> None:
    Path("plan.toml").write_text(PLAN)
    delta = ("--delta", "1e-5")
    for settings, kind in (
        ((), "pure"),
        (delta, "open"),
        ((*delta, "--composition", "addition"), "open"),
        ((*delta, "--order", "12"), "open"),
        ((*delta, "--plan", "plan.toml"), "plan"),
    ):
        name = "ledger" + "".join(settings[-2:]).strip("-")
        code, out, _ = run("ledger", "open", name, "--epsilon", "1", *settings, "--json")
        printed = json.loads(out)
        assert code == 0 and printed["kind"] == kind
        assert printed["words"].startswith(kind)
        assert len(printed["plan"]) == (kind == "plan")


def test_show_prints_partitions_and_entries(run: Run, study: Ledger) -> None:
    code, out, _ = run("ledger", "show", "study")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["a", "epsilon", "0.75", "epsilon", "0.25"] in rows
    assert ["b", "epsilon", "0.5", "epsilon", "0.5"] in rows
    assert ["1", "count[bold]", "Pure", "a", "0.25", "charged"] in rows
    assert ["2", "asking", "Pure", "all", "0.5", "answered"] in rows
    assert study.head in out and "Partitions are disjoint" in out


def test_show_as_json(run: Run, study: Ledger) -> None:
    printed = json.loads(run("ledger", "show", "study", "--json")[1])
    assert printed["budget"]["epsilon"] == 1 and printed["head"] == study.head
    assert [part["left"]["epsilon"] for part in printed["partitions"]] == [0.25, 0.5]
    assert [entry["charged"] for entry in printed["entries"]] == ["0.25", "0.5"]
    assert "answer_hex" not in printed["entries"][1]


def test_show_prints_the_last_entries(run: Run, study: Ledger) -> None:
    for _ in range(21):
        study.charge(Pure(0.01), "more")
    out = run("ledger", "show", "study")[1]
    assert "3 earlier ones not shown." in out and "asking" not in out


def test_show_prints_a_plan(run: Run) -> None:
    Path("plan.toml").write_text(PLAN)
    run("ledger", "open", "p", "--epsilon", "1", "--delta", "1e-5", "--plan", "plan.toml")
    Ledger(Path("p")).charge(Gaussian(20.0), "count")
    out = run("ledger", "show", "p")[1]
    assert ["count", "Gaussian", "all", "1", "of", "10"] in map(str.split, out.splitlines())
    assert ["1", "count", "Gaussian", "all", "planned", "charged"] in map(
        str.split, out.splitlines()
    )


def test_a_valid_ledger_verifies(run: Run, study: Ledger) -> None:
    code, out, err = run("ledger", "verify", "study", "--head", study.entries()[0].hash)
    assert (code, err) == (0, "")
    assert "2 charges; all hashes, costs and sums are correct" in out and study.head in out
    verified = json.loads(run("ledger", "verify", "study", "--json")[1])
    assert verified == {"valid": True, "head": study.head, "problems": []}


def test_verify_locates_damage(run: Run, study: Ledger) -> None:
    with closing(sqlite3.connect(study.path, isolation_level=None)) as connection:
        (trigger,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'entries_stay'"
        ).fetchone()
        connection.execute("DROP TRIGGER entries_stay")
        connection.execute("UPDATE entries SET answer = x'00' WHERE id = 2")
        connection.execute(trigger)
    code, out, err = run("ledger", "verify", "study")
    assert (code, out) == (1, "") and "Entry 2: its answer does not match its hash" in err
    code, out, _ = run("ledger", "verify", "study", "--json")
    verified = json.loads(out)
    assert code == 1 and verified["valid"] is False and len(verified["problems"]) == 2


def test_verify_reports_a_missing_head(run: Run, study: Ledger) -> None:
    code, _, err = run("ledger", "verify", "study", "--head", "0" * 64)
    assert code == 1 and "is not in the chain" in err


def test_an_export_omits_the_answers(run: Run, study: Ledger) -> None:
    code, out, _ = run("ledger", "export", "study")
    assert code == 0 and json.loads(out) == study.to_json()
    assert "0102" not in json.loads(out)["entries"][1].values()
    full = json.loads(run("ledger", "export", "study", "--answers", "--json")[1])
    assert full["entries"][1]["answer_hex"] == "0102"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "gone"), 1, "does not exist"),
        (("verify", "gone"), 1, "does not exist"),
        (("export", "gone"), 1, "does not exist"),
        (("open", "x", "--epsilon", "-1"), 2, "epsilon > 0"),
        (("open", "x", "--epsilon", "nan"), 2, "epsilon > 0"),
        (("open", "x", "--epsilon", "1", "--delta", "2"), 2, "delta"),
        (("open", "x", "--epsilon", "1", "--kind", "closed"), 2, "kind"),
        (("open", "x", "--epsilon", "1", "--relation", "cousins"), 2, "relation"),
        (("open", "x", "--epsilon", "1", "--order", "2"), 2, "order"),
        (("open", "x", "--epsilon", "1", "--plan", "gone.toml"), 1, "nothing at that path"),
        (("open", "no/x", "--epsilon", "1"), 1, "a folder that exists"),
        (("open", "x"), 2, "epsilon"),
    ],
)
def test_errors_are_reported(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    actual, out, err = run("ledger", *words)
    assert (actual, out) == (code, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert not list(Path().glob("x*"))


def test_an_existing_ledger_is_not_replaced(run: Run, study: Ledger) -> None:
    code, _, err = run("ledger", "open", "study", "--epsilon", "9")
    assert code == 1 and "expected a new file" in err and len(study.entries()) == 2


# ---------------------------------------------------------------- default ledgers, runs, caps


@pytest.fixture
def visits(run: Run) -> Ledger:
    Path("visits.csv").write_text("a,b\n1,2\n")
    caps = ("--epsilon", "3", "--delta", "1e-5")
    code, out, _ = run("ledger", "open", "--data", "visits.csv", *caps, "--json")
    assert code == 0
    return Ledger(Path(json.loads(out)["path"]))


def begin(ledger: Ledger, request: str = "first", epsilon: float = 0.5) -> Ledger:
    items = [Item("count", Pure(epsilon), 2, "test")]
    return ledger.begin_run(items, name="fit", request=request, body=b"")


def test_the_default_ledger_is_opened_and_resolved(run: Run, visits: Ledger) -> None:
    assert visits.path.parent == default_folder()
    assert visits.opening.data == "visits.csv" and visits.opening.partitions == (
        "train",
        "test",
    )
    assert visits.opening.rule.to_json()["composition"] == "addition"
    printed = json.loads(run("ledger", "show", "visits.csv", "--json")[1])
    assert printed["path"] == str(visits.path) and printed["data"] == "visits.csv"
    assert run("ledger", "verify", "visits.csv")[0] == 0
    assert run("ledger", "export", "visits.csv")[0] == 0
    code, _, err = run("ledger", "open", "--data", "visits.csv", "--epsilon", "1")
    assert code == 1 and "expected a new file" in err


def test_ledgers_are_listed(run: Run, visits: Ledger) -> None:
    run("ledger", "open", "--data", "wine", "--epsilon", "1")
    begin(visits).reserve(Pure(0.5), "count", request="r", body=b"", partition="test")
    (default_folder() / "broken.ledger").write_text("no ledger")
    code, out, err = run("ledger", "list")
    assert code == 0 and "epsilon 2" in out and "not a database" in err
    rows = {
        row["name"]: row for row in json.loads(run("ledger", "list", "--json")[1])["ledgers"]
    }
    assert set(rows) == {"broken.ledger", "builtin-wine.ledger", visits.path.name}
    row = rows[visits.path.name]
    assert (row["data"], row["runs"], row["pending"]) == ("visits.csv", 1, 1)
    assert row["source"] == str(Path("visits.csv").absolute())
    assert row["caps"] == {"epsilon": 3, "delta": 1e-5} and row["left"]["epsilon"] == 2


def test_an_empty_list_is_reported(run: Run) -> None:
    code, out, _ = run("ledger", "list")
    assert (
        code == 0 and "There is no ledger" in out and not default_folder(create=False).exists()
    )
    assert json.loads(run("ledger", "list", "--json")[1])["ledgers"] == []


def test_show_prints_runs(run: Run, visits: Ledger) -> None:
    view = begin(visits)
    view.charge(Pure(0.5), "count", partition="test")
    out = run("ledger", "show", "visits.csv")[1]
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "fit", "test", "epsilon", "1", "1", "active"] in rows
    assert ["2", "count", "Pure", "test", "of", "run", "1", "charged"] in rows
    (printed,) = json.loads(run("ledger", "show", "visits.csv", "--json")[1])["runs"]
    assert printed["items"][0]["used"] == "1 of 2" and printed["epsilons"] == {"test": 1.0}


def test_extended_caps_are_reported(run: Run, visits: Ledger) -> None:
    begin(visits).charge(Pure(0.5), "count", partition="test")
    code, out, _ = run(
        *("ledger", "extend", "visits.csv", "--epsilon", "1", "--delta", "1e-6", "--json")
    )
    printed = json.loads(out)
    assert code == 0 and printed["caps"] == {"epsilon": 4, "delta": 1.1e-5}
    assert printed["budget"]["epsilon"] == 3 and printed["note"] == "cap raised after releases"
    assert printed["extensions"][0]["filter"] == 2
    assert "cap raised after releases" in run("ledger", "show", "visits.csv", "--statement")[1]
    assert run("ledger", "verify", "visits.csv")[0] == 0


def test_pending_charges_and_runs_are_abandoned(run: Run, visits: Ledger) -> None:
    for name in ("one", "two"):
        view = begin(visits, name)
        view.reserve(Pure(0.5), "count", request="r", body=b"", partition="test")
    out = run("ledger", "show", "visits.csv")[1]
    assert "pending charges" in out
    code, _, err = run("ledger", "abandon", "visits.csv", "--request", "r")
    assert code == 1 and "several runs" in err
    code, out, _ = run(
        "ledger", "abandon", "visits.csv", "--request", "r", "--run", "2", "--json"
    )
    assert code == 0 and [entry["run"] for entry in json.loads(out)["pending"]] == [1]
    assert run("ledger", "abandon", "visits.csv", "--request", "r")[0] == 0
    code, out, _ = run("ledger", "abandon", "visits.csv", "--run", "1", "--json")
    assert code == 0 and [one["state"] for one in json.loads(out)["runs"]] == [
        "abandoned",
        "active",
    ]
    assert visits.spent().epsilon == 2  # nothing is refunded


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "wine"), 1, "has no ledger yet"),
        (("open", "--epsilon", "1"), 2, "--data"),
        (("open", "--epsilon", "1", "--data", "gone.csv"), 1, "no such file"),
        (("extend", "visits.csv", "--epsilon", "-1"), 2, "Invalid value for --epsilon"),
        (("extend", "visits.csv", "--epsilon", "1", "--delta", "2"), 2, "for --delta"),
        (("extend", "gone", "--epsilon", "1"), 1, "does not exist"),
        (("abandon", "visits.csv"), 2, "--request"),
        (("abandon", "visits.csv", "--request", "r"), 1, "Nothing is reserved"),
        (("abandon", "visits.csv", "--run", "7"), 1, "no run 7"),
    ],
)
def test_errors_of_runs_and_data_are_reported(
    run: Run, visits: Ledger, words: tuple[str, ...], code: int, said: str
) -> None:
    actual, out, err = run("ledger", *words)
    assert (actual, out) == (code, "") and said in " ".join(err.replace("│", " ").split())
    assert visits.entries() == ()

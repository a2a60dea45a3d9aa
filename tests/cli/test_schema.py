"""The schema commands propose, warn and check."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from veracal.data import Category, Schema

CSV = "age,sex,y\n31,f,no\n?,m,yes\n70,m,no\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def small_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)


def test_a_draft_goes_to_stdout_and_its_warnings_to_stderr(run: Run) -> None:
    code, out, err = run("schema", "draft", "t.csv", "--target", "y")
    assert code == 0
    assert 'kind = "target"' in out and "draft = true" in out and "warning" not in out
    assert "warning: column 'age': read from the records: kind, lower, upper, missing\n" in err
    assert "Replace 10 fields by public knowledge, then delete the line 'draft = true'" in err
    assert len(err.splitlines()) == 5


def test_a_draft_in_a_file_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("schema", "draft", "t.csv", "--out", "s.toml")[:2] == (0, "")
    text = (tmp_path / "s.toml").read_text()
    code, _, err = run("schema", "draft", "t.csv", "--out", "s.toml")
    assert code == 1 and "expected a new file" in err
    assert (tmp_path / "s.toml").read_text() == text
    # A file that is in the way is noticed before any record is read.
    assert "expected a new file" in run("schema", "draft", "gone.csv", "--out", "s.toml")[2]
    assert (
        "a folder that exists"
        in run("schema", "draft", "gone.csv", "--out", "nowhere/s.toml")[2]
    )
    assert sorted(p.name for p in tmp_path.glob("*.*")) == ["s.toml", "t.csv"]


def test_a_draft_as_json(run: Run) -> None:
    code, out, _ = run("schema", "draft", "t.csv", "--json")
    result = json.loads(out)
    assert code == 0 and set(result) == {"schema", "warnings"}
    assert result["warnings"][0] == {
        "where": "schema",
        "field": "missing",
        "warning": "read from the records",
    }


def test_a_draft_of_a_file_with_semicolons(run: Run, tmp_path: Path) -> None:
    for separator, written in ((";", ";"), ("\t", "\\t")):
        (tmp_path / "u.csv").write_text(CSV.replace(",", separator))
        code, _, err = run("schema", "draft", "u.csv", "--target", "y")
        assert code == 1 and f"(--separator {separator!r})" in err
        code, out, err = run(
            "schema", "draft", "u.csv", "--target", "y", "--separator", written
        )
        assert code == 0 and f'separator = "{written}"' in out


def test_placeholders_are_counted_separately(run: Run, tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("x,y\n1,a\n7,a\n")
    _, out, err = run("schema", "draft", "u.csv")
    assert "  # ? to be filled in: only one class occurs" in out
    assert "warning: column 'y': to be filled in: classes\n" in err
    assert ", fill in 1 field, then" in err


def test_an_escaped_draft_keeps_its_meaning(run: Run, tmp_path: Path) -> None:
    name, value = "\x1b[31mred", "\u202ertl \x9b2J \U000e0041 ä"
    (tmp_path / "u.csv").write_text(f"{name},y\n{value},a\nö,b\n")
    code, out, err = run("schema", "draft", "u.csv", "--target", "y")
    assert code == 0 and "\\u001b[31mred" in out and "ö" in out
    assert all(character.isprintable() or character == "\n" for character in out + err)
    assert run("schema", "draft", "u.csv", "--target", "y", "--out", "u.toml")[0] == 0
    assert (tmp_path / "u.toml").read_text() == out
    schema = Schema.from_toml(out.replace("draft = true\n", ""))
    assert schema.columns[name] == Category(("ö", value))


def test_missing_characters_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("ä,y\nü,a\nö,b\n")

    def ascii_only(*words: str) -> subprocess.CompletedProcess[str]:
        code = "from veracal.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "schema", "draft", "u.csv", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )

    done = ascii_only("--json")
    assert (done.returncode, done.stdout.isascii()) == (0, True)
    assert '[columns."ä"]' in json.loads(done.stdout)["schema"]
    done = ascii_only("--target", "ï")
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_lists_of_values_with_commas_are_clear(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        "format = 1\n[columns.x]\nkind = 'number'\nlower = 0\nupper = 1\n"
        "[columns.y]\nkind = 'target'\nclasses = ['a', 'b, c']\n"
    )
    assert "classes  a, 'b, c'\n" in run("schema", "check", "s.toml")[1]


def test_check_prints_the_declared_facts(run: Run, tmp_path: Path) -> None:
    run("schema", "draft", "t.csv", "--target", "y", "--group", "sex", "--out", "s.toml")
    code, out, err = run("schema", "check", "s.toml")
    assert (code, out) == (1, "") and "delete that line" in err
    text = (tmp_path / "s.toml").read_text().replace("draft = true\n", "")
    (tmp_path / "s.toml").write_text(text)
    code, out, _ = run("schema", "check", "s.toml")
    assert code == 0 and "no, yes" in out and "not declared" in out
    code, out, _ = run("schema", "check", "s.toml", "--json")
    result = json.loads(out)
    assert result["classes"] == ["no", "yes"] and result["groups"] == ["sex"]
    assert result["features"] == 4


def test_exit_codes_of_usage_and_file_errors(run: Run) -> None:
    assert run("schema", "draft")[0] == 2
    assert run("schema", "check", "--nonsense")[0] == 2
    code, out, err = run("schema", "draft", "gone.csv")
    assert (code, out) == (1, "") and err.startswith("error: gone.csv: expected an existing")


def test_help_describes_arguments(run: Run) -> None:
    """A combination of typer and click once left it out in silence."""
    code, out, _ = run("schema", "draft", "--help")
    assert code == 0 and "CSV, TSV, Parquet, Arrow or npz file" in " ".join(out.split())
    assert "Example:" in out

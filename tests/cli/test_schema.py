"""The schema commands propose, warn and check."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CSV = "age,sex,y\n31,f,no\n?,m,yes\n70,m,no\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command where a small table lies."""
    (tmp_path / "t.csv").write_text(CSV)

    def call(*words: str) -> tuple[int, str, str]:
        code = "from veracal.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "schema", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_draft_goes_to_stdout_and_its_warnings_to_stderr(run: Run) -> None:
    code, out, err = run("draft", "t.csv", "--target", "y")
    assert code == 0
    assert 'kind = "target"' in out and "draft = true" in out and "warning" not in out
    assert "warning: age: lower = 31" in err
    assert "fields must be replaced by public knowledge" in err


def test_a_draft_in_a_file_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("draft", "t.csv", "--out", "s.toml")[:2] == (0, "")
    text = (tmp_path / "s.toml").read_text()
    code, _, err = run("draft", "t.csv", "--out", "s.toml")
    assert code == 1 and "expected a new file" in err
    assert (tmp_path / "s.toml").read_text() == text
    assert run("draft", "t.csv", "--out", "nowhere/s.toml")[0] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.toml", "t.csv"]


def test_a_draft_as_json(run: Run) -> None:
    code, out, _ = run("draft", "t.csv", "--json")
    result = json.loads(out)
    assert code == 0 and set(result) == {"schema", "warnings"}
    assert {"field", "warning"} == set(result["warnings"][0])


def test_check(run: Run, tmp_path: Path) -> None:
    run("draft", "t.csv", "--target", "y", "--group", "sex", "--out", "s.toml")
    code, out, err = run("check", "s.toml")
    assert (code, out) == (1, "") and "delete that line" in err
    text = (tmp_path / "s.toml").read_text().replace("draft = true\n", "")
    (tmp_path / "s.toml").write_text(text)
    code, out, _ = run("check", "s.toml")
    assert code == 0 and "no, yes" in out and "not declared" in out
    code, out, _ = run("check", "s.toml", "--json")
    result = json.loads(out)
    assert result["classes"] == ["no", "yes"] and result["groups"] == ["sex"]
    assert result["features"] == 4


def test_wrong_usage_is_2_and_a_wrong_file_is_1(run: Run) -> None:
    assert run("draft")[0] == 2
    assert run("check", "--nonsense")[0] == 2
    code, out, err = run("draft", "gone.csv")
    assert (code, out) == (1, "") and err.startswith("error: gone.csv: expected an existing")


def test_help_tells_what_arguments_are(run: Run) -> None:
    """A combination of typer and click once left it out in silence."""
    code, out, _ = run("draft", "--help")
    assert code == 0 and "CSV, TSV, Parquet, Arrow or npz file" in " ".join(out.split())
    assert "Example:" in out

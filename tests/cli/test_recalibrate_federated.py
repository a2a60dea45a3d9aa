"""`veracal recalibrate MODEL --sources FILE`: institutions elsewhere find the map."""

import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.sample_federation import NAMES, federation, model, server
from veracal.artifact import LedgerHead, PrivateClassifier
from veracal.artifact.storage import read_manifest
from veracal.calibration import Identity, load_map
from veracal.cli._recalibrate_remote import ProgressBoard
from veracal.federation.coordinator.pool import RoundEvent
from veracal.federation.protocol.terms import model_hash
from veracal.federation.source.serving import SourceServer
from veracal.federation.transports import serve_folder
from veracal.ledger import Ledger
from veracal.workflow.results import load_results

WORDS = ["recalibrate", "m", "--sources", "study/federation.toml", "--epsilon", "2"]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A model and a federation, which tests copy."""
    root = tmp_path_factory.mktemp("federation")
    federation(root / "study", model(root / "m"), deadline=1.0)
    return root


@pytest.fixture(autouse=True)
def place(prepared, tmp_path):
    for name in ("m", "study"):
        shutil.copytree(prepared / name, tmp_path / name)
    return tmp_path


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Hospitals of this process reply at once: their deadline is not tested here.

    Those of a process that a test starts keep theirs.
    """
    monkeypatch.setattr(SourceServer, "answer", SourceServer.reply)


def ledger(i):
    """What a hospital's ledger has paid."""
    (estimate,) = Path(f"study/source{i}/enrolled").glob("*/spent.ledger")
    return Ledger(estimate)


def test_a_new_artifact_has_the_map_and_names_every_cost(run):
    before = model_hash("m")
    words = [*WORDS, "--measure", "2", "--out", "new", "--map-out", "map.json"]
    code, out, err = run(*words, "--statement")
    assert code == 0, err
    new, old = PrivateClassifier.load("new"), PrivateClassifier.load("m")
    assert new.map_ == load_map("map.json") != old.map_
    assert 2.5 < new.map_.value < 4.5
    assert (model_hash("new"), model_hash("m")) == (before, before)
    (record,) = new.manifest.recalibrations
    assert [one.name for one in record.sources] == list(NAMES)
    for i, one in enumerate(record.sources):
        assert (one.epsilon, one.answered, one.why) == (4.0, True, None)
        assert one.head == LedgerHead(5, ledger(i).head)
        assert ledger(i).spent().epsilon == 4.0
        assert f"{one.name} ({one.key}): epsilon 4 for each record" in record.text()
        assert f"{one.name} ({one.key}): epsilon 4 for each record" in out
    assert "Recalibrated by 3 institutions" in (Path("new") / "report.html").read_text()
    assert "Recalibrated by 3 institutions" in (Path("new") / "MODEL_CARD.md").read_text()
    assert load_results(Path("new")).recalibrations == (record,)
    assert re.search(r"The plan \(pooled\)", err)
    assert "round 5 of 5, gaps by bin, mapped: North answered" in err


def test_the_same_command_again_asks_nobody(run, monkeypatch):
    code, out, _ = run(*WORDS, "--map-out", "a.json", "--json")
    assert code == 0
    monkeypatch.setattr(
        SourceServer, "answer", lambda self, raw: pytest.fail("somebody was asked")
    )
    code, again, err = run(*WORDS, "--map-out", "b.json", "--json")
    assert code == 0
    assert "(3 known)" in err
    first, second = json.loads(out), json.loads(again)
    assert load_map("a.json") == load_map("b.json")
    for one in ("institutions", "statement", "map", "before", "sources"):
        assert first[one] == second[one]


def test_force_writes_into_the_model_itself_and_earlier_costs_stay_told(run):
    weights = (Path("m") / "model.safetensors").read_bytes()
    for epsilon in ("2", "3"):
        code, _, err = run(*WORDS[:-1], epsilon, "--force")
        assert code == 0, err
    manifest, files = read_manifest(Path("m"))
    assert (Path("m") / "model.safetensors").read_bytes() == weights
    assert {"results.json", "report.html", "MODEL_CARD.md"} <= set(files)
    assert [one.sources[0].epsilon for one in manifest.recalibrations] == [2, 3]


def test_json_has_plan_and_institutions(run):
    code, out, _ = run(*WORDS, "--map-out", "a.json", "--json")
    estimate = json.loads(out)
    assert code == 0
    assert estimate["study"] == "Heart study"
    assert [one["name"] for one in estimate["plan"]] == list(NAMES)
    assert {one["left"] for one in estimate["plan"]} == {20.0}
    assert estimate["out"] is None
    assert estimate["map_out"] == "a.json"


def test_a_map_that_was_not_kept_leaves_the_artifacts_own(run):
    code, _, err = run(*WORDS[:-1], "0.001", "--out", "new")
    assert code == 0, err
    new, old = PrivateClassifier.load("new"), PrivateClassifier.load("m")
    assert new.map_ == old.map_
    assert new.manifest.recalibrations[-1].map == Identity()
    assert "Its map is unchanged: the guard rejected the new one." in err
    assert "the model keeps its previous map" in (Path("new") / "report.html").read_text()


@pytest.mark.parametrize("method", ["acc-t", "binning", "temperature"])
def test_other_methods_by_name(run, method):
    words = [*WORDS[:-1], "4", "--method", method, "--guard", "2", "--measure", "2"]
    code, out, err = run(*words, "--map-out", "a.json", "--json")
    assert code == 0, err
    estimate = json.loads(out)
    assert estimate["method"] == method
    assert estimate["guard"]["kind"] == "query"
    assert estimate["institutions"][0]["epsilon"] == pytest.approx(8.0, abs=1e-4)


def test_of_any_other_model_only_the_map_is_written(run, tmp_path):
    weights = tmp_path / "network.bin"
    weights.write_bytes(b"weights of a network")
    federation(tmp_path / "other", weights, deadline=1.0)
    words = ["recalibrate", "network.bin", "--sources", "other/federation.toml"]
    code, _, err = run(*words, "--epsilon", "2", "--map-out", "map.json")
    assert code == 0, err
    assert "network.bin is not an artifact of Veracal and was not changed" in err
    assert 2.5 < load_map("map.json").value < 4.5
    assert weights.read_bytes() == b"weights of a network"
    assert run(*words, "--epsilon", "2", "--out", "x")[0] == 2


def test_another_model_is_refused_and_the_sources_named(run):
    Path("other.bin").write_bytes(b"x")
    words = ["recalibrate", "other.bin", *WORDS[2:], "--map-out", "map.json"]
    code, _, err = run(*words)
    assert code == 1
    assert "than that of North, South, West [red]" in err


def test_who_cannot_pay_is_named_or_left_out_uncharged(run, prepared, tmp_path):
    federation(
        tmp_path / "poor", prepared / "m", deadline=1.0, epsilon=3.0, more="min_sources = 2"
    )
    words = ["recalibrate", "m", "--sources", "poor/federation.toml", "--map-out", "a.json"]
    code, _, err = run(*words, "--epsilon", "4")
    assert code == 1
    assert "North: the queries cost epsilon=4, but 3 of 3 is left" in err
    assert "queried\n" not in err.split("The plan")[1]
    assert run(*words, "--epsilon", "2")[0] == 0
    code, _, err = run(*words, "--epsilon", "2", "--run", "again", "--force")
    assert code == 1
    assert "1 of 3 is left" in err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "Pass an output: --out FOLDER"),
        (["--out", "new", "--ledger", "x"], "--ledger: Leave it out with --sources"),
        (["--out", "new", "--curve"], "--curve: Leave it out with several sources"),
        (["--out", "new", "--not-private"], "--not-private: Leave it out with several"),
        (["--out", "new", "--min-sources", "4"], "at most 3"),
        (["--out", "new", "--wait", "3"], "federation with files"),
        (["--out", "new", "--temperatures", "0.1,9"], "as the sources have declared"),
        (["--out", "new", "--bins", "7"], "as the sources have declared"),
        (["--out", "new", "--method", "two-temperatures"], "all sources have enrolled"),
        (["--out", "new", "--method", "platt"], "needs --delta"),
    ],
    ids=lambda x: " ".join(x[-2:]) if isinstance(x, list) else "",
)
def test_what_cannot_be_meant_is_a_matter_of_usage(run, words, match):
    code, _, err = run(*WORDS, *words)
    assert code == 2
    assert match in " ".join(err.replace("│", "").split())
    assert not list(ledger(0).entries())


def test_places_are_looked_at_before_anybody_is_asked(run):
    code, _, err = run(*WORDS, "--out", "m")
    assert code == 1 and "--force" in err
    Path("map.json").write_text("mine")
    code, _, err = run(*WORDS, "--map-out", "map.json")
    assert code == 1 and "--force" in err
    assert not list(ledger(0).entries())
    assert run("recalibrate", "m", "--epsilon", "1", "--run", "x")[0] == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text.replace("[transport]", "[transports]"), "transport"),
        (lambda text: text.replace('"local"', '"pigeons"'), "local, files, flower"),
        (
            lambda text: text.replace('name = "Heart study"', "name = 3"),
            "name of [coordinator]",
        ),
        (lambda text: text.replace("timeout = 20", "patience = 20"), "'patience'"),
        (lambda text: text.replace('folder = "source0"', ""), "no 'folder'"),
        (lambda text: text.replace("0.terms", "9.terms"), "9.terms"),
        (lambda text: text + "[[", "TOML"),
        (lambda text: text.split("[[sources]]")[0], "sources"),
        (lambda text: text.replace("1.terms", "0.terms"), "twice"),
    ],
    ids=range(9),
)
def test_a_list_that_is_not_right_is_told_in_a_line(run, change, match):
    path = Path("study/federation.toml")
    path.write_text(change(path.read_text()))
    code, _, err = run(*WORDS, "--out", "new")
    assert code in (1, 2)
    assert match in " ".join(err.replace("│", "").split())


def test_a_silent_hospital_ends_it_and_it_goes_on_or_without_it(run, monkeypatch):
    answer = SourceServer.answer

    def silent(self, raw):
        return self.refusal if self.terms.name == "South" else answer(self, raw)

    monkeypatch.setattr(SourceServer, "answer", silent)
    code, _, err = run(*WORDS, "--out", "new")
    assert code == 1
    assert "South refused" in err
    assert "South: it refused" in err.splitlines()[-1]
    code, out, err = run(*WORDS, "--out", "new", "--min-sources", "2", "--json")
    assert code == 0, err
    south = json.loads(out)["institutions"][1]
    assert south["answered"] is False and south["why"].startswith("it refused")
    assert "incomplete: it refused" in (Path("new") / "report.html").read_text()
    monkeypatch.setattr(SourceServer, "answer", answer)
    code, out, _ = run(*WORDS, "--map-out", "a.json", "--run", "with South", "--json")
    assert code == 0
    assert [one["answered"] for one in json.loads(out)["institutions"]] == [True] * 3


def by_files(folder):
    """The same list, with files that are carried by hand."""
    path = folder / "federation.toml"
    text = path.read_text().replace(
        'kind = "local"', 'kind = "files"\nrequests = "out"\nanswers = "in"'
    )
    path.write_text(re.sub(r"folder = .*", "", text))


def carried(folder):
    """Carry every request to its hospital, and the answers back."""
    for i in range(3):
        inbox, outbox = folder / f"inbox{i}", folder / f"outbox{i}"
        for each in (inbox, outbox):
            each.mkdir(exist_ok=True)
        for request in (folder / "out").glob(f"{NAMES[i][0].lower()}*.request"):
            shutil.copy(request, inbox)
        serve_folder(server(folder, i), inbox, outbox, once=True)
        for answer in outbox.glob("*.answer"):
            shutil.copy(answer, folder / "in")


def test_by_files_the_command_ends_and_goes_on(run, place):
    by_files(place / "study")
    rounds = 0
    while True:
        code, _, err = run(*WORDS, "--out", "new")
        if code == 0:
            break
        assert code == 1
        assert re.search("Waiting for.*North.*South.*West", err)
        rounds += 1
        carried(place / "study")
    assert rounds == 3
    for i in range(3):
        assert ledger(i).spent().epsilon == 2.0


def test_killed_at_any_moment_the_same_command_goes_on(place):
    """A real kill -9, again and again: in the middle of a round, and between two."""
    words = [sys.executable, "-m", "veracal", *WORDS, "--out", "new", "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for lines in (1, 5, 4, 4):  # of progress, after which it is killed
        with subprocess.Popen(
            words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
        ) as process:
            settings = list(itertools.islice(_rounds(process.stderr), lines))
            process.send_signal(signal.SIGKILL)
        assert settings, "it ended before it could be killed"
        assert not Path("new").exists()
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    estimate = json.loads(done.stdout)
    assert [one["answered"] for one in estimate["institutions"]] == [True] * 3
    for i in range(3):
        assert ledger(i).spent().epsilon == 2.0
        assert len(list(ledger(i).entries())) == 3
    assert PrivateClassifier.load("new").map_.to_json() == estimate["map"]


def _rounds(stream):
    return (line for line in stream if line.startswith("round "))


def test_ctrl_c_says_that_nothing_is_lost(place):
    words = [sys.executable, "-m", "veracal", *WORDS, "--out", "new"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        next(_rounds(process.stderr))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode != 0
    assert "the same command continues, and nothing is charged twice" in rest
    assert "Traceback" not in rest


def test_the_board_shows_every_institution():
    board = ProgressBoard(["a", "b"], 3)
    line = board.update(RoundEvent(1, "gap", 1, "dropped out", "it did not answer in time"))
    assert line == "round 1 of 3, gap: b dropped out: it did not answer in time"
    board.update(RoundEvent(1, "gap", 0, "answered"))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(board.table())
    printed = console.export_text()
    assert "1 of 3" in printed and "0 of 3" in printed and "did not answer" in printed

"""An institution declares, answers, reads what left, and ends it, all in words."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.made import write, write_model
from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.data import Scores, load, save_scores
from veracal.federation.models import model_hash
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Request, unsealed_reply
from veracal.federation.protocol.questions import KINDS, USUAL
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.enrollment import read_enrolment
from veracal.federation.source.folder import read_source
from veracal.federation.source.serving import open_source
from veracal.ledger import Ledger, default_ledger_path, open_ledger

Run = Callable[..., tuple[int, str, str]]
CALIBRATOR = PrivateKey.new()
MODEL = ("--model-hash", "b" * 64)


@pytest.fixture
def north(run: Run) -> Path:
    """A source of which nothing is enrolled, and scores to enroll."""
    rng = np.random.default_rng(0)
    scores = Scores.from_logits(rng.normal(0, 2, (300, 3)), rng.integers(0, 3, 300))
    save_scores(scores, "scores.npz")
    assert run("source", "init", "north", "--name", "North Hospital", "--epsilon", "3")[0] == 0
    return Path("north")


def enroll(run: Run, *more: str, out: str = "north.terms") -> tuple[int, str, str]:
    """Enroll the scores, as a hospital types it."""
    options = {
        "--calibrator": CALIBRATOR.public.text,
        "--epsilon": "1",
        "--scores": "scores.npz",
        "--model-hash": "b" * 64,
        "--out": out,
    }
    options |= dict(zip(more[::2], more[1::2], strict=True))
    words = [word for pair in options.items() for word in pair]
    return run("source", "enroll", "north", *words, "--yes")


@pytest.fixture
def terms(run: Run, north: Path) -> Terms:
    """The terms of an enrolment."""
    assert enroll(run)[0] == 0
    return Terms.unsealed(Path("north.terms").read_bytes())


def request(terms: Terms, kind: str = "counts", **changed: object) -> bytes:
    """A request of the calibrator."""
    told = {
        "source": terms.source,
        "data": terms.data,
        "model": terms.model,
        "kind": kind,
        "argument": {},
        "micro_epsilon": 100_000,
    }
    return Request(**{**told, **changed}).sealed(CALIBRATOR)  # type: ignore[arg-type]


# ---------------------------------------------------------------- init


def test_a_new_source_is_shown_with_what_its_budget_means(run: Run):
    words = (
        "source",
        "init",
        "north",
        "--name",
        "North",
        "--epsilon",
        "1",
        "--unit",
        "patient",
    )
    code, out, _ = run(*words, "--at-most", "3", "--heads", "heads")
    assert code == 0
    assert read_source("north").public.fingerprint in out
    assert "one patient (at most 3 rows)" in out
    text = " ".join(out.split())
    assert "if one patient, with up to 3 rows, were left out" in text
    assert "more than 2.72 times as likely" in text
    assert "Nothing outside of the folder" not in text
    assert Path("heads").exists()


def test_without_a_second_file_of_heads_its_owner_is_told(run: Run):
    out = run("source", "init", "n", "--name", "N", "--epsilon", "1")[1]
    assert "Nothing outside of the folder would notice" in " ".join(out.split())
    assert json.loads(run("source", "init", "m", "--name", "N", "--epsilon", "1", "--json")[1])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--name", "N", "--epsilon", "-1"), 2),
        (("--name", "N", "--epsilon", "nan"), 2),
        (("--name", "", "--epsilon", "1"), 2),
        (("--name", "N", "--epsilon", "1", "--relation", "both"), 2),
        (("--name", "N", "--epsilon", "1", "--at-most", "0"), 2),
        (("--name", "N", "--epsilon", "1", "--heads", "north/heads"), 1),
        (("--name", "N", "--epsilon", "1", "--heads", "no/heads"), 1),
    ],
)
def test_what_cannot_be_a_source_is_refused(run: Run, words: tuple[str, ...], code: int):
    found, out, err = run("source", "init", "north", *words)
    assert (found, out) == (code, "") and err
    assert not Path("north").exists()


# ---------------------------------------------------------------- enroll


def test_what_is_about_to_be_allowed_is_said_before_and_after(run: Run, north: Path):
    code, out, _ = enroll(run, "--expires", "2099-12-31", "--most-each", "0.5")
    assert code == 0
    before, after = " ".join(out.split()).split("What you have allowed")
    for text in (before, after):
        assert CALIBRATOR.public.fingerprint in text
        assert "cost at most epsilon 1 for each record" in text
        assert "One answer costs at most epsilon 0.5" in text
        assert "2.72 times as likely" in text
        assert "until 2099-12-31 (UTC), or until you revoke it" in text
        assert all(KINDS[kind].words in text for kind in USUAL)
        assert "your public key, and that you protect one record, under add-remove" in text
    assert "epsilon 2 would be left for other calibrators" in before
    assert "epsilon 2 is left for other calibrators" in after
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    assert terms.source in after and terms.key.fingerprint in after
    assert (terms.kinds, terms.micro_epsilon, terms.most_each) == (USUAL, 1_000_000, 500_000)


def test_whoever_says_no_allows_nothing(run: Run, north: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    words = ("--calibrator", CALIBRATOR.public.text, "--epsilon", "1", "--out", "t")
    code, out, err = run("source", "enroll", "north", "--scores", "scores.npz", *MODEL, *words)
    assert code == 1 and "about to allow" in out and "nothing is allowed" in err
    assert not Path("t").exists() and not list(Path("north/enrolled").iterdir())
    assert not read_source("north").shares.entries()


def test_terms_for_programs(run: Run, north: Path):
    told = ("--calibrator", CALIBRATOR.public.text, "--epsilon", "1", "--out", "t")
    words = ("source", "enroll", "north", "--scores", "scores.npz", *MODEL, *told, "--json")
    assert run(*words)[0] == 2  # nobody is asked, so somebody has to know
    code, out, _ = run(*words, "--yes")
    assert code == 0
    assert Terms.from_json(json.loads(out)["terms"]) == Terms.unsealed(Path("t").read_bytes())


def test_everything_that_is_declared_is_in_the_terms(run: Run, north: Path):
    Path("key.pub").write_text(f"Heart study: {CALIBRATOR.public.text}\n")
    more = {
        "--calibrator": "key.pub",
        "--kinds": "usual,bins,loss",
        "--temperatures": "0.25,8",
        "--bins": "7",
        "--clamp": "5",
        "--parameters": "10,8,4",
        "--least-records": "200",
        "--most-records": "1000",
        "--deadline": "30",
        "--most-each": "0.125",
    }
    assert enroll(run, *(word for pair in more.items() for word in pair))[0] == 0
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    assert terms.calibrator == CALIBRATOR.public
    assert terms.kinds == (*USUAL, "bins", "loss")
    assert (terms.temperatures.low, terms.temperatures.high) == (0.25, 8.0)
    assert (terms.bins, terms.clamp, terms.deadline) == (7, 5.0, 30.0)
    assert (terms.parameters.bits, terms.parameters.most_bias) == (10, 4)
    assert (terms.least_records, terms.most_records) == (200, 1_000)


def test_a_node_key_is_made_once_and_handed_over(run: Run, north: Path):
    assert enroll(run, "--node-key-out", "node.pub")[0] == 0
    code, out, _ = enroll(run, "--node-key-out", "again.pub", out="again.terms")
    assert code == 0 and "Hand over again.terms and again.pub" in out
    assert "serve north --flower HOST:PORT --ca FILE" in out
    assert Path("node.pub").read_bytes() == Path("again.pub").read_bytes()
    assert Path("north/node.key").stat().st_mode & 0o077 == 0


def test_questions_are_named_by_a_method_too(run: Run):
    rng = np.random.default_rng(0)
    scores = Scores.from_logits(rng.normal(0, 2, (300, 3)), rng.integers(0, 3, 300))
    save_scores(scores, "scores.npz")
    words = ("source", "init", "north", "--name", "N", "--epsilon", "3", "--delta", "1e-5")
    assert run(*words)[0] == 0
    out = enroll(run, "--kinds", "platt,bins", "--delta", "1e-6")[1]
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    assert terms.kinds == ("platt-counts", "gap", "platt-curvature", "platt-equations", "bins")
    text = " ".join(out.split())
    assert "epsilon 1 and delta 0.000001 for each record" in text
    assert "but for a chance of 0.000001" in text


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (("--calibrator", "12"), 2, "64 hexadecimal digits"),
        (("--epsilon", "0"), 2, "epsilon > 0"),
        (("--epsilon", "4"), 1, "needs epsilon=4"),
        (("--most-each", "2"), 2, "at most the whole budget"),
        (("--kinds", "weights"), 2, "different kinds"),
        (("--kinds", "platt"), 2, "delta above 0"),
        (("--kinds", "platt", "--delta", "1e-5"), 2, "pure cost"),
        (("--temperatures", "5"), 2, "2 numbers"),
        (("--temperatures", "6,0.5"), 2, "low < high"),
        (("--parameters", "1,2,x"), 2, "3 numbers"),
        (("--bins", "0"), 2, "bins >= 1"),
        (("--clamp", "nan"), 2, "clamp > 0"),
        (("--deadline", "0"), 2, "deadline > 0"),
        (("--expires", "2020-01-01"), 2, "still to come"),
        (("--expires", "soon"), 2, "Expected a day"),
        (("--least-records", "301"), 1, "from 301 to"),
        (("--most-records", "299"), 1, "from 100 to 299"),
        (("--model-hash", "xyz"), 2, "SHA-256"),
        (("--scores", "no.npz"), 1, "nothing at that path"),
        (("--model", "scores.npz"), 2, "once"),
        (("--data", "scores.npz"), 2, "once"),
        (("--unit", "nobody"), 1, "nobody"),
        (("--out", "scores.npz"), 1, "one that exists"),
        (("--out", "no/terms"), 1, "no such folder"),
    ],
)
def test_what_cannot_be_enrolled_is_refused_and_nothing_is_left(
    run: Run, north: Path, more: tuple[str, ...], code: int, why: str
):
    found, out, err = enroll(run, *more)
    assert found == code and why in " ".join(err.replace("│", " ").split()), err
    assert "allowed" not in out
    assert not list(Path("north/enrolled").iterdir())
    assert not read_source("north").shares.entries()


@pytest.mark.parametrize(
    ("logits", "labels", "why"),
    [
        ([[np.nan, 0.0]] * 200, [0] * 200, "finite logits"),
        ([[1.0, 0.0]] * 200, [7] * 200, "labels"),
        ([[1.0, 0.0]] * 200, None, "labels"),
        ([[1.0, 0.0]] * 20, [0] * 20, "from 100 to"),
    ],
)
def test_records_that_are_none_are_refused_at_enrolment(
    run: Run, north: Path, logits: list, labels: list | None, why: str
):
    arrays = {"logits": logits} if labels is None else {"logits": logits, "labels": labels}
    np.savez("bad.npz", **{name: np.array(each) for name, each in arrays.items()})
    code, _, err = enroll(run, "--scores", "bad.npz")
    assert code == 1 and why in err


def test_a_table_is_scored_by_an_artifact_before_its_map(run: Run, tmp_path: Path):
    write_model(tmp_path)
    run("source", "init", "north", "--name", "North", "--epsilon", "3")
    options = ("--model", "model", "--data", "visits.csv", "--out", "north.terms")
    key = ("--calibrator", CALIBRATOR.public.text, "--epsilon", "1")
    code, out, err = run("source", "enroll", "north", *options, *key, "--yes")
    assert code == 0, err
    assert "600 records from" in out and "visits.csv" in out
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    assert terms.model == model_hash("model") and terms.reads == "logits"
    kept = read_enrolment(read_source("north"), terms.source).records()
    classifier = PrivateClassifier.load("model")
    assert kept.classes == classifier.manifest.classes
    given = load("visits.csv", schema=classifier.schema)
    scores = classifier.scores(given, mapped=False)
    order = [given.classes.index(label) for label in kept.classes]
    assert np.array_equal(kept.values, scores.values[:, order])
    right = np.array(given.classes)[given.y] == np.array(kept.classes)[kept.known_labels]
    assert right.all()


def test_classes_in_another_order_than_the_schemas_stay_with_their_scores(tmp_path: Path):
    from dataclasses import replace

    from veracal.cli._source_records import _in_order

    write_model(tmp_path)
    classifier = PrivateClassifier.load("model")
    scores = Scores.from_logits([[1.0, 2.0], [3.0, 4.0]], ["no", "yes"], classes=["no", "yes"])
    turned = PrivateClassifier(
        classifier.weights,
        classifier.map_,
        replace(classifier.manifest, classes=("yes", "no")),
    )
    found = _in_order(turned, scores)
    assert found.classes == ("yes", "no")
    assert found.values.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert found.known_labels.tolist() == [1, 0]


# ---------------------------------------------------------------- serve, status, log, revoke


def serve_once(run: Run, *raws: bytes) -> tuple[int, str, str]:
    """Put requests into the inbox and answer them."""
    for name in ("inbox", "outbox"):
        Path(name).mkdir(exist_ok=True)
    for i, raw in enumerate(raws):
        path = Path("inbox") / f"{i}.request"
        path.write_bytes(raw)
        os.utime(path, (time.time() - 3_600,) * 2)  # nobody is still writing to it
    return run("source", "serve", "north", "--inbox", "inbox", "--outbox", "outbox", "--once")


def test_one_answer_may_cost_all_unless_less_is_declared(terms: Terms):
    assert terms.most_each == terms.micro_epsilon == 1_000_000


def test_requests_in_files_are_answered_and_told(run: Run, north: Path):
    assert enroll(run, "--deadline", "0.5", "--most-each", "0.25")[0] == 0
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    dear = request(terms, "gap", argument={"inverse": 1 << 16}, micro_epsilon=500_000)
    code, out, err = serve_once(run, request(terms), dear)
    assert code == 0 and "answered or refused: 2" in out
    assert "answered: counts (entry 1 of the ledger)" in err
    assert "refused: it asks for epsilon 0.5 at once" in err
    replies = [
        unsealed_reply(path.read_bytes(), terms.key) for path in Path("outbox").iterdir()
    ]
    assert sorted(isinstance(reply, Answer) for reply in replies) == [False, True]

    code, out, _ = run("source", "log", "north")
    text = " ".join(out.split())
    (answer,) = (reply for reply in replies if isinstance(reply, Answer))
    right, wrong = answer.units
    assert code == 0
    assert "1. how many predictions were right, and how many wrong" in text
    assert f"sent right {right:,}; wrong {wrong:,}; noise of about ±14.1" in text
    assert "cost epsilon 0.1; in all so far 0.1, 0.9 left" in text
    assert "it asks for epsilon 0.5 at once, more than the 0.25" in text
    assert "The books are sound" in text

    found = json.loads(run("source", "log", "north", "--json")[1])["enrolments"][0]
    assert found["answers"][0]["values"] == [right, wrong] and found["sound"]
    assert len(found["refusals"]) == 1

    code, out, _ = run("source", "status", "north")
    text = " ".join(out.split())
    assert code == 0 and "1 is granted, to 1 enrolment" in text
    assert "epsilon 1: 0.1 spent, 0.9 left" in text and "1 × counts" in text


def test_every_way_to_ask_is_told_in_words(run: Run, north: Path):
    assert enroll(run, "--kinds", "all")[0] == 0
    terms = Terms.unsealed(Path("north.terms").read_bytes())
    desk, inverse = open_source("north"), {"inverse": 1 << 15}
    for kind, argument in (
        ("gap", inverse),
        ("map-gain", {"map": inverse}),
        ("map-counts", {"map": {"accuracies": [1 << 19] * 15}}),
        ("bins", {}),
    ):
        raw = request(terms, kind, argument=argument, micro_epsilon=10_000)
        assert desk.reply(raw) != desk.refusal
    text = " ".join(run("source", "log", "north")[1].split())
    assert "than their confidence says, at temperature 2" in text
    assert "(the Brier score); the map: temperature 2" in text
    assert "the map: accuracy by bin 0.5" in text
    assert "right, by bin:" in text
    assert len(run("source", "log", "north", "--last", "1")[1]) < len(text)


def test_a_changed_file_and_a_ledger_put_back_are_told(run: Run, terms: Terms):
    ledger = Path("north/enrolled") / terms.source / "spent.ledger"
    shutil.copy(ledger, "old")
    desk = open_source("north")
    desk.reply(request(terms))
    assert run("source", "status", "north")[0] == 0
    new = ledger.read_bytes()
    shutil.copy("old", ledger)
    for command in ("status", "log"):
        code, out, _ = run("source", command, "north")
        assert code == 1 and "older copy of spent.ledger was put back" in " ".join(out.split())
    facts = json.loads(run("source", "status", "north", "--json")[1])
    assert "lacks entry 1" in facts["enrolments"][0]["problems"][0]
    ledger.write_bytes(new)
    assert run("source", "status", "north")[0] == 0
    with Path("scores.npz").open("ab") as file:
        file.write(b"more")
    code, out, _ = run("source", "status", "north")
    assert code == 1 and "has changed since it was enrolled" in " ".join(out.split())


def test_a_ledger_that_is_gone_is_told(run: Run, terms: Terms):
    (Path("north/enrolled") / terms.source / "spent.ledger").unlink()
    for command in ("status", "log"):
        code, out, err = run("source", command, "north")
        assert code == 1 and "does not exist" in " ".join(out.split()), err


def test_a_revoked_enrolment_is_over(run: Run, terms: Terms, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert run("source", "revoke", "north", terms.source[:6])[0] == 1
    assert not read_enrolment(read_source("north"), terms.source).is_revoked
    assert run("source", "revoke", "north", terms.source[:6], "--json")[0] == 2
    code, out, _ = run("source", "revoke", "north", terms.source[:6], "--yes")
    assert code == 0 and "answered no more" in out
    assert run("source", "revoke", "north", terms.source, "--yes", "--json")[0] == 0
    desk = open_source("north", terms.source)
    assert desk.reply(request(terms)) == desk.refusal
    assert "revoked: nothing is answered" in run("source", "status", "north")[1]
    code, _, err = run("source", "revoke", "north", "zz", "--yes")
    assert code == 1 and "0 of 1" in err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--inbox", "a"),
        ("--flower", "localhost:1"),
        ("--inbox", "a", "--outbox", "b", "--ca", "c"),
        ("--node-key", "k"),
        ("--flower", "localhost:1", "--ca", "c", "--once"),
    ],
)
def test_a_desk_is_served_in_one_whole_way(run: Run, terms: Terms, words: tuple[str, ...]):
    assert run("source", "serve", "north", *words)[0] == 2


def test_folders_that_are_none_are_refused(run: Run, north: Path):
    for command in (("status",), ("log",), ("serve", "--inbox", "a", "--outbox", "b")):
        code, _, err = run("source", command[0], "nowhere", *command[1:])
        assert code == 1 and "the folder of a source" in err
    assert "none yet" in run("source", "log", "north")[2]
    code, _, err = run("source", "serve", "north", "--inbox", "a", "--outbox", "b")
    assert code == 1 and "Enroll some records first" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_ends_in_peace_when_it_is_told_to(
    run: Run, terms: Terms, number: signal.Signals
):
    for name in ("inbox", "outbox"):
        Path(name).mkdir()
    words = ("source", "serve", "north", "--inbox", "inbox", "--outbox", "outbox")
    process = subprocess.Popen(
        [sys.executable, "-m", "veracal", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "North Hospital answers the calibrator" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0 and "What was answered is kept" in err


# ---------------------------------------------------------------- the data set's ledger


def test_enrolments_of_the_same_records_share_the_ledger_of_the_data_set(run: Run, north: Path):
    """A second folder of the same records is not a second budget."""
    code, _, err = enroll(run)
    ledger = Ledger(default_ledger_path("scores.npz"))
    assert code == 0 and "Opened the ledger of scores.npz" in err
    assert (ledger.budget.epsilon, ledger.spent().epsilon) == (3.0, 1.0)
    assert run("source", "init", "south", "--name", "South", "--epsilon", "9")[0] == 0
    words = ("--calibrator", CALIBRATOR.public.text, "--scores", "scores.npz", *MODEL, "--yes")
    code, out, err = run(
        "source", "enroll", "south", *words, "--epsilon", "2.5", "--out", "south.terms"
    )
    assert code == 1 and not out and "veracal ledger extend" in err
    assert ledger.spent().epsilon == 1.0 and not list(Path("south/enrolled").iterdir())
    words = (*words, "--epsilon", "2", "--out", "south.terms")
    assert run("source", "enroll", "south", *words)[0] == 0
    assert ledger.spent().epsilon == 3.0
    ledger.verify()


def test_a_source_of_other_units_than_the_ledger_is_refused(run: Run, north: Path):
    open_ledger(default_ledger_path("scores.npz"), Budget(5.0, relation="replace-one"))
    code, out, err = enroll(run)
    assert code == 1 and not out and "do not add" in err
    assert not list(Path("north/enrolled").iterdir())


def test_units_of_several_rows_pay_once_for_all_of_their_rows(run: Run):
    rng = np.random.default_rng(0)
    scores = Scores.from_logits(
        rng.normal(0, 2, (300, 3)), rng.integers(0, 3, 300), units=np.arange(300) // 3
    )
    save_scores(scores, "scores.npz", unit="patient")
    words = ("--name", "North", "--epsilon", "3", "--unit", "patient", "--at-most", "3")
    assert run("source", "init", "north", *words)[0] == 0
    code, _, err = enroll(run, "--unit", "patient")
    assert code == 0, err
    ledger = Ledger(default_ledger_path("scores.npz"))
    assert ledger.budget.unit.at_most == 3
    assert ledger.spent().epsilon == pytest.approx(1.0, abs=3e-6)


def test_a_partition_is_enrolled_as_its_ledger_has_assigned_it(run: Run, tmp_path: Path):
    write(tmp_path)
    fit = ("fit", "visits.csv", "--schema", "visits.toml", "--epsilon", "2", "--out", "model")
    assert run(*fit)[0] == 0
    ledger = Ledger(default_ledger_path("visits.csv"))
    assert run("source", "init", "north", "--name", "North", "--epsilon", "1")[0] == 0
    words = (
        *("source", "enroll", "north", "--model", "model", "--data", "visits.csv", "--yes"),
        *("--calibrator", CALIBRATOR.public.text, "--epsilon", "1", "--out", "north.terms"),
    )
    code, _, err = run(*words, "--partition", "test")
    assert code == 1 and "veracal ledger extend" in err  # the fit has spent its caps
    ledger.extend(epsilon=1.0)
    shuffled = Path("visits.csv").read_text().splitlines(keepends=True)
    Path("visits.csv").write_text("".join([shuffled[0], *reversed(shuffled[1:])]))
    code, _, err = run(*words, "--partition", "test")
    assert code == 0, err
    source = read_source("north")
    n = len(read_enrolment(source, source.enrolled()[0]).records())
    assert 60 < n < 180  # a fifth of 600: 9.8 standard deviations on each side
    assert ledger.spent("test").epsilon == pytest.approx(3.0, abs=1e-4)
    assert ledger.spent("train").epsilon < 2.1
    assert run(*words, "--out", "no.terms", "--partition", "weather")[0] == 2

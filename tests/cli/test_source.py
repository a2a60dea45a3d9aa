"""The commands of an institution: declare, answer, inspect, revoke."""

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

from tests.cli.sample_tables import write, write_model
from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.data import Scores, load, save_scores
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Request, unseal_reply
from veracal.federation.protocol.queries import DEFAULT_KINDS, KINDS
from veracal.federation.protocol.terms import Terms, model_hash
from veracal.federation.source.enrollment import read_enrollment
from veracal.federation.source.folder import read_source
from veracal.federation.source.serving import open_source
from veracal.ledger import Ledger, default_ledger_path, open_ledger

Run = Callable[..., tuple[int, str, str]]
COORDINATOR = PrivateKey.new()
MODEL = ("--model-hash", "b" * 64)


@pytest.fixture
def north(run: Run) -> Path:
    """A source without enrollments, and scores to enroll."""
    rng = np.random.default_rng(0)
    scores = Scores.from_logits(rng.normal(0, 2, (300, 3)), rng.integers(0, 3, 300))
    save_scores(scores, "scores.npz")
    assert run("source", "init", "north", "--name", "North Hospital", "--epsilon", "3")[0] == 0
    return Path("north")


def enroll(run: Run, *more: str, out: str = "north.terms") -> tuple[int, str, str]:
    """Enroll the scores, as a hospital types it."""
    options = {
        "--coordinator": COORDINATOR.public.text,
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
    """The terms of an enrollment."""
    assert enroll(run)[0] == 0
    return Terms.unseal(Path("north.terms").read_bytes())


def request(terms: Terms, kind: str = "counts", **changed: object) -> bytes:
    """A request of the coordinator."""
    fields = {
        "source": terms.source,
        "data": terms.data,
        "model": terms.model,
        "kind": kind,
        "argument": {},
        "micro_epsilon": 100_000,
    }
    return Request(**{**fields, **changed}).seal(COORDINATOR)  # type: ignore[arg-type]


# ---------------------------------------------------------------- init


def test_a_new_source_is_printed_with_an_explanation_of_its_budget(run: Run):
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
    code, out, _ = run(*words, "--max-contributions", "3", "--heads", "heads")
    assert code == 0
    assert read_source("north").public.fingerprint in out
    assert "one patient (at most 3 rows)" in out
    text = " ".join(out.split())
    assert "if one patient, with up to 3 rows, were left out" in text
    assert "more than 2.72 times as likely" in text
    assert "Without a file outside of the folder" not in text
    assert Path("heads").exists()


def test_a_source_without_external_heads_prints_a_warning(run: Run):
    out = run("source", "init", "n", "--name", "N", "--epsilon", "1")[1]
    assert "Without a file outside of the folder, a restored backup" in " ".join(out.split())
    assert json.loads(run("source", "init", "m", "--name", "N", "--epsilon", "1", "--json")[1])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--name", "N", "--epsilon", "-1"), 2),
        (("--name", "N", "--epsilon", "nan"), 2),
        (("--name", "", "--epsilon", "1"), 2),
        (("--name", "N", "--epsilon", "1", "--relation", "both"), 2),
        (("--name", "N", "--epsilon", "1", "--max-contributions", "0"), 2),
        (("--name", "N", "--epsilon", "1", "--heads", "north/heads"), 1),
        (("--name", "N", "--epsilon", "1", "--heads", "no/heads"), 1),
    ],
)
def test_an_invalid_source_is_rejected(run: Run, words: tuple[str, ...], code: int):
    result, out, err = run("source", "init", "north", *words)
    assert (result, out) == (code, "") and err
    assert not Path("north").exists()


# ---------------------------------------------------------------- enroll


def test_what_is_about_to_be_allowed_is_said_before_and_after(run: Run, north: Path):
    code, out, _ = enroll(run, "--expires", "2099-12-31", "--max-per-answer", "0.5")
    assert code == 0
    before, after = " ".join(out.split()).split("What you have allowed")
    for text in (before, after):
        assert COORDINATOR.public.fingerprint in text
        assert "cost at most epsilon 1 for each record" in text
        assert "One answer costs at most epsilon 0.5" in text
        assert "2.72 times as likely" in text
        assert "until 2099-12-31 (UTC), or until you revoke it" in text
        assert all(KINDS[kind].description in text for kind in DEFAULT_KINDS)
        assert "your public key, and that you protect one record, under add-remove" in text
    assert "epsilon 2 would be left for other coordinators" in before
    assert "epsilon 2 is left for other coordinators" in after
    terms = Terms.unseal(Path("north.terms").read_bytes())
    assert terms.source in after and terms.key.fingerprint in after
    assert (terms.kinds, terms.micro_epsilon, terms.max_per_answer) == (
        DEFAULT_KINDS,
        1_000_000,
        500_000,
    )


def test_declining_the_prompt_allows_nothing(
    run: Run, north: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    words = ("--coordinator", COORDINATOR.public.text, "--epsilon", "1", "--out", "t")
    code, out, err = run("source", "enroll", "north", "--scores", "scores.npz", *MODEL, *words)
    assert code == 1 and "about to allow" in out and "nothing is allowed" in err
    assert not Path("t").exists() and not list(Path("north/enrolled").iterdir())
    assert not read_source("north").shares.entries()


def test_terms_for_programs(run: Run, north: Path):
    fields = ("--coordinator", COORDINATOR.public.text, "--epsilon", "1", "--out", "t")
    words = ("source", "enroll", "north", "--scores", "scores.npz", *MODEL, *fields, "--json")
    assert run(*words)[0] == 2  # there is no prompt, so --yes is required
    code, out, _ = run(*words, "--yes")
    assert code == 0
    assert Terms.from_json(json.loads(out)["terms"]) == Terms.unseal(Path("t").read_bytes())


def test_everything_that_is_declared_is_in_the_terms(run: Run, north: Path):
    Path("key.pub").write_text(f"Heart study: {COORDINATOR.public.text}\n")
    more = {
        "--coordinator": "key.pub",
        "--kinds": "default,bins,loss",
        "--temperatures": "0.25,8",
        "--bins": "7",
        "--clamp": "5",
        "--parameters": "10,8,4",
        "--min-records": "200",
        "--max-records": "1000",
        "--deadline": "30",
        "--max-per-answer": "0.125",
    }
    assert enroll(run, *(word for pair in more.items() for word in pair))[0] == 0
    terms = Terms.unseal(Path("north.terms").read_bytes())
    assert terms.coordinator == COORDINATOR.public
    assert terms.kinds == (*DEFAULT_KINDS, "bins", "loss")
    assert (terms.temperatures.low, terms.temperatures.high) == (0.25, 8.0)
    assert (terms.bins, terms.clamp, terms.deadline) == (7, 5.0, 30.0)
    assert (terms.parameters.bits, terms.parameters.most_bias) == (10, 4)
    assert (terms.min_records, terms.max_records) == (200, 1_000)


def test_a_node_key_is_created_once_and_copied(run: Run, north: Path):
    assert enroll(run, "--node-key-out", "node.pub")[0] == 0
    code, out, _ = enroll(run, "--node-key-out", "again.pub", out="again.terms")
    assert code == 0 and "Give again.terms and again.pub" in out
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
    terms = Terms.unseal(Path("north.terms").read_bytes())
    assert terms.kinds == ("platt-counts", "gap", "platt-curvature", "platt-equations", "bins")
    text = " ".join(out.split())
    assert "epsilon 1 and delta 0.000001 for each record" in text
    assert "except with probability 0.000001" in text


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (("--coordinator", "12"), 2, "64 hexadecimal digits"),
        (("--epsilon", "0"), 2, "epsilon > 0"),
        (("--epsilon", "4"), 1, "needs epsilon=4"),
        (("--max-per-answer", "2"), 2, "at most the whole budget"),
        (("--kinds", "weights"), 2, "different kinds"),
        (("--kinds", "platt"), 2, "delta above 0"),
        (("--kinds", "platt", "--delta", "1e-5"), 2, "pure cost"),
        (("--temperatures", "5"), 2, "2 comma-separated numbers"),
        (("--temperatures", "6,0.5"), 2, "low < high"),
        (("--parameters", "1,2,x"), 2, "3 comma-separated numbers"),
        (("--bins", "0"), 2, "bins >= 1"),
        (("--clamp", "nan"), 2, "clamp > 0"),
        (("--deadline", "0"), 2, "deadline > 0"),
        (("--expires", "2020-01-01"), 2, "in the future"),
        (("--expires", "soon"), 2, "Expected a date"),
        (("--min-records", "301"), 1, "from 301 to"),
        (("--max-records", "299"), 1, "from 100 to 299"),
        (("--model-hash", "xyz"), 2, "SHA-256"),
        (("--scores", "no.npz"), 1, "nothing at that path"),
        (("--model", "scores.npz"), 2, "once"),
        (("--data", "scores.npz"), 2, "once"),
        (("--unit", "unknown"), 1, "unknown"),
        (("--out", "scores.npz"), 1, "one that exists"),
        (("--out", "no/terms"), 1, "no such folder"),
    ],
)
def test_an_invalid_enrollment_is_rejected_without_trace(
    run: Run, north: Path, more: tuple[str, ...], code: int, why: str
):
    result, out, err = enroll(run, *more)
    assert result == code and why in " ".join(err.replace("│", " ").split()), err
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
def test_records_that_are_none_are_refused_at_enrollment(
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
    key = ("--coordinator", COORDINATOR.public.text, "--epsilon", "1")
    code, out, err = run("source", "enroll", "north", *options, *key, "--yes")
    assert code == 0, err
    assert "600 records from" in out and "visits.csv" in out
    terms = Terms.unseal(Path("north.terms").read_bytes())
    assert terms.model == model_hash("model") and terms.reads == "logits"
    kept = read_enrollment(read_source("north"), terms.source).records()
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

    from veracal.cli._source_enroll import _reorder_classes

    write_model(tmp_path)
    classifier = PrivateClassifier.load("model")
    scores = Scores.from_logits([[1.0, 2.0], [3.0, 4.0]], ["no", "yes"], classes=["no", "yes"])
    turned = PrivateClassifier(
        classifier.weights,
        replace(classifier.manifest, classes=("yes", "no")),
    )
    result = _reorder_classes(turned, scores)
    assert result.classes == ("yes", "no")
    assert result.values.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert result.known_labels.tolist() == [1, 0]


# ---------------------------------------------------------------- serve, status, log, revoke


def serve_once(run: Run, *raws: bytes) -> tuple[int, str, str]:
    """Put requests into the inbox and answer them."""
    for name in ("inbox", "outbox"):
        Path(name).mkdir(exist_ok=True)
    for i, raw in enumerate(raws):
        path = Path("inbox") / f"{i}.request"
        path.write_bytes(raw)
        os.utime(path, (time.time() - 3_600,) * 2)  # the file is complete
    return run("source", "serve", "north", "--inbox", "inbox", "--outbox", "outbox", "--once")


def test_one_answer_may_cost_all_unless_less_is_declared(terms: Terms):
    assert terms.max_per_answer == terms.micro_epsilon == 1_000_000


def test_requests_in_files_are_answered_and_logged(run: Run, north: Path):
    assert enroll(run, "--deadline", "3", "--max-per-answer", "0.25")[0] == 0
    terms = Terms.unseal(Path("north.terms").read_bytes())
    dear = request(terms, "gap", argument={"inverse": 1 << 16}, micro_epsilon=500_000)
    code, out, err = serve_once(run, request(terms), dear)
    assert code == 0 and "answered or refused: 2" in out
    assert "answered: counts (entry 1 of the ledger)" in err
    assert "refused: it requests an answer for epsilon 0.5" in err
    replies = [unseal_reply(path.read_bytes(), terms.key) for path in Path("outbox").iterdir()]
    assert sorted(isinstance(reply, Answer) for reply in replies) == [False, True]

    code, out, _ = run("source", "log", "north")
    text = " ".join(out.split())
    (answer,) = (reply for reply in replies if isinstance(reply, Answer))
    right, wrong = answer.units
    assert code == 0
    assert "1. how many predictions were right, and how many were wrong" in text
    assert f"sent right {right:,}; wrong {wrong:,}; noise of about ±14.1" in text
    assert "cost epsilon 0.1; in total so far 0.1, 0.9 left" in text
    assert "it requests an answer for epsilon 0.5, more than the maximum of 0.25" in text
    assert "The ledger is valid" in text

    body = json.loads(run("source", "log", "north", "--json")[1])["enrollments"][0]
    assert body["answers"][0]["values"] == [right, wrong] and body["valid"]
    assert len(body["refusals"]) == 1

    code, out, _ = run("source", "status", "north")
    text = " ".join(out.split())
    assert code == 0 and "1 is granted, to 1 enrollment" in text
    assert "epsilon 1: 0.1 spent, 0.9 left" in text and "1 × counts" in text


def test_every_kind_of_query_is_described(run: Run, north: Path):
    assert enroll(run, "--kinds", "all")[0] == 0
    terms = Terms.unseal(Path("north.terms").read_bytes())
    server, inverse = open_source("north"), {"inverse": 1 << 15}
    for kind, argument in (
        ("gap", inverse),
        ("map-gain", {"map": inverse}),
        ("map-counts", {"map": {"accuracies": [1 << 19] * 15}}),
        ("bins", {}),
    ):
        raw = request(terms, kind, argument=argument, micro_epsilon=10_000)
        assert server.reply(raw) != server.refusal
    text = " ".join(run("source", "log", "north")[1].split())
    assert "than the confidences predict, at temperature 2" in text
    assert "(the Brier score); the map: temperature 2" in text
    assert "the map: accuracy by bin 0.5" in text
    assert "right, by bin:" in text
    assert len(run("source", "log", "north", "--last", "1")[1]) < len(text)


def test_a_changed_file_and_a_rollback_are_reported(run: Run, terms: Terms):
    ledger = Path("north/enrolled") / terms.source / "spent.ledger"
    shutil.copy(ledger, "old")
    server = open_source("north")
    server.reply(request(terms))
    assert run("source", "status", "north")[0] == 0
    new = ledger.read_bytes()
    shutil.copy("old", ledger)
    for command in ("status", "log"):
        code, out, _ = run("source", command, "north")
        assert code == 1 and "older copy of spent.ledger was restored" in " ".join(out.split())
    facts = json.loads(run("source", "status", "north", "--json")[1])
    assert "lacks entry 1" in facts["enrollments"][0]["problems"][0]
    ledger.write_bytes(new)
    assert run("source", "status", "north")[0] == 0
    with Path("scores.npz").open("ab") as file:
        file.write(b"more")
    code, out, _ = run("source", "status", "north")
    assert code == 1 and "has changed since it was enrolled" in " ".join(out.split())


def test_a_missing_ledger_is_reported(run: Run, terms: Terms):
    (Path("north/enrolled") / terms.source / "spent.ledger").unlink()
    for command in ("status", "log"):
        code, out, err = run("source", command, "north")
        assert code == 1 and "does not exist" in " ".join(out.split()), err


def test_a_revoked_enrollment_refuses_requests(
    run: Run, terms: Terms, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert run("source", "revoke", "north", terms.source[:6])[0] == 1
    assert not read_enrollment(read_source("north"), terms.source).is_revoked
    assert run("source", "revoke", "north", terms.source[:6], "--json")[0] == 2
    code, out, _ = run("source", "revoke", "north", terms.source[:6], "--yes")
    assert code == 0 and "is revoked" in out
    assert run("source", "revoke", "north", terms.source, "--yes", "--json")[0] == 0
    server = open_source("north", terms.source)
    assert server.reply(request(terms)) == server.refusal
    assert "revoked: all requests are refused" in run("source", "status", "north")[1]
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
def test_exactly_one_transport_is_required(run: Run, terms: Terms, words: tuple[str, ...]):
    assert run("source", "serve", "north", *words)[0] == 2


def test_invalid_folders_are_rejected(run: Run, north: Path):
    for command in (("status",), ("log",), ("serve", "--inbox", "a", "--outbox", "b")):
        code, _, err = run("source", command[0], "nowhere", *command[1:])
        assert code == 1 and "the folder of a source" in err
    assert "expected an enrollment" in run("source", "log", "north")[2]
    code, _, err = run("source", "serve", "north", "--inbox", "a", "--outbox", "b")
    assert code == 1 and "Enroll some records first" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_ends_cleanly_after_a_signal(run: Run, terms: Terms, number: signal.Signals):
    for name in ("inbox", "outbox"):
        Path(name).mkdir()
    words = ("source", "serve", "north", "--inbox", "inbox", "--outbox", "outbox")
    process = subprocess.Popen(
        [sys.executable, "-m", "veracal", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "North Hospital answers the coordinator" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0 and "All answers are stored" in err


# ---------------------------------------------------------------- the data set's ledger


def test_enrollments_of_the_same_records_share_the_ledger_of_the_data_set(
    run: Run, north: Path
):
    """A second folder of the same records is not a second budget."""
    code, _, err = enroll(run)
    ledger = Ledger(default_ledger_path("scores.npz"))
    assert code == 0 and "Created the ledger of scores.npz" in err
    assert (ledger.budget.epsilon, ledger.spent().epsilon) == (3.0, 1.0)
    assert run("source", "init", "south", "--name", "South", "--epsilon", "9")[0] == 0
    words = (
        "--coordinator",
        COORDINATOR.public.text,
        "--scores",
        "scores.npz",
        *MODEL,
        "--yes",
    )
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
    assert code == 1 and not out and "cannot be added" in err
    assert not list(Path("north/enrolled").iterdir())


def test_units_of_several_rows_pay_once_for_all_of_their_rows(run: Run):
    rng = np.random.default_rng(0)
    scores = Scores.from_logits(
        rng.normal(0, 2, (300, 3)), rng.integers(0, 3, 300), units=np.arange(300) // 3
    )
    save_scores(scores, "scores.npz", unit="patient")
    words = (
        "--name",
        "North",
        "--epsilon",
        "3",
        "--unit",
        "patient",
        "--max-contributions",
        "3",
    )
    assert run("source", "init", "north", *words)[0] == 0
    code, _, err = enroll(run, "--unit", "patient")
    assert code == 0, err
    ledger = Ledger(default_ledger_path("scores.npz"))
    assert ledger.budget.unit.max_contributions == 3
    assert ledger.spent().epsilon == pytest.approx(1.0, abs=3e-6)


def test_a_partition_is_enrolled_as_its_ledger_has_assigned_it(run: Run, tmp_path: Path):
    write(tmp_path)
    fit = ("fit", "visits.csv", "--schema", "visits.toml", "--epsilon", "2", "--out", "model")
    assert run(*fit)[0] == 0
    ledger = Ledger(default_ledger_path("visits.csv"))
    assert run("source", "init", "north", "--name", "North", "--epsilon", "1")[0] == 0
    words = (
        *("source", "enroll", "north", "--model", "model", "--data", "visits.csv", "--yes"),
        *("--coordinator", COORDINATOR.public.text, "--epsilon", "1", "--out", "north.terms"),
    )
    code, _, err = run(*words, "--partition", "test")
    assert code == 1 and "veracal ledger extend" in err  # the fit has spent its caps
    ledger.extend(epsilon=1.0)
    shuffled = Path("visits.csv").read_text().splitlines(keepends=True)
    Path("visits.csv").write_text("".join([shuffled[0], *reversed(shuffled[1:])]))
    code, _, err = run(*words, "--partition", "test")
    assert code == 0, err
    source = read_source("north")
    n = len(read_enrollment(source, source.enrollment_ids()[0]).records())
    assert 60 < n < 180  # a fifth of 600: 9.8 standard deviations on each side
    assert ledger.spent("test").epsilon == pytest.approx(3.0, abs=1e-4)
    assert ledger.spent("train").epsilon < 2.1
    assert run(*words, "--out", "no.terms", "--partition", "weather")[0] == 2

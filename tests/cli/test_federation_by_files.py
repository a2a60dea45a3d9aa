"""Three hospitals and a coordinator that exchange nothing but files, from the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.full

NAMES = ("north", "south", "west")
RECALIBRATE = ("recalibrate", "weights.bin", "--sources", "study/federation.toml")


@pytest.fixture
def federation(run) -> None:
    """A study, and three sources that have enrolled it."""
    rng = np.random.default_rng(0)
    Path("weights.bin").write_bytes(b"of a network")
    assert run("federation", "init", "study", "--name", "Study")[0] == 0
    for name in NAMES:
        logits = rng.normal(size=(2_000, 2))
        labels = (2 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        np.savez(f"{name}.npz", logits=6 * logits, labels=labels)
        code, _, err = run("source", "init", name, "--name", name.title(), "--epsilon", "2")
        assert code == 0, err
        code, _, err = run(
            *("source", "enroll", name, "--coordinator", "study/coordinator.pub"),
            *("--epsilon", "1", "--max-per-answer", "1", "--scores", f"{name}.npz"),
            *("--model", "weights.bin", "--deadline", "1", "--out", f"{name}.terms", "--yes"),
        )
        assert code == 0, err
        for box in ("in", "out"):
            Path(f"{name}-{box}").mkdir()
    code, _, err = run("federation", "add", "study", *(f"{n}.terms" for n in NAMES), "--yes")
    assert code == 0, err


def carry(run, *names: str) -> None:
    """Bring requests to hospitals, have them answered, and bring the answers back."""
    for name in names:
        for path in Path("study/requests").glob(f"{name}-*.request"):
            shutil.move(path, f"{name}-in")
        boxes = ("--inbox", f"{name}-in", "--outbox", f"{name}-out")
        code, _, err = run("source", "serve", name, *boxes, "--once")
        assert code == 0, err
        for path in Path(f"{name}-out").iterdir():
            shutil.move(path, Path("study/answers") / path.name)


def spent(run, name: str) -> float:
    """What a hospital's own ledger has paid."""
    code, out, err = run("source", "status", name, "--json")
    assert code == 0, err
    return float(json.loads(out)["enrollments"][0]["spent"]["epsilon"])


def test_a_map_is_fitted_with_files_carried_by_hand(federation, run):
    words = (*RECALIBRATE, "--epsilon", "0.6", "--map-out", "map.json", "--json")
    for _ in range(3):
        code, _, err = run(*words)
        assert code == 1
        assert "Waiting for answers of North, South, West: carry north-" in err
        assert len(list(Path("study/requests").glob("north-*"))) == 1
        carry(run, *NAMES)
    code, out, err = run(*words)
    assert code == 0, err
    body = json.loads(out)
    assert 2 < body["temperatures"]["temperature"]["value"] < 4.5
    assert json.loads(Path("map.json").read_text())["kind"] == "temperature"
    assert [spent(run, name) for name in NAMES] == [0.6] * 3

    # Once more costs nothing, and what the budget does not allow is refused unasked.
    assert run(*words, "--force")[0] == 0
    assert [spent(run, name) for name in NAMES] == [0.6] * 3
    more = (*RECALIBRATE, "--epsilon", "0.7", "--map-out", "more.json")
    code, _, err = run(*more)
    assert code == 1 and "0.4 of 1 is left" in err
    assert [spent(run, name) for name in NAMES] == [0.6] * 3


def test_a_hospital_that_never_answers_is_given_up(federation, run):
    words = (*RECALIBRATE, "--epsilon", "0.6", "--min-sources", "2", "--map-out", "map.json")
    assert run(*words)[0] == 1
    carry(run, "north", "south")
    code, _, err = run(*words)
    assert code == 1 and "Waiting for answers of West: carry west-" in err
    for _ in range(2):
        code, _, err = run(*words, "--give-up", "West")
        assert code == 1 and "Waiting for answers of North, South: carry" in err
        carry(run, "north", "south")
    code, out, err = run(*words, "--give-up", "West")
    assert code == 0, err
    assert "West" in out and spent(run, "west") == 0


def test_files_of_strangers_are_refused_and_charge_nothing(federation, run):
    words = (*RECALIBRATE, "--epsilon", "0.6", "--map-out", "map.json")
    assert run(*words)[0] == 1
    (request,) = Path("study/requests").glob("north-*.request")
    inbox = Path("north-in")
    (inbox / "huge.request").write_bytes(bytes(4_097))
    (inbox / "link.request").symlink_to(request.absolute())
    (inbox / "folder.request").mkdir()
    (inbox / "half.request").write_bytes(request.read_bytes()[:-1])
    for other in ("south", "west"):  # requests to other sources
        (path,) = Path("study/requests").glob(f"{other}-*.request")
        shutil.copy(path, inbox)
    boxes = ("--inbox", "north-in", "--outbox", "north-out", "--once")
    code, _, err = run("source", "serve", "north", *boxes)
    assert code == 0
    assert "longer than 4,096 bytes" in err and "it is a link" in err
    answers = list(Path("north-out").iterdir())
    assert len(answers) == 2  # to what the coordinator has signed
    assert len({path.read_bytes() for path in answers}) == 1  # the one refusal there is
    assert spent(run, "north") == 0
    left = {path.name for path in inbox.iterdir()}
    assert left == {"huge.request", "link.request", "folder.request", "half.request"}

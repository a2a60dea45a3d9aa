"""A coordinator's folder, and who is let in."""

import io
import json
import stat
import tomllib
from pathlib import Path

import pytest

from tests.federation.protocol.example_terms import terms as made_terms
from veracal.calibration import CorrectWrong
from veracal.calibration.bins import Bins
from veracal.federation.coordinator.history import RequestHistory
from veracal.federation.coordinator.pool import RemotePool
from veracal.federation.flower.wire import make_node_key
from veracal.federation.protocol.envelopes import PrivateKey, PublicKey
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.serving import open_source
from veracal.federation.transports import LocalTransport
from veracal.workflow.local_federation import LocalFederation, make_local


@pytest.fixture
def study(run) -> PublicKey:
    """A federation without sources, and its coordinator's key."""
    code, out, _ = run("federation", "init", "study", "--name", "Heart study", "--json")
    assert code == 0
    return PublicKey(json.loads(out)["public_key"])


def terms(study: PublicKey, file: str, digit: str, **changed: object) -> Terms:
    """Terms of a source, in a file of its name."""
    key = PrivateKey.new()
    fields = {"coordinator": study, "name": file, "source": digit * 32, "key": key.public}
    created = made_terms(**{**fields, **changed})
    Path(f"{file}.terms").write_bytes(created.seal(key))
    return created


def test_a_coordinator_gets_a_key_for_its_eyes_only(run):
    code, out, _ = run("federation", "init", "study", "--name", 'Heart "study"')
    assert code == 0
    key = PrivateKey.read(Path("study/coordinator.pem"))
    assert key.public.text in out and key.public.fingerprint in out
    assert stat.S_IMODE(Path("study").stat().st_mode) == 0o700
    listed = tomllib.loads(Path("study/federation.toml").read_text())
    assert listed["coordinator"]["name"] == 'Heart "study"'
    assert listed["transport"]["kind"] == "files"


def test_a_folder_with_something_in_it_stays_as_it_is(run):
    Path("study").mkdir()
    Path("study/other").write_text("mine")
    code, _, err = run("federation", "init", "study", "--name", "x")
    assert code == 1 and "expected a new or empty folder" in err
    assert [path.name for path in Path("study").iterdir()] == ["other"]


@pytest.mark.parametrize(
    "options", [("--name", ""), ("--name", "a\nb"), ("--name", "x", "--transport", "pigeon")]
)
def test_wrong_usage_makes_nothing(run, options):
    code, _, err = run("federation", "init", "study", *options)
    assert code == 2 and "Expected" in err
    assert not Path("study").exists()


def test_terms_are_described_and_stored_unchanged(run, study):
    north = terms(study, "north", "a")
    code, out, _ = run("federation", "add", "study", "north.terms", "--yes")
    assert code == 0
    assert north.key.fingerprint in out
    assert "how many predictions were right, and how many were wrong" in out
    (listed,) = tomllib.loads(Path("study/federation.toml").read_text())["sources"]
    kept = Path("study") / listed["terms"]
    assert kept.read_bytes() == Path("north.terms").read_bytes()


def test_a_source_is_not_added_without_comparing_its_key(run, study, monkeypatch):
    terms(study, "north", "a")
    before = Path("study/federation.toml").read_bytes()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run("federation", "add", "study", "north.terms")[0] == 1
    assert run("federation", "add", "study", "north.terms", "--json")[0] == 2
    assert Path("study/federation.toml").read_bytes() == before


def test_several_are_added_at_once_and_in_order(run, study):
    for name, digit in (("north", "a"), ("south", "b"), ("west", "c")):
        terms(study, name, digit)
    words = ("north.terms", "south.terms", "west.terms")
    code, out, _ = run("federation", "add", "study", *words, "--yes", "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out)["added"]] == ["north", "south", "west"]


@pytest.mark.parametrize(
    ("changed", "actual"),
    [
        ({"model": "0" * 64}, "another model"),
        ({"classes": 4}, "another number of classes"),
        ({"relation": "replace-one"}, "another relation"),
        ({"reads": "probabilities"}, "another kind of scores"),
        ({"bins": 10}, "another number of bins"),
        ({"source": "a" * 32}, "its enrollment in the list"),
        ({"name": "north"}, "a source of that name in the list"),
        ({"coordinator": PrivateKey.new().public}, "terms for another"),
        ({"expires": "2020-01-31"}, "terms that expired on 2020-01-31"),
    ],
)
def test_incompatible_terms_are_rejected(run, study, changed, actual):
    terms(study, "north", "a")
    assert run("federation", "add", "study", "north.terms", "--yes")[0] == 0
    before = Path("study/federation.toml").read_bytes()
    created = terms(study, "south", "b", **changed)
    code, _, err = run("federation", "add", "study", "south.terms", "--yes")
    assert code == 1 and actual in err and created.name in err
    assert Path("study/federation.toml").read_bytes() == before


def test_one_key_takes_part_once(run, study):
    key = PrivateKey.new()
    for name, digit in (("north", "a"), ("south", "b")):
        created = made_terms(coordinator=study, name=name, source=digit * 32, key=key.public)
        Path(f"{name}.terms").write_bytes(created.seal(key))
    assert run("federation", "add", "study", "north.terms", "--yes")[0] == 0
    code, _, err = run("federation", "add", "study", "south.terms", "--yes")
    assert code == 1 and "the key of north" in err


@pytest.mark.parametrize("change", ["cut", "forged", "huge", "nothing", "folder"])
def test_what_no_source_signed_is_refused(run, study, change):
    terms(study, "north", "a")
    path = Path("north.terms")
    content = path.read_bytes()
    match change:
        case "cut":
            path.write_bytes(content[:-1])
        case "forged":
            path.write_bytes(content.replace(b'"classes":3', b'"classes":4'))
        case "huge":
            path.write_bytes(content + bytes(2**16))
        case "nothing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
    code, _, err = run("federation", "add", "study", "north.terms", "--yes")
    assert code == 1 and err.startswith("error: north.terms: expected ")


def test_federations_over_flower_require_node_keys(run):
    for transport, requested in (("files", False), ("flower", True)):
        _, out, _ = run(
            "federation", "init", transport, "--name", "x", "--transport", transport
        )
        assert (f"add {transport} north.terms --node-key north.pub" in out) is requested
        assert ("--node-key-out north.pub" in out) is requested


def test_nodes_of_flower_are_listed_by_their_keys(run):
    options = ("--transport", "flower", "--address", "localhost:9000", "--json")
    _, out, _ = run("federation", "init", "study", "--name", "x", *options)
    terms(PublicKey(json.loads(out)["public_key"]), "north", "a")
    code, _, err = run("federation", "add", "study", "north.terms", "--yes")
    assert code == 2 and "expected 1" in err
    public = make_node_key(Path("node.key"))
    before = Path("study/federation.toml").read_bytes()
    for wrong in ("node.key", "north.terms"):  # the private half, and something else
        code, _, err = run(
            "federation", "add", "study", "north.terms", "--node-key", wrong, "--yes"
        )
        assert code == 1 and "a public key on a NIST curve" in err
    assert Path("study/federation.toml").read_bytes() == before
    words = ("north.terms", "--node-key", str(public), "--yes")
    assert run("federation", "add", "study", *words)[0] == 0
    listed = tomllib.loads(Path("study/federation.toml").read_text())
    assert listed["transport"]["address"] == "localhost:9000"
    kept = Path("study") / listed["sources"][0]["node_key"]
    assert kept.read_bytes() == public.read_bytes()


def test_status_shows_all_sources_and_their_spending(run, tmp_path):
    federation = make_local(tmp_path / "trial", 2, transport="files")
    code, out, _ = run("federation", "status", "trial/study", "--json")
    assert (
        code == 0 and not (federation.study / "coordinator.history").exists()
    )  # looking makes none
    fresh = json.loads(out)["sources"]
    assert [one["name"] for one in fresh] == ["north", "south"]
    assert all(one["spent"]["epsilon"] == 0 and one["head"] is None for one in fresh)

    ask_counts(federation, 250_000)
    code, out, _ = run("federation", "status", "trial/study", "--json")
    assert code == 0
    for one in json.loads(out)["sources"]:
        assert (one["answered"], one["unknown"], one["fault"]) == (1, 0, None)
        assert one["spent"] == {"epsilon": 0.25, "delta": 0.0}
        assert one["left"]["epsilon"] == 0.75 and one["head"]["index"] == 1
    code, out, _ = run("federation", "status", "trial/study")
    assert code == 0 and "north" in out and "0.25" in out and "0.75" in out


def test_status_detects_a_missing_history(run, tmp_path):
    federation = make_local(tmp_path / "trial", 1, transport="files")
    ask_counts(federation, 250_000)
    (federation.study / "coordinator.history").unlink()
    ask_counts(federation, 100_000)
    _, out, _ = run("federation", "status", "trial/study", "--json")
    assert json.loads(out)["sources"][0]["missing"] == 1
    _, out, _ = run("federation", "status", "trial/study")
    assert "its ledger has 1 more" in " ".join(out.split())


def ask_counts(made: LocalFederation, micro_epsilon: int) -> None:
    """Send one query to all hospitals, and record it in the coordinator's history."""
    key = PrivateKey.read(made.study / "coordinator.pem")
    servers = [open_source(hospital.source) for hospital in made.hospitals]
    transport = LocalTransport({server.terms.source: server.reply for server in servers})
    with RequestHistory(made.study / "coordinator.history", key.public) as history:
        federated = RemotePool([server.terms for server in servers], key, transport, history)
        federated.answer(CorrectWrong(Bins(1)), micro_epsilon=micro_epsilon)


def test_an_empty_federation_says_so(run, study):
    code, out, _ = run("federation", "status", "study")
    assert code == 0 and "No sources in" in out
    code, _, err = run("federation", "status", "elsewhere")
    assert code == 1 and "federation.toml: expected an existing file" in err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[coordinator", "valid TOML"),
        ("sources = 3", "no 'coordinator'"),
        ("[coordinator]\n[transport]\nsources = 3", "name, key, history"),
    ],
)
def test_a_list_that_cannot_be_read_is_named(run, study, text, found):
    terms(study, "north", "a")
    Path("study/federation.toml").write_text(text)
    code, _, err = run("federation", "status", "study")
    assert code == 1 and "study/federation.toml: " in err and found in err


def test_a_federation_by_files_needs_no_superlink(run, study):
    code, _, err = run("federation", "superlink", "study")
    assert code == 1 and "It needs no SuperLink" in err

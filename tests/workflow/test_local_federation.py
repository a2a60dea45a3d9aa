"""A federation of made-up hospitals is a real one: real keys, real sources, real answers."""

from pathlib import Path

import pytest

from veracal.artifact import PrivateClassifier
from veracal.calibration import metrics, recalibrate
from veracal.data import load
from veracal.errors import DataError
from veracal.federation.coordinator.members import KEY, members
from veracal.federation.models import model_hash
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Request, unsealed_reply
from veracal.federation.source.serving import open_source
from veracal.federation.transports.files import FilesTransport, serve_folder
from veracal.workflow.local_federation import (
    Courier,
    LocalFederation,
    hospital_names,
    is_made,
    make_local,
    open_local,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> LocalFederation:
    folder = tmp_path_factory.mktemp("federations") / "three"
    return make_local(folder, 3, carrier="files")


def test_everybody_takes_part_in_what_was_made(made):
    sources = members(made.study)
    assert [terms.name for terms in sources] == ["north", "south", "west"]
    assert {terms.model for terms in sources} == {model_hash(made.model)}
    assert is_made(made.folder) and open_local(made.folder) == made


def test_the_model_is_too_sure_at_the_hospitals(made):
    """So that there is something to repair, which one temperature repairs."""
    model = PrivateClassifier.load(made.model)
    for hospital in made.hospitals:
        table = load(hospital.folder / "visits.csv", schema=model.schema)
        scores = model.scores(table, mapped=False)
        repaired = recalibrate(scores, "temperature", private=False).transform(scores)
        assert metrics.ece(repaired) < metrics.ece(scores) / 3


def test_a_courier_brings_requests_and_answers(made):
    key, sources = PrivateKey.read(made.study / KEY), members(made.study)
    asked = {
        terms.source: Request(
            terms.source, terms.data, terms.model, "counts", {}, 100_000
        ).sealed(key)
        for terms in sources
    }
    requests, answers = made.study / "requests", made.study / "answers"
    with pytest.raises(Exception, match="Waiting for answers of north, south, west"):
        list(FilesTransport(requests, answers, sources).exchange(asked, timeout=1))
    courier = Courier(made)
    assert courier.go() == 3
    for hospital in made.hospitals:
        desk = _AtOnce(open_source(hospital.source))
        assert serve_folder(desk, hospital.inbox, hospital.outbox, once=True) == 1
    assert courier.go() == 3 and courier.go() == 0
    came = dict(FilesTransport(requests, answers, sources).exchange(asked, timeout=1))
    for terms in sources:
        reply = unsealed_reply(came[terms.source], terms.key)
        assert isinstance(reply, Answer) and abs(sum(reply.units) - 3_000) < 600


class _AtOnce:
    """A desk that does not wait for its deadline."""

    def __init__(self, desk) -> None:
        self.terms, self.answer = desk.terms, desk.reply


def test_nothing_is_made_where_something_is(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(DataError, match="a new or empty folder"):
        make_local(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("sources", [0, 21, 2.5])
def test_so_many_are_not_made(tmp_path, sources):
    with pytest.raises(ValueError, match="Expected"):
        make_local(tmp_path / "f", sources)
    assert not (tmp_path / "f").exists()


def test_what_could_not_be_made_leaves_nothing(tmp_path: Path):
    def stop(line: str) -> None:
        if "south" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_local(tmp_path / "f", 2, carrier="files", tell=stop)
    assert not (tmp_path / "f").exists()


def test_hospitals_have_names_of_their_own():
    assert len(set(hospital_names(20))) == 20
    assert hospital_names(9)[-1] == "hospital-9"

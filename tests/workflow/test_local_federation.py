"""A local federation of synthetic hospitals, with real keys, sources and answers."""

from pathlib import Path

import pytest

from veracal import calibration
from veracal.artifact import PrivateClassifier
from veracal.calibration import recalibrate
from veracal.data import load
from veracal.errors import DataError
from veracal.federation.coordinator.source_list import KEY_FILE, read_source_list
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Request, unseal_reply
from veracal.federation.protocol.terms import model_hash
from veracal.federation.source.serving import open_source
from veracal.federation.transports import FilesTransport, serve_folder
from veracal.workflow.local_federation import (
    Courier,
    LocalFederation,
    exists_local,
    hospital_names,
    make_local,
    open_local,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> LocalFederation:
    folder = tmp_path_factory.mktemp("federations") / "three"
    return make_local(folder, 3, transport="files")


def test_all_hospitals_are_members_of_a_local_federation(federation):
    sources = read_source_list(federation.source_list).terms
    assert [terms.name for terms in sources] == ["north", "south", "west"]
    assert {terms.model for terms in sources} == {model_hash(federation.model)}
    assert exists_local(federation.folder) and open_local(federation.folder) == federation


def test_the_model_is_overconfident_at_the_hospitals(federation):
    """So that the model is miscalibrated, and one temperature recalibrates it."""
    model = PrivateClassifier.load(federation.model)
    for hospital in federation.hospitals:
        table = load(hospital.folder / "visits.csv", schema=model.schema)
        scores = model.scores(table, mapped=False)
        repaired = recalibrate(scores, "temperature", private=False).transform(scores)
        assert calibration.ece(repaired) < calibration.ece(scores) / 3


def test_a_courier_carries_requests_and_answers(federation):
    key = PrivateKey.read(federation.study / KEY_FILE)
    sources = read_source_list(federation.source_list).terms
    requested = {
        terms.source: Request(
            terms.source, terms.data, terms.model, "counts", {}, 100_000
        ).seal(key)
        for terms in sources
    }
    requests, answers = federation.study / "requests", federation.study / "answers"
    with pytest.raises(Exception, match="Waiting for answers of north, south, west"):
        list(FilesTransport(requests, answers, sources).exchange(requested, timeout=1))
    courier = Courier(federation)
    assert courier.carry() == 3
    for hospital in federation.hospitals:
        server = _AtOnce(open_source(hospital.source))
        assert serve_folder(server, hospital.inbox, hospital.outbox, once=True) == 1
    assert courier.carry() == 3 and courier.carry() == 0
    came = dict(FilesTransport(requests, answers, sources).exchange(requested, timeout=1))
    for terms in sources:
        reply = unseal_reply(came[terms.source], terms.key)
        assert isinstance(reply, Answer) and abs(sum(reply.units) - 3_000) < 600


class _AtOnce:
    """A server that does not wait for its deadline."""

    def __init__(self, server) -> None:
        self.terms, self.answer = server.terms, server.reply


def test_a_folder_with_files_is_rejected(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(DataError, match="a new or empty folder"):
        make_local(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("sources", [0, 21, 2.5])
def test_an_invalid_number_of_sources_is_rejected(tmp_path, sources):
    with pytest.raises(ValueError, match="Expected"):
        make_local(tmp_path / "f", sources)
    assert not (tmp_path / "f").exists()


def test_a_failed_creation_leaves_no_files(tmp_path: Path):
    def stop(line: str) -> None:
        if "south" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_local(tmp_path / "f", 2, transport="files", log=stop)
    assert not (tmp_path / "f").exists()


def test_hospital_names_are_unique():
    assert len(set(hospital_names(20))) == 20
    assert hospital_names(9)[-1] == "hospital-9"

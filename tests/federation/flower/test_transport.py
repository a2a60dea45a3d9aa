"""Real processes over TLS with registered keys: requests are answered, and nothing else."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from veracal.errors import TransportError
from veracal.federation.flower import transport as flower_transport
from veracal.federation.flower.superlink import make_server_files
from veracal.federation.flower.transport import FlowerTransport
from veracal.federation.flower.wire import (
    Connection,
    flower,
    http_error,
    http_status,
    public_form,
    read_node_key,
)

pytestmark = pytest.mark.full

NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def three(federation):
    """A federation of three nodes that answer, and of some that do not."""
    federation.register(*NAMES, "large")
    for name in NAMES:
        federation.node(name)
    federation.node("large", "huge")
    federation.node("stranger")
    return federation


def environ(pid: int) -> dict[str, str]:
    """Variables of a process, as it was started."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_every_request_is_answered_by_its_own_source(three):
    with three.transport(*NAMES) as transport:
        for number in range(3):
            requests = {name: f"{name} {number}".encode() for name in NAMES}
            replies = dict(transport.exchange(requests, timeout=240))
            assert replies == {name: b"answer to " + requests[name] for name in NAMES}


def test_a_node_with_an_unregistered_key_is_not_served(three):
    three.said("stranger", "its key is not registered there")
    with three.transport(*NAMES) as transport:
        assert len(dict(transport.exchange({n: b"a" for n in NAMES}, timeout=240))) == 3
    assert "Connected" not in three.log("stranger").read_text()


@pytest.mark.long
def test_nothing_is_sent_to_a_node_that_a_stranger_registers(three):
    """Flower lets anyone who reaches the SuperLink register a node."""
    three.node("intruder", "slow")
    with three.transport("intruder"):
        pass  # as anyone could
    three.said("intruder", "Connected")
    with three.transport(*NAMES) as transport:
        assert len(dict(transport.exchange({n: b"b" for n in NAMES}, timeout=240))) == 3
    assert "asked" not in three.log("intruder").read_text()


UNANSWERED = "A request was not answered (ValueError)."


@pytest.fixture
def later(monkeypatch):
    """A function that advances the clock of transports only."""
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(flower_transport, "time", clock)

    def let_pass(seconds):
        passed[0] += seconds

    return let_pass


def test_a_request_without_reply_is_repeated_once(three, later):
    three.register("deaf")
    three.node("deaf", "deaf")
    with three.transport("deaf") as transport, ThreadPoolExecutor() as threads:
        replies = threads.submit(
            lambda: dict(transport.exchange({"deaf": b"to deaf"}, timeout=480))
        )
        three.said("deaf", UNANSWERED)
        later(241)  # half of the time is over, and the other half begins
        assert replies.result() == {"deaf": b"answer to to deaf"}


def test_a_node_killed_in_a_round_answers_in_that_round_after_a_restart(three):
    names = (*NAMES, "east")
    first = three.node("east", "slow")
    with three.transport(*names) as transport, ThreadPoolExecutor() as threads:
        requests = {name: b"to " + name.encode() for name in names}
        replies = threads.submit(lambda: dict(transport.exchange(requests, timeout=280)))
        three.said("east", "queried")
        first.kill()
        first.wait()
        three.node("east", "slow")
        assert replies.result() == {name: b"answer to " + requests[name] for name in names}
    assert three.log("east").read_text().count("queried") == 2


@pytest.mark.parametrize("size", [1_048_577, 1_200_000])
def test_a_reply_that_is_too_large_is_dropped(three, size):
    with three.transport("north", "large") as transport:
        requests = {"north": b"c", "large": str(size).encode()}
        assert dict(transport.exchange(requests, timeout=240)) == {"north": b"answer to c"}


def test_a_reply_of_the_largest_size_arrives(three):
    with three.transport("large") as transport:
        replies = dict(transport.exchange({"large": b"1048576"}, timeout=240))
    assert replies == {"large": bytes(1_048_576)}


@pytest.mark.long
def test_an_absent_source_drops_out(three, later):
    with three.transport("north", "unknown") as transport:
        replies = transport.exchange({"north": b"d", "unknown": b"d"}, timeout=240)
        assert next(replies) == ("north", b"answer to d")
        later(236)
        assert list(replies) == []


@pytest.mark.long
def test_a_node_survives_a_failing_answer_without_details(three, later):
    three.node("frail", "broken")
    with three.transport("frail") as transport, ThreadPoolExecutor() as threads:
        three.said("frail", "Connected")
        replies = threads.submit(
            lambda: dict(transport.exchange({"frail": b"break"}, timeout=240))
        )
        three.said("frail", UNANSWERED)
        later(240)
        assert replies.result() == {}
        assert dict(transport.exchange({"frail": b"go"}, timeout=240)) == {
            "frail": b"answer to go"
        }
    log = three.log("frail").read_text()
    assert UNANSWERED in log and "somebody" not in log


@pytest.mark.long
def test_a_round_continues_in_another_run_after_its_run_was_stopped(three):
    """Flower lets anyone who reaches the SuperLink stop runs."""
    three.node("patient", "slow")
    with three.transport("patient") as transport, ThreadPoolExecutor() as threads:
        replies = threads.submit(
            lambda: dict(transport.exchange({"patient": b"e"}, timeout=280))
        )
        three.said("patient", "queried")
        stop_all_runs(three)
        assert replies.result() == {"patient": b"answer to e"}


def stop_all_runs(three):
    """Do as a stranger could, who has no secret."""
    ca, control = three.link.files.authority, flower().control
    client = flower().ControlClient
    with closing(Connection(client, three.link.address, ca, max_bytes=10**7)) as connection:
        for run in connection.call("ListRuns", control.ListRunsRequest()).run_dict:
            with suppress(http_error()):  # it is over
                connection.call("StopRun", control.StopRunRequest(run_id=run))


def test_telemetry_updates_and_installation_are_off_and_the_home_is_unchanged(three):
    variables = environ(three.link.pid)
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert Path(variables["FLWR_HOME"]).is_relative_to(three.folder)
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"  # and here, where a transport ran
    assert list(three.user.iterdir()) == []


def test_a_node_cannot_register_its_own_key(three):
    key = read_node_key(three.key("stranger"))
    address, ca = three.link.address, three.link.files.authority
    signature = flower().NodeSignature(key, key.public_key())
    request = flower().fleet.RegisterNodeFleetRequest(public_key=public_form(key.public_key()))
    with (
        closing(
            Connection(flower().FleetClient, address, ca, [signature], max_bytes=10**6)
        ) as connection,
        pytest.raises(http_error()),
    ):
        connection.call("RegisterNode", request)


def test_a_run_cannot_be_taken_without_the_secret(three):
    """Otherwise every client of the SuperLink could act as the coordinator."""
    request = flower().runtime.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    address, ca = three.link.address, three.link.files.authority
    with (
        closing(Connection(flower().RuntimeClient, address, ca, max_bytes=10**6)) as connection,
        pytest.raises(http_error()) as caught,
    ):
        connection.call("AcquireTask", request)
    assert http_status(caught.value) == 401


def test_no_app_is_ever_fetched(three):
    """The app of a run is not fetched: nodes fetch messages only."""
    with three.transport("north") as transport:
        assert dict(transport.exchange({"north": b"c"}, timeout=240))
    said = three.link.log.read_text()
    assert "[Fleet.PushMessages]" in said
    assert "[Fleet.GetRun]" not in said and "[Fleet.GetFab]" not in said


@pytest.mark.long
def test_a_wrong_secret_is_explained(three, tmp_path):
    wrong = tmp_path / "secret"
    wrong.write_bytes(b"guessed")
    key = three.key("north").with_suffix(".key.pub")
    files = three.link.files
    with (
        FlowerTransport(
            three.link.address,
            ca=files.authority,
            secret=wrong,
            nodes={"north": key},
            home=tmp_path,
        ) as transport,
        pytest.raises(
            TransportError, match="refuses this coordinator: the secret may be wrong"
        ),
    ):
        list(transport.exchange({"north": b"f"}, timeout=2))


def test_another_authority_is_not_trusted(three, tmp_path):
    other = make_server_files(tmp_path).authority
    key = three.key("north").with_suffix(".key.pub")
    transport = FlowerTransport(
        three.link.address,
        ca=other,
        secret=three.link.secret,
        nodes={"north": key},
        home=tmp_path,
    )
    with pytest.raises(TransportError, match="is not signed by .* Nothing was sent"):
        transport.__enter__()


@pytest.mark.long
def test_a_stopped_node_disconnects(three):
    node = three.node("brief")
    with three.transport("brief"):
        three.said("brief", "Connected")
    node.send_signal(signal.SIGTERM)
    assert node.wait(240) == 0


@pytest.mark.parametrize(
    ("requests", "timeout", "problem"),
    [
        ({"nowhere": b"a"}, 1.0, "Expected a source with a node, got 'nowhere'"),
        ({"north": bytes(4097)}, 1.0, "at most 4096 bytes, got 4097 bytes for 'north'"),
        ({"north": b"a"}, 0.0, "Expected a finite timeout > 0"),
    ],
)
def test_invalid_requests_are_rejected(three, requests, timeout, problem):
    with three.transport("north") as transport, pytest.raises(ValueError, match=problem):
        list(transport.exchange(requests, timeout=timeout))


def test_a_transport_must_be_open(three):
    with pytest.raises(RuntimeError, match="with block"):
        list(three.transport("north").exchange({"north": b"a"}, timeout=1))

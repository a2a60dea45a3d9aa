"""What is used of Flower is there, or the extra that brings it is named."""

import sys
from importlib.metadata import version

import pytest

from veracal.errors import MissingExtraError
from veracal.federation.flower.superlink import make_server_files, superlink_command
from veracal.federation.flower.wire import flower

pytestmark = pytest.mark.full


@pytest.fixture
def forgotten():
    """Clear the cache of Flower's parts before and after."""
    flower.cache_clear()
    yield
    flower.cache_clear()


def test_all_parts_of_flower_exist_in_the_supported_release():
    assert version("flwr").startswith("1.41.")
    assert flower().FleetClient.__name__ == "FleetHttpClient"


@pytest.mark.usefixtures("forgotten")
def test_without_flower_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.supernode.fleet_http_client", None)
    with pytest.raises(MissingExtraError, match=r"This needs flwr.*veracal\[flower\]"):
        flower()
    with pytest.raises(MissingExtraError, match=r"This needs flwr.*veracal\[flower\]"):
        superlink_command(tmp_path, make_server_files(tmp_path), "127.0.0.1", 1)

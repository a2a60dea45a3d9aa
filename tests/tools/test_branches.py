"""The counter of branches sees each outcome, and changes nothing that it counts."""

from pathlib import Path

import numpy as np
import pytest

from tests.tools import branches

DECISIONS = """
'''Text of the module.'''

def sign(x):
    '''Text of the function.'''
    if x > 0:
        return 1
    return 0 if x == 0 else -1

def total(rows):
    found = 0
    for row in rows:
        found += row
    while found > 10:
        found -= 10
    return found

def name(x):
    match x:
        case int():
            return "number"
        case "a":
            return "letter"

def tried(call):
    try:
        return call()
    except ValueError:
        return None
"""


@pytest.fixture
def counted():
    """A function that runs a statement and names the branches that it took."""
    source = branches.instrumented(Path("some.py"), DECISIONS.encode(), 0)
    hits = bytearray(len(source.blocks))
    space = {branches.NAME: hits}
    exec(compile(source.tree, "some.py", "exec", dont_inherit=True), space)

    def run(statement):
        hits[:] = bytes(len(hits))
        value = eval(statement, space)
        entered = np.flatnonzero(np.frombuffer(hits, np.uint8))
        blocks = [source.blocks[number] for number in entered]
        return value, [block.what for block in blocks if block.is_branch]

    return run


@pytest.mark.parametrize(
    ("statement", "value", "taken"),
    [
        ("sign(2)", 1, ["if true"]),
        ("sign(-2)", -1, ["if false"]),
        ("total([])", 0, ["loop end", "loop end"]),
        ("total([4, 9])", 3, ["loop body", "loop end", "loop body", "loop end"]),
        ("name(1)", "number", ["case"]),
        ("name(None)", None, ["no case"]),
        ("tried(dict)", {}, []),
        ("tried(lambda: int('x'))", None, ["except"]),
        ("(__doc__, sign.__doc__)", ("Text of the module.", "Text of the function."), []),
    ],
)
def test_each_outcome_of_a_decision_is_counted(counted, statement, value, taken):
    assert counted(statement) == (value, taken)


def test_every_pattern_of_the_release_path_names_files():
    assert all(path.is_file() for path in branches.files())
    assert len(branches.files()) > len(branches.settings()["files"])


def test_a_result_tells_what_quick_tests_take(tmp_path):
    tests = {"": [0], "a": [1, 2], "b": [3]}
    entered = {name: np.array(found, np.uint16).tobytes() for name, found in tests.items()}
    branches.Result.of(entered, {"b"}).write(tmp_path / "result.npz")
    result = branches.Result.read(tmp_path / "result.npz")
    assert np.flatnonzero(result.entered()).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(result.entered(quick=True)).tolist() == [0, 1, 2]


def test_results_of_other_code_are_rejected(tmp_path, monkeypatch):
    branches.Result.of({"": b""}, ()).write(tmp_path / "result.npz")
    monkeypatch.setattr(branches, "digest", lambda: "another")
    with pytest.raises(ValueError, match="other code"):
        branches.Result.read(tmp_path / "result.npz")

"""The gate runner: a surviving mutant fails the run, however good the real code is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assurance.__main__ import main
from assurance.entropy import ENTROPY

HONEST = """
CORRECT = abs
MUTANTS = {"the sign is forgotten": float, "zero is lost": lambda x: abs(x) or 1}

def run(subject, *, long):
    for x in (-2, 0, 3):
        assert subject(x) == max(x, -x), f"|{x}| came out as {subject(x)}"
    return f"three values, long={long}"
"""
BLIND = HONEST.replace("(-2, 0, 3)", "(2, 3)")
REJECTING = HONEST.replace("CORRECT = abs", "CORRECT = float")
CRASHING = HONEST.replace('"zero is lost": lambda x: abs(x) or 1', '"no number": str.upper')
UNARMED = HONEST + "\nMUTANTS = {}\n"
DYING = HONEST + "\nimport os\nCORRECT = lambda x: os.kill(os.getpid(), 9)\n"
LEAVING = """
from assurance import __main__ as shared
CORRECT, MUTANTS = True, {"none": False}

def run(subject, *, long):
    assert subject and not hasattr(shared, "left"), "something was left by another gate"
    shared.left = True
    return "nothing was left"
"""
DRAWING = """
import os, random, secrets
CORRECT, MUTANTS = True, {"first": False, "second": False}

def run(subject, *, long):
    drawn = f"drew {os.urandom(8).hex()} {secrets.randbits(64)} {random.random()}"
    assert subject, drawn
    return drawn
"""
SURVIVING = DRAWING.replace("assert subject, drawn", "")
PATIENT = "LONG = True\nNAME = 'patience'\n" + HONEST


@pytest.fixture
def gates(tmp_path):
    """Write gate modules into a folder, and return the folder."""

    def write(**sources: str) -> Path:
        for name, source in sources.items():
            (tmp_path / f"gate_{name}.py").write_text(source)
        return tmp_path

    return write


def test_a_gate_that_catches_its_mutants_passes(gates, capsys):
    assert main([], folder=gates(honest=HONEST)) == 0
    *table, _, counted, last = capsys.readouterr().out.splitlines()
    assert counted == "2 of 2 mutants caught"
    assert "honest" in table[1]
    assert "2/2" in table[1]
    assert "three values, long=False" in table[1]
    assert last == "1 passed, 0 failed"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (BLIND, "the mutant 'the sign is forgotten' survived"),
        (REJECTING, "the correct subject broke: |-2| came out as -2.0"),
        (CRASHING, "on the mutant 'no number' it broke down instead of judging: TypeError"),
        (UNARMED, "it has no mutants"),
    ],
    ids=["a mutant survives", "the real code breaks", "a mutant crashes", "no mutants"],
)
def test_the_run_fails(gates, capsys, source, complaint):
    assert main([], folder=gates(aside=HONEST, broken=source)) == 1
    printed = capsys.readouterr().out
    assert complaint in printed
    assert printed.endswith("\n1 passed, 1 failed\n")


def test_a_run_without_gates_fails(gates, capsys):
    assert main([], folder=gates()) == 1
    assert capsys.readouterr().out.endswith("\n0 passed, 0 failed\n")


def test_long_gates_wait_for_their_flag(gates, capsys):
    folder = gates(honest=HONEST, patient=PATIENT)
    assert main([], folder=folder) == 0
    assert "patience" not in capsys.readouterr().out
    assert main(["--long"], folder=folder) == 0
    printed = capsys.readouterr().out
    assert "patience" in printed
    assert printed.count("long=True") == 2


def test_one_gate_can_be_chosen(gates, capsys):
    folder = gates(honest=HONEST, blind=BLIND)
    assert main(["--gate", "honest"], folder=folder) == 0
    assert main(["--gate", "blind"], folder=folder) == 1
    assert main(["--gate", "deaf"], folder=folder) == 2
    assert "No gate is called deaf. There are: blind, honest." in capsys.readouterr().out


def test_the_exit_code_reaches_the_shell(gates):
    script = "import sys; from pathlib import Path; from assurance.__main__ import main; "
    script += f"sys.exit(main([], folder=Path({os.fspath(gates(blind=BLIND))!r})))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root).returncode == 1


def test_nothing_is_judged_without_assertions(gates):
    script = "from pathlib import Path; from assurance.__main__ import main; "
    script += f"raise SystemExit(main([], folder=Path({os.fspath(gates(blind=BLIND))!r})))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-O", "-c", script], cwd=root, capture_output=True)
    assert done.returncode == 2


def test_several_gates_at_a_time_are_judged_like_one_after_the_other(gates, capsys):
    folder = gates(one=HONEST, other=BLIND, third=HONEST)
    assert main(["--jobs", "2"], folder=folder) == 1
    printed = capsys.readouterr().out
    assert "the mutant 'the sign is forgotten' survived" in printed
    assert [printed.count(f"\n{name} ") for name in ("one", "other", "third")] == [1, 1, 1]
    assert printed.endswith("\n2 passed, 1 failed\n")
    assert main(["--jobs", "2", "--gate", "one", "--gate", "third"], folder=folder) == 0


def test_gates_run_in_an_order_drawn_by_the_seed(gates, capsys):
    names = ["first", "fourth", "second", "third"]
    folder = gates(**dict.fromkeys(names, HONEST))

    def order(*options: str) -> list[str]:
        assert main(options, folder=folder) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.split()[0] for line in lines if line.split()[0] in names]

    assert order() == names
    orders = [order("--shuffle", str(seed)) for seed in range(5)]
    assert order("--shuffle", "3") == orders[3]
    assert all(sorted(each) == names for each in orders)
    assert len(set(map(tuple, orders))) > 1


def test_a_gate_whose_process_dies_fails_and_the_others_are_judged(gates, capsys):
    folder = gates(dying=DYING, honest=HONEST, third=HONEST)
    assert main(["--jobs", "2"], folder=folder) == 1
    printed = capsys.readouterr().out
    assert "its process died" in printed
    assert printed.endswith("\n2 passed, 1 failed\n")


def test_of_several_gates_none_sees_what_another_left(gates, capsys):
    folder = gates(one=LEAVING, other=LEAVING, third=LEAVING)
    assert main(["--jobs", "2"], folder=folder) == 0
    assert capsys.readouterr().out.endswith("\n3 passed, 0 failed\n")


def test_each_subject_draws_what_it_drew_in_the_run_before(gates, capsys):
    folder = gates(one=SURVIVING, other=SURVIVING)

    def drawn(*options: str) -> set[str]:
        main([*options], folder=folder)
        lines = capsys.readouterr().out.splitlines()
        return {line.partition(" drew ")[2] for line in lines if "survived" in line}

    first = drawn()
    assert len(first) == 4  # two mutants of two gates
    assert len({line.split()[2] for line in first}) == 1  # Python's generator is seeded again
    assert drawn() == drawn("--jobs", "2") == first
    assert drawn("--gate", "one") < first
    assert not drawn("--fresh-entropy") & first
    assert not drawn("--long") & first


def test_mutants_are_listed_by_gate(gates, capsys):
    assert main(["--list"], folder=gates(honest=HONEST, patient=PATIENT)) == 0
    printed = capsys.readouterr().out
    assert "4 mutants of 2 gates." in printed
    assert "## `honest`: 2\n\n- the sign is forgotten\n- zero is lost\n" in printed
    assert "## `patience`: 2, long runs only\n" in printed


@pytest.mark.full  # gates import torch and transformers
def test_the_published_list_of_mutants_is_up_to_date(capsys):
    assert main(["--list"]) == 0
    page = Path(__file__).parents[2] / "assurance" / "MUTANTS.md"
    command = "python -m assurance --list > assurance/MUTANTS.md"
    assert capsys.readouterr().out == page.read_text(), f"Write the page anew: {command}"


def test_a_fork_draws_other_bytes_and_the_same_ones_again():
    def families() -> list[bytes]:
        """What two children, a child of the first one, and then the parent draw."""
        with ENTROPY.named("a test"):
            drawn = [of_child(lambda: os.urandom(8) + of_child(lambda: os.urandom(8)))]
            return [*drawn, of_child(lambda: os.urandom(8)), os.urandom(8)]

    first = families()
    parts = {first[0][:8], first[0][8:], *first[1:]}
    assert len(parts) == 4
    assert families() == first


def of_child(work) -> bytes:
    """What a forked child does."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, work())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        sent = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return sent

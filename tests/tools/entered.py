"""Which of our functions does one `veracal fit` enter, and how many of them could be inlined?

    python -m tests.tools.entered          # a table in Markdown
    python -m tests.tools.entered --list   # also the functions that nothing but their caller names

A function that is used at one place, and that no test, gate, page or example names, can be
inlined without losing anything but its name. The others have a second caller, are one of several
implementations of a method, or are tested by name. So the number of functions that a fit enters
cannot fall below the sum of the other rows while it performs the same steps.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "veracal"
OTHERS = ("tests", "assurance", "docs", "examples", "benchmarks")
SCHEMA = """
format = 1
name = "entered"
size = 1500
[columns.age]
kind = "number"
lower = 0
upper = 100
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.outcome]
kind = "target"
classes = ["well", "ill"]
"""
PROFILE = """
import sys, threading
root, entered = sys.argv[1], set()
def profile(frame, event, argument):
    code = frame.f_code
    ours = code.co_filename.startswith(root) and code.co_filename.endswith(".py")
    if event == "call" and ours and code.co_flags & 2 and code.co_name[0] != "<":
        entered.add((code.co_filename, code.co_qualname))
sys.argv = ["veracal", *sys.argv[2:]]
threading.setprofile(profile)
sys.setprofile(profile)
try:
    from veracal.cli import main
    main()
finally:
    sys.setprofile(None)
    for file, name in sorted(entered):
        print(f"ENTERED {file} {name}")
"""


def entered_functions() -> list[tuple[str, str]]:
    """File and qualified name of each function of the package that a small fit enters."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [
            f"{20 + i % 60},{'fm'[i % 2]},{'ill' if i * 7919 % 100 < 20 + i % 60 else 'well'}"
            for i in range(1500)
        ]
        (folder / "t.csv").write_text("\n".join(["age,sex,outcome", *lines, ""]))
        (folder / "t.toml").write_text(SCHEMA)
        command = [sys.executable, "-c", PROFILE, str(PACKAGE), "fit", "t.csv"]
        command += ["--schema", "t.toml", "--epsilon", "3", "--out", "model"]
        environment = os.environ | {"VERACAL_LEDGERS": name, "PYTHONPATH": str(ROOT / "src")}
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    rows = [line.split(" ", 2)[1:] for line in ended.stdout.splitlines() if "ENTERED " in line]
    return [(str(Path(file).relative_to(PACKAGE)), name) for file, name in rows]


def count_words(paths: list[Path]) -> Counter[str]:
    """How often each identifier occurs in the files."""
    words = Counter[str]()
    for path in paths:
        if path.suffix in {".py", ".md", ".j2", ".toml"}:
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return words


def classify(functions: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Functions by the reason for which they have a name."""
    ours = count_words([path for path in PACKAGE.rglob("*") if path.is_file()])
    others = [path for top in OTHERS for path in (ROOT / top).rglob("*") if path.is_file()]
    elsewhere = count_words([*others, ROOT / "README.md"])
    defined = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        defined.update(re.findall(r"def (\w+)", path.read_text(encoding="utf-8")))
    kinds: dict[str, list[tuple[str, str]]] = {
        "used at several places": [],
        "one of several methods of that name": [],
        "special method": [],
        "used once, named by tests, gates or docs": [],
        "used once, named nowhere else": [],
    }
    for file, qualified in functions:
        name = qualified.rpartition(".")[2]
        if name.startswith("__"):
            kind = "special method"
        elif defined[name] > 1:
            kind = "one of several methods of that name"
        elif ours[name] > 2:
            kind = "used at several places"
        elif elsewhere[name]:
            kind = "used once, named by tests, gates or docs"
        else:
            kind = "used once, named nowhere else"
        kinds[kind].append((file, qualified))
    return kinds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also list what could be inlined")
    options = parser.parse_args()
    functions = entered_functions()
    kinds = classify(functions)
    print("| functions that a fit enters | |", "|---|---:|", sep="\n")
    for kind, members in kinds.items():
        print(f"| {kind} | {len(members)} |")
    print(f"| all, in {len({file for file, _ in functions})} files | {len(functions)} |")
    if options.list:
        print("", *(f"{file}: {name}" for file, name in kinds[kind]), sep="\n")


if __name__ == "__main__":
    main()

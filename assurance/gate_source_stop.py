"""``veracal source serve`` ends with its closing line and exit code 0 after SIGTERM.

Real processes serve a real source. In each, a trace sends SIGTERM at one chosen instruction
after the first line of output: inside the definition of a data class of a module that is being
imported, right after that line, and while the source waits for requests. An earlier version
raised KeyboardInterrupt from the handler. If it interrupted the code of a data class, which
Python runs by ``exec``, the interpreter recorded it and ended with SIGINT (exit code -2).
"""

import json
import subprocess
import sys
from functools import cache

from assurance import sources

NAME = "source_stop"
SECONDS = 12
PATIENCE = 900  # seconds, which only a deadlock takes
# Where a signal is sent, as a condition on a frame after the first line.
PLACES = {
    "in an import": "frame.f_code.co_filename == '<string>'",
    "after the first line": "True",
    "while it waits": (
        "frame.f_code.co_name == 'serve_folder' and 'folder_server' in frame.f_locals"
    ),
}
# Everything is imported once. Each place is tried by a fork for each subject, which goes on to
# the end of the script and of the interpreter: that is where the exit code is decided.
CHILD = """\
import json, os, signal, sys, threading
import veracal.cli, veracal.cli._source_enroll as serving, veracal.cli.source
from pathlib import Path
from veracal.cli import _output as _show
tries, (folder, *boxes) = json.loads(sys.argv[1]), sys.argv[2:]
found = []
for subject, condition in tries:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 2)
        break
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    found.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text])
else:
    print(json.dumps(found))
    sys.exit()
os.close(writer)
exec(compile(subject, "<subject>", "exec"))  # not "<string>": see PLACES
seen = []
def trace(frame, event, argument):
    if len(seen) == 1 and eval(condition, {"frame": frame}):
        seen.append("sent")
        os.kill(os.getpid(), signal.SIGTERM)
    return trace if len(seen) < 2 else None
def status(text, status=_show.print_status):
    status(text)
    if not seen:
        seen.append("first line")
        sys.settrace(trace)
        frame = sys._getframe()
        while frame is not None:
            frame.f_trace = trace
            frame = frame.f_back
_show.print_status = status
sys.argv = ["veracal", "source", "serve", folder, *boxes]
veracal.cli.main()
"""
CORRECT = ""
MUTANTS = {
    "a handler that raises, in the thread that serves": """\
def run(folder, enrollment, transport):
    stop = threading.Event()
    def interrupt(number, frame):
        stop.set()
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        log = lambda line: _show.print_status(line)
        serving._serve(Path(folder), enrollment, transport, stop, log)
    except KeyboardInterrupt:
        _show.print_status("Stopped. All answers are stored.")
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, before)
serving.serve_source = run
""",
    "no handler": """\
serving.until_stopped = lambda work, closing, timeout: work(
    threading.Event(), lambda line: _show.print_status(line)
)
""",
}


def run(subject: str, *, long: bool) -> str:
    """Stop a source at every place."""
    for place, (code, said) in stopped()[subject].items():
        assert code == 0, f"exit code {code} after a signal {place}: {said[-200:]!r}"
        assert said.endswith("All answers are stored.\n"), f"{place}: {said[-200:]!r}"
    return f"exit code 0 and the closing line after a signal {', '.join(PLACES)}"


@cache
def stopped() -> dict[str, dict[str, tuple[int, str]]]:
    """Exit code and stderr of a source after a signal, for every subject and point."""
    subjects = (CORRECT, *MUTANTS.values())
    tries = [(subject, condition) for subject in subjects for condition in PLACES.values()]
    with sources.enrolled({}, heads=False) as north:
        folder = north.path.parent
        script, boxes = folder / "child.py", [folder / "in", folder / "out"]
        script.write_text(CHILD)
        for box in boxes:
            box.mkdir()
        words = [json.dumps(tries), north.path, "--inbox", boxes[0], "--outbox", boxes[1]]
        done = subprocess.run(
            [sys.executable, "-m", script.stem, *words],  # as `python -m veracal` does
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    body = iter(json.loads(done.stdout))
    return {subject: {place: next(body) for place in PLACES} for subject in subjects}

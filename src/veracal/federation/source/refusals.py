"""The log of what a source refused, in words that its owner alone reads."""

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

MOST_LINES = 1_000
_SPARE = 200  # lines beyond that before the file is cut
_LONGEST = 400  # characters of a reason
_GAP = "  "


@dataclass(frozen=True)
class Refusals:
    """A file of at most so many lines, the last ones.

    Guarantees
    ----------
    It grows no further than its bound, whatever is sent. What is written is printable, and
    short, whoever chose the words.
    """

    path: Path

    def add(self, why: str) -> None:
        """Write down a refusal."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        line = f"{now}{_GAP}{_printable(why)}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        self._cut()

    def lines(self) -> list[tuple[str, str]]:
        """When (UTC) and why, the oldest first."""
        try:
            text = self.path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        found = (line.partition(_GAP) for line in text.splitlines()[-MOST_LINES:])
        return [(when, why) for when, gap, why in found if gap]

    def _cut(self) -> None:
        """Drop the oldest lines once there are too many."""
        if self.path.stat().st_size < MOST_LINES * 40:
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        if len(lines) > MOST_LINES + _SPARE:
            shorter = self.path.with_name(f".{self.path.name}")
            shorter.write_bytes(b"".join(lines[-MOST_LINES:]))
            shorter.chmod(0o600)
            shorter.replace(self.path)


def _printable(why: str) -> str:
    """Words on one line that no terminal obeys."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(why.split()))
    return shown[:_LONGEST]

"""Somebody who carries files between made-up hospitals and their calibrator, all day."""

import threading
from pathlib import Path

from veracal.errors import DataError
from veracal.federation.protocol.envelopes import MOST_ANSWER, MOST_REQUEST
from veracal.federation.transports.small_files import (
    ANSWERS,
    REQUESTS,
    look,
    names,
    put,
    slug,
)
from veracal.pipeline.local_federation import LocalFederation

_EVERY = 0.2  # seconds


class Courier:
    """Copies requests to the hospitals they are for, and answers back.

    It stands for a person with a stick, a mail program or an SFTP client, and believes
    nobody: only small plain files are carried.

    Parameters
    ----------
    made : LocalFederation
    """

    def __init__(self, made: LocalFederation) -> None:
        self._made, self._carried = made, set[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._walk, daemon=True)

    def __enter__(self) -> "Courier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def go(self) -> int:
        """Carry what there is, and say how many files that were."""
        requests, answers = self._made.study / "requests", self._made.study / "answers"
        count = 0
        for hospital in self._made.hospitals:
            mine = f"{slug(hospital.name)}-"
            count += self._carry(requests, hospital.inbox, mine, REQUESTS, MOST_REQUEST)
            count += self._carry(hospital.outbox, answers, mine, ANSWERS, MOST_ANSWER)
        return count

    def _carry(self, here: Path, there: Path, mine: str, suffix: str, most: int) -> int:
        """Copy the files of a hospital that were not carried before."""
        if not (here.is_dir() and there.is_dir()):
            return 0  # nothing was asked yet
        new = [n for n in names(here, suffix) if n.startswith(mine) and n not in self._carried]
        for name in new:
            found = look(here, name, most)
            if found is not None and found.content is not None:
                put(there, name, found.content, newer=True)
            self._carried.add(name)
        return len(new)

    def _walk(self) -> None:
        """Go back and forth until it is time to stop."""
        while not self._stop.wait(_EVERY):
            try:
                self.go()
            except (DataError, OSError):  # somebody is rearranging folders: once more
                continue

"""Replace this process by a program that ends when its parent process ends.

It is run as a file, ``python child.py PARENT PROGRAM ARGUMENT…``, and imports nothing of
Veracal, so it starts quickly. Linux sends the signal however the parent ends.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Register for a signal at the end of the parent, and execute the program."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit("The operating system cannot end a program together with its parent.")
    if os.getppid() != parent:  # the parent ended before the registration
        sys.exit("The parent of this program has ended.")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

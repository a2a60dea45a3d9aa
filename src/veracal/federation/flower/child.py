"""Become another program that ends when the one that started it does.

Run as a file, ``python child.py PARENT PROGRAM ARGUMENT…``, so that it starts quickly: it
imports nothing of Veracal. Linux sends the signal, however the parent came to its end.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Ask to be ended with the parent, and become the program."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit("The operating system cannot end a program with the one that started it.")
    if os.getppid() != parent:  # it ended before the line above
        sys.exit("Whoever started this program is gone.")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

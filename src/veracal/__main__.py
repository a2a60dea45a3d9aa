"""``python -m veracal``: the command line, where its script is not on the path."""

from veracal.cli import main

main()

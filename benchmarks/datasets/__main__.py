"""List and fetch published data sets.

python -m benchmarks.datasets list
python -m benchmarks.datasets fetch mnist contraception [--folder FOLDER] [--verify]
python -m benchmarks.datasets schema german-credit
"""

import argparse

from benchmarks.datasets import CATALOG, entry, fetch
from benchmarks.datasets.downloads import status_of
from veracal.errors import DataError


def main() -> None:
    """Print the catalog, the folders of fetched sets, or a schema as TOML."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets")
    parser.add_argument("command", choices=("list", "fetch", "schema"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", help="your own copies; by default $VERACAL_DATA")
    parser.add_argument("--verify", action="store_true", help="compare all checksums again")
    options = parser.parse_args()
    try:
        if options.command == "list":
            for known in CATALOG.values():
                status, source = status_of(known, folder=options.folder)
                print(f"{known.name:24}{known.title:30}{known.shape:36}{status}: {source}")
        for known in [entry(name) for name in options.names]:
            if options.command == "fetch":
                path = fetch(known.name, folder=options.folder, verify=options.verify)
                print(f"{known.name}\t{path}")
            elif options.command == "schema" and known.schema is not None:
                print(known.schema().to_toml(), end="")
    except DataError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()

"""Commands of the benchmark: ``python -m benchmarks.shift logits``."""

import argparse

from benchmarks.shift.logits import NETWORKS, SEVEREST, Setting, choosing, fill, measuring


def parser() -> argparse.ArgumentParser:
    """What can be typed."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.shift", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    made = commands.add_parser("logits", help="compute the logits the cache lacks")
    made.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    made.add_argument("--severity", type=int, choices=range(1, 6), default=SEVEREST)
    made.add_argument("--choosing", action="store_true", help="the settings for choosing too")
    made.add_argument("--threads", type=int, default=1, help="that torch may use")
    return top


def wanted(networks: list[str], severity: int, with_choosing: bool) -> list[Setting]:
    """Settings that were asked for, small networks first."""
    asked = measuring(severity) + (choosing() if with_choosing else [])
    order = {name: place for place, name in enumerate(NETWORKS)}
    return sorted(
        (setting for setting in asked if setting.network in networks),
        key=lambda setting: order[setting.network],
    )


def main() -> None:
    """Run what was typed."""
    typed = parser().parse_args()
    fill(wanted(typed.networks, typed.severity, typed.choosing), threads=typed.threads)


if __name__ == "__main__":
    main()

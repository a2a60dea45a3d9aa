"""Make tests and docstring examples repeatable: the system's entropy follows the test's name.

Training noise, batches, keys of splits and marks of sources all begin with the operating
system's entropy, so replacing it decides every draw of a test without opening a second way into
the library. The discrete noise of released statistics comes from OpenDP, which is replaced too;
tests of the noise itself are marked ``real_noise``. Processes that a test starts are not
reached: what they draw stays secret.
"""

import importlib
import random
import signal

import pytest
from hypothesis import HealthCheck, settings

from assurance.entropy import ENTROPY, seed_global_generators
from assurance.repeatable_noise import NOISE

# Nothing that depends on how fast the machine is: neither deadlines nor too slow a strategy.
settings.register_profile(
    "veracal",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("veracal")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run in another order, which must not matter to any of them."""
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="shuffle the modules and the tests within each of them, by this seed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle; the tests of a module stay together, so that its fixtures are made once."""
    seed = config.getoption("shuffle")
    if seed is None:
        return
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    order, chosen = random.Random(seed), list(modules.values())
    order.shuffle(chosen)
    for module in chosen:
        order.shuffle(module)
    items[:] = [item for module in chosen for item in module]


def pytest_configure() -> None:
    """Replace the entropy, and let children receive Ctrl-C even where a shell ignores it."""
    ENTROPY.install()
    NOISE.install(importlib.import_module("veracal.mechanisms.discrete_noise"))
    # A shell starts what runs in its background with SIGINT ignored, which children inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Give a test its own entropy, and start the global generators at one place."""
    seed_global_generators()
    real = item.get_closest_marker("real_noise") is not None
    with ENTROPY.named(item.nodeid), NOISE.named(item.nodeid, real=real):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """Give a shared fixture its own entropy, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    parameter = getattr(request, "param_index", 0)
    label = f"{fixturedef.baseid}::{fixturedef.argname}[{parameter}]"
    with ENTROPY.named(label), NOISE.named(label):
        return (yield)

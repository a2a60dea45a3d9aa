"""Make tests and docstring examples repeatable: the system's entropy follows the test's name.

Noise, batches, keys of splits and marks of sources all begin with the operating system's
entropy, so replacing it decides every draw of a test without opening a second way into the
library. Processes that a test starts are not reached: what they draw stays secret.
"""

import signal

import pytest

from assurance.entropy import ENTROPY, seed_global_generators


def pytest_configure() -> None:
    """Replace the entropy, and let children receive Ctrl-C even where a shell ignores it."""
    ENTROPY.install()
    # A shell starts what runs in its background with SIGINT ignored, which children inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Give a test its own entropy, and start the global generators at one place."""
    seed_global_generators()
    with ENTROPY.named(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """Give a shared fixture its own entropy, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    parameter = getattr(request, "param_index", 0)
    with ENTROPY.named(f"{fixturedef.baseid}::{fixturedef.argname}[{parameter}]"):
        return (yield)

"""Keys and terms to try things with."""

from veracal.accounting import Unit
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.queries import KINDS
from veracal.federation.protocol.terms import Terms

SOURCE, COORDINATOR, STRANGER = (PrivateKey.new() for _ in range(3))


def terms(**changed: object) -> Terms:
    """Terms of a source that answers everything."""
    fields: dict = {
        "source": "a" * 32,
        "name": "North",
        "key": SOURCE.public,
        "coordinator": COORDINATOR.public,
        "model": "b" * 64,
        "data": "c" * 32,
        "classes": 3,
        "reads": "logits",
        "relation": "add-remove",
        "unit": Unit(),
        "micro_epsilon": 1_000_000,
        "delta": 1e-5,
        "max_per_answer": 500_000,
        "kinds": tuple(KINDS),
    }
    return Terms(**{**fields, **changed})

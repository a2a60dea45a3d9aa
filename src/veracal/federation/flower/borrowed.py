"""All that we use of Flower, in one place.

Most of it is not Flower's public interface, which knows no way to answer without running
code from outside: a new release of Flower is to be read against this list.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

from veracal._checks import extra

# Name here: where it lives in flwr 1.41, and what it is called there.
_PARTS = {
    "FleetClient": ("supernode.fleet_http_client", "FleetHttpClient"),
    "ControlClient": ("supercore.control", "ControlHttpClient"),
    "RuntimeClient": ("supercore.runtime", "RuntimeHttpClient"),
    "NodeSignature": ("supernode.node_auth_http_interceptor", "NodeAuthHttpInterceptor"),
    "SecretSignature": ("supercore.interceptors", "SuperExecAuthHttpInterceptor"),
    "TaskToken": ("supercore.interceptors", "RuntimeTokenHttpInterceptor"),
    "ConfigRecord": ("app", "ConfigRecord"),
    "Metadata": ("app", "Metadata"),
    "RecordDict": ("app", "RecordDict"),
    "make_message": ("app.message", "make_message"),
    "without_content": ("app.message", "remove_content_from_message"),
    "message_to_proto": ("common.serde", "message_to_proto"),
    "all_objects": ("supercore.inflatable.inflatable_object", "get_all_nested_objects"),
    "object_tree": ("supercore.inflatable.inflatable_object", "get_object_tree"),
    "walk_tree": ("supercore.inflatable.inflatable_object", "iterate_object_tree"),
    "inflate": ("supercore.inflatable.inflatable_utils", "inflate_object_from_contents"),
}
_MESSAGES = ("control", "fab", "fleet", "heartbeat", "message", "node", "runtime")


@cache
def flower() -> Any:
    """Flower's parts by the names above, and its protobuf messages by their own.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """
    found = {name: getattr(_module(where), what) for name, (where, what) in _PARTS.items()}
    messages = {name: _module(f"proto.{name}_pb2") for name in _MESSAGES}
    return SimpleNamespace(**found, **messages)


def _module(where: str) -> Any:
    """A module of Flower."""
    return extra(f"flwr.{where}", "flower")

"""Thread limits for linear algebra, without a search for its libraries in every fit."""

import sys
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

_CONTROLLERS: dict[int, ThreadpoolController] = {}


def threadpool_limits(
    limits: int, *, user_api: str | None = None
) -> AbstractContextManager[object]:
    """Limit threads as ``threadpoolctl.threadpool_limits`` does.

    That function searches all loaded libraries on every call, which takes tens of milliseconds
    once torch is loaded. Here they are searched again only after further modules were imported.
    """
    loaded = len(sys.modules)
    if loaded not in _CONTROLLERS:
        _CONTROLLERS.clear()
        _CONTROLLERS[loaded] = ThreadpoolController()
    limited: AbstractContextManager[object] = _CONTROLLERS[loaded].limit(
        limits=limits, user_api=user_api
    )
    return limited

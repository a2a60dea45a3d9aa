"""Threads of linear algebra are limited and given back, and libraries are searched for once."""

import sys
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from veracal import _threads


def blas_threads() -> set[int]:
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_blas_is_limited_inside_and_restored_afterwards() -> None:
    assert np.linalg.norm(np.ones(2)) > 1  # numpy's library is loaded
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with _threads.threadpool_limits(1, user_api="blas"):
            assert blas_threads() <= {1}
        assert blas_threads() == before


def test_libraries_are_searched_again_only_after_an_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_threads, "_CONTROLLERS", {})
    with mock.patch.object(_threads, "ThreadpoolController") as search:
        for _ in range(3):
            _threads.threadpool_limits(1)
        assert search.call_count == 1
        monkeypatch.setitem(sys.modules, "a_module_imported_since", ModuleType("since"))
        _threads.threadpool_limits(1)
        assert search.call_count == 2

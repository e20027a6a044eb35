"""Fixtures for a server, used by the tests with the SDK and over HTTP; other tests use a namespace in memory."""

from __future__ import annotations

from tests.sdk.conftest import bus, closings, loop, pytest_pyfunc_call

__all__ = ["bus", "closings", "loop", "pytest_pyfunc_call"]

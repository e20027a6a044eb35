"""One server for all tests of a worker; each test has a queue of its own."""

from __future__ import annotations

from tests.one_server import queue, running, server

__all__ = ["queue", "running", "server"]

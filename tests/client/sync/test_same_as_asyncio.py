"""The blocking client has the same classes, methods and parameters as the asyncio client."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from twinbus import client
from twinbus.client import sync

CLASSES = [
    "MessageInspector",
    "MessageReceiver",
    "MessageSender",
    "MessageSession",
    "MessagingFactory",
    "NamespaceManager",
    "NamespaceMonitor",
    "QueueClient",
    "SubscriptionClient",
    "TopicClient",
    "Transaction",
]
ASYNCIO_ONLY = {"create_message_browser"}
"""Methods that only the asyncio client has, so far."""
INTERNAL = {
    "abort", "authorized_connection", "check_open", "deliver", "drop_if_silent", "link", "mark_settled",
    "peek_deferred", "publish_sent", "register", "request", "run_with_retries", "send_in_transaction", "settle",
    "unregister",
}  # fmt: skip
"""Internal methods of the asyncio client."""
INTERNAL_IN_TRANSACTIONS = {"send"}


def methods(kind: type[Any]) -> dict[str, list[str]]:
    """Return the parameter names of all public methods."""
    parameters = {}
    for name, method in inspect.getmembers(kind, callable):
        if not name.startswith("_") and name not in INTERNAL | ASYNCIO_ONLY:
            parameters[name] = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
    return parameters


@pytest.mark.parametrize("name", CLASSES)
def test_the_blocking_classes_have_the_same_methods_and_parameters(name: str) -> None:
    asyncio_methods, sync_methods = methods(getattr(client, name)), methods(getattr(sync, name))
    if name == "Transaction":
        asyncio_methods = {
            method: names for method, names in asyncio_methods.items() if method not in INTERNAL_IN_TRANSACTIONS
        }
    asyncio_methods.pop("accept", None)  # internal constructor of a session
    assert sync_methods == asyncio_methods
    assert not [method for method in sync_methods if inspect.iscoroutinefunction(getattr(getattr(sync, name), method))]

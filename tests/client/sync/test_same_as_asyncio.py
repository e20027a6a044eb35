"""The blocking client is the other one without `await`: the same classes, methods and parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from twinbus import client
from twinbus.client import sync

CLASSES = [
    "MessageReceiver",
    "MessageSender",
    "MessageSession",
    "MessagingFactory",
    "NamespaceManager",
    "QueueClient",
    "SubscriptionClient",
    "TopicClient",
    "Transaction",
]
LATER = {"create_message_browser"}
"""Of the other client only, so far."""
INSIDE = {
    "abort", "authorized_connection", "check_open", "deliver", "drop_if_silent", "link", "mark_settled",
    "peek_deferred", "publish_sent", "register", "request", "run_with_retries", "send_in_transaction", "settle",
    "unregister",
}  # fmt: skip
"""Between the objects of the other client: nothing for applications."""
ONLY_INSIDE_TRANSACTIONS = {"send"}


def methods(kind: type[Any]) -> dict[str, list[str]]:
    """Names of the parameters of all public methods."""
    found = {}
    for name, method in inspect.getmembers(kind, callable):
        if not name.startswith("_") and name not in INSIDE | LATER:
            found[name] = [one for one in inspect.signature(method).parameters if one != "self"]
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_is_there_with_the_same_parameters(name: str) -> None:
    theirs, ours = methods(getattr(client, name)), methods(getattr(sync, name))
    if name == "Transaction":
        theirs = {method: names for method, names in theirs.items() if method not in ONLY_INSIDE_TRANSACTIONS}
    theirs.pop("accept", None)  # how a session is made
    assert ours == theirs
    assert not [method for method in ours if inspect.iscoroutinefunction(getattr(getattr(sync, name), method))]

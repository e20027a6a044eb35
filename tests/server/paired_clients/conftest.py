"""A server shared by the tests of a pytest worker: the secondary of two primaries, each with two backlog queues.

Every backlog queue has its own keys `sender` and `listener`, whose secret is the path of the queue. The namespace has
the keys `all-sender` and `all-listener` with the same rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.paired_clients.reporter import SECRET, Reporter
from tests.support.in_process_server import run_server_in_process
from tests.support.server_process import QUEUE_ENTRY
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.in_process_server import InProcessServer

KEYS = [
    Key("root", SECRET),
    Key("all-sender", SECRET, rights=frozenset({Right.SEND})),
    Key("all-listener", SECRET, rights=frozenset({Right.LISTEN})),
]
QUEUES = [f"{primary}/x-servicebus-transfer/{number}" for primary in ("contoso", "fabrikam") for number in (0, 1)]
RULE = (
    "<AuthorizationRule xmlns:i='http://www.w3.org/2001/XMLSchema-instance' i:type='SharedAccessAuthorizationRule'>"
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>{}</AccessRights></Rights><KeyName>{}</KeyName><PrimaryKey>{}</PrimaryKey>"
    "</AuthorizationRule>"
)


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("pairing"), keys=KEYS) as server:
        for queue in QUEUES:
            rules = RULE.format("Send", "sender", queue) + RULE.format("Listen", "listener", queue)
            content = f"<AuthorizationRules>{rules}</AuthorizationRules>"
            server.request("PUT", queue, QUEUE_ENTRY.format(content), expected=201)
        server.request(
            "PUT",
            "contoso/orders",
            QUEUE_ENTRY.format(f"<AuthorizationRules>{RULE.format('Send', 'sender', 'x' * 16)}</AuthorizationRules>"),
            expected=201,
        )
        yield server


@pytest.fixture
def reporter(running_server: InProcessServer) -> Reporter:
    return Reporter(running_server)

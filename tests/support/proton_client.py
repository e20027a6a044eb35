"""qpid-proton's blocking API as a plain AMQP client with a user name and a password."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from proton import SSLDomain
from proton.utils import BlockingConnection

from tests.support.server_process import AMQPS_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proton import Message

    from tests.support.server_process import ServerProcess

TIMEOUT_S = 20


@contextmanager
def connect_proton(
    server: ServerProcess,
    *,
    tls: bool = False,
    port: int | None = None,
    **options: Any,  # noqa: ANN401  # the options of proton
) -> Iterator[BlockingConnection]:
    """Open a connection to a port (default: the AMQP port with or without TLS), and close it at the end."""
    options = {"user": server.key_name, "password": server.key, "timeout": TIMEOUT_S, **options}
    if tls:
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(server.ca_file)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        # Proton checks the host name against the certificate, but does not support addresses.
        options = {"ssl_domain": domain, "virtual_host": "localhost", **options}
        connection = BlockingConnection(f"amqps://{server.host}:{port or AMQPS_PORT}", **options)
    else:
        options = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True, **options}
        connection = BlockingConnection(f"amqp://{server.host}:{port or server.amqp_port}", **options)
    try:
        yield connection
    finally:
        connection.close()


def wait_for(connection: BlockingConnection, condition: Callable[[], object]) -> None:
    """Run proton's event loop until a condition holds: proton reads and writes only inside `do_work`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {TIMEOUT_S} s"
        connection.container.do_work(0.02)


def send(connection: BlockingConnection, queue: str, *messages: Message) -> None:
    sender = connection.create_sender(queue)
    for message in messages:
        sender.send(message, timeout=TIMEOUT_S)
    sender.close()  # type: ignore[no-untyped-call]

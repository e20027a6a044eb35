"""Keys and tokens: wrong keys and expired, foreign or forged tokens are refused; valid ones are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

EMULATOR = "UseDevelopmentEmulator=true"


def client_with_token(bus: Bus, server: ServerProcess, token: str) -> Any:  # noqa: ANN401  # sync or aio
    endpoint = server.connection_string.split(";", 1)[0]
    return bus.client(f"{endpoint};SharedAccessSignature={token};{EMULATOR}")


def client_with_key(bus: Bus, server: ServerProcess, name: str, key: str) -> Any:  # noqa: ANN401  # sync or aio
    endpoint = server.connection_string.split(";", 1)[0]
    return bus.client(f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};{EMULATOR}")


def assert_refused(bus: Bus, queue: str, *clients: Any) -> None:  # noqa: ANN401  # sync or aio
    handles = [(bus.sender(queue, client=client), bus.receiver(queue, client=client)) for client in clients]
    for sender, receiver in handles:
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthenticationError):
            receiver.receive_messages(max_wait_time=1)


def assert_works(bus: Bus, client: Any, queue: str) -> None:  # noqa: ANN401  # sync or aio
    sender, receiver = bus.sender(queue, client=client), bus.receiver(queue, client=client)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    assert body_of(message) == b"x"
    assert receiver.renew_message_lock(message) is not None
    receiver.complete_message(message)


def test_a_wrong_key_and_an_unknown_key_name_are_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    wrong = client_with_key(bus, server, server.key_name, "c2VjcmV0")
    unknown = client_with_key(bus, server, "Nobody", server.key)
    assert_refused(bus, queue, wrong, unknown)
    assert_works(bus, bus.client(), queue)


def test_an_expired_token_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    assert_refused(bus, queue, client_with_token(bus, server, server.token(queue, lifetime_s=-10)))


def test_a_token_for_another_queue_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    paths = (f"{queue}-2", queue[:-1], f"{queue}/$DeadLetterQueue")
    assert_refused(bus, queue, *[client_with_token(bus, server, server.token(path)) for path in paths])


def test_a_forged_token_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    for_another = server.token("some-other-queue").replace("some-other-queue", queue)
    forged = server.token(queue).replace("sig=", "sig=A")
    assert_refused(bus, queue, *[client_with_token(bus, server, token) for token in (for_another, forged)])


def test_a_malformed_token_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    assert_refused(bus, queue, client_with_token(bus, server, "not a token at all"))


@pytest.mark.parametrize("scope", ["the namespace", "the queue", "the queue in capitals"])
def test_a_token_is_valid_for_its_scope(bus: Bus, server: ServerProcess, queue: str, scope: str) -> None:
    path = {"the namespace": "", "the queue": queue, "the queue in capitals": queue.upper()}[scope]
    assert_works(bus, client_with_token(bus, server, server.token(path)), queue)


def test_a_link_is_detached_when_its_token_expires(bus: Bus, server: ServerProcess, queue: str) -> None:
    client = client_with_token(bus, server, server.token(queue, lifetime_s=2.5))
    receiver = bus.receiver(queue, client=client)
    with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
        receiver.receive_messages(max_wait_time=20)

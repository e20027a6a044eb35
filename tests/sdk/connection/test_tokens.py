"""Who has no key, or a token that is over, for something else or forged, gets nothing; others are not harmed."""

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


def test_a_wrong_key_is_refused_and_so_is_a_name_that_no_key_has(bus: Bus, server: ServerProcess, queue: str) -> None:
    wrong = client_with_key(bus, server, server.key_name, "c2VjcmV0")
    unknown = client_with_key(bus, server, "Nobody", server.key)
    assert_refused(bus, queue, wrong, unknown)
    assert_works(bus, bus.client(), queue)


def test_a_token_that_is_over_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    assert_refused(bus, queue, client_with_token(bus, server, server.token(queue, lifetime_s=-10)))


def test_a_token_for_another_queue_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    paths = (f"{queue}-2", queue[:-1], f"{queue}/$DeadLetterQueue")
    assert_refused(bus, queue, *[client_with_token(bus, server, server.token(path)) for path in paths])


def test_a_token_that_was_tampered_with_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    for_another = server.token("some-other-queue").replace("some-other-queue", queue)
    forged = server.token(queue).replace("sig=", "sig=A")
    assert_refused(bus, queue, *[client_with_token(bus, server, token) for token in (for_another, forged)])


def test_a_token_that_is_none_is_refused(bus: Bus, server: ServerProcess, queue: str) -> None:
    assert_refused(bus, queue, client_with_token(bus, server, "not a token at all"))


@pytest.mark.parametrize("scope", ["the namespace", "the queue", "the queue in capitals"])
def test_a_token_is_good_for_its_scope(bus: Bus, server: ServerProcess, queue: str, scope: str) -> None:
    path = {"the namespace": "", "the queue": queue, "the queue in capitals": queue.upper()}[scope]
    assert_works(bus, client_with_token(bus, server, server.token(path)), queue)


def test_a_link_lives_no_longer_than_its_token(bus: Bus, server: ServerProcess, queue: str) -> None:
    client = client_with_token(bus, server, server.token(queue, lifetime_s=2.5))
    receiver = bus.receiver(queue, client=client)
    with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
        receiver.receive_messages(max_wait_time=20)

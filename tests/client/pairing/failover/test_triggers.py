"""R031: which failures trigger failover, by default and with `triggers.AS_DOCUMENTED`; the docs have the same table."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client import errors as client_errors
from twinbus.client.pairing import EntityState, EventKind, MessageCannotBeParked, triggers
from twinbus.model import errors
from twinbus.model.errors import (
    EntityDisabled,
    EntityNotFound,
    FailureClass,
    InvalidArgument,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
    Unauthorized,
)
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAGE: Final = (Path(__file__).parents[4] / "docs" / "pairing.md").read_text()
DEFAULT: Final[triggers.Triggers] = {}


async def send_to_disabled(app: Application) -> None:
    app.namespaces.primary.broker.find_sendable("orders").set_status("SendDisabled")
    await app.queue_client().send(BrokeredMessage("apples"))


async def send_to_deleted(app: Application) -> None:
    queue = app.queue_client()
    await queue.send(BrokeredMessage("before"))
    await app.namespaces.primary.entities.delete("orders")
    await queue.send(BrokeredMessage("apples"))


async def send_to_full(app: Application) -> None:
    queue = app.namespaces.primary.broker.find_sendable("orders")
    object.__setattr__(queue.description, "max_size_mb", 0)
    await app.queue_client().send(BrokeredMessage("apples"))


FAILURES: Final = [(send_to_disabled, EntityDisabled), (send_to_deleted, EntityNotFound), (send_to_full, QuotaExceeded)]


@pytest.mark.parametrize(("send", "error"), FAILURES)
@in_virtual_time
async def test_r031_as_documented_an_error_that_is_not_transient_starts_failover(
    send: Callable[[Application], Awaitable[None]], error: type[ServiceBusError]
) -> None:
    async with in_memory_pair_application(failover_interval=60, triggers=triggers.AS_DOCUMENTED) as app:
        with pytest.raises(error):
            await send(app)
        assert app.pairing.health_of("orders").state is EntityState.SUSPECT
        await asyncio.sleep(60.1)
        await app.queue_client().send(BrokeredMessage("pears"))
        assert [message.text for message in await app.parked_messages()] == ["pears"]
        assert isinstance(app.pairing.health_of("orders").failure, error)


@pytest.mark.parametrize(("send", "error"), FAILURES)
@in_virtual_time
async def test_by_default_an_error_that_is_not_transient_reaches_the_caller_without_failover(
    send: Callable[[Application], Awaitable[None]], error: type[ServiceBusError]
) -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        with pytest.raises(error):
            await send(app)
        assert app.events == []
        assert await app.parked_messages() == []


@in_virtual_time
async def test_r031_as_documented_messages_are_parked_even_after_refused_pings() -> None:
    """R038: pings continue until one is delivered, and messages are parked meanwhile."""
    async with in_memory_pair_application(
        failover_interval=0, triggers=triggers.AS_DOCUMENTED, enable_syphon=True
    ) as app:
        await send_to_disabled(app)
        await asyncio.sleep(630)
        await app.queue_client().send(BrokeredMessage("pears"))
        assert len(app.events_of(EventKind.PINGED)) == 10
        assert sorted(message.text for message in await app.parked_messages()) == ["apples", "pears"]
        app.namespaces.primary.broker.find_sendable("orders").set_status("Active")
        await asyncio.sleep(180)
        assert sorted(await app.arrived_bodies()) == ["apples", "pears"]


@in_virtual_time
async def test_r031_as_documented_unauthorised_never_triggers_failover() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        string = namespaces.primary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=no")
        unauthorised = MessagingFactory.from_connection_string(string, clock=namespaces.clock)
        async with paired_application(namespaces, failover_interval=0, triggers=triggers.AS_DOCUMENTED) as app:
            options = app.pairing.options
            options.secondary_factory = namespaces.secondary.factory()
            async with await unauthorised.pair_namespace(options) as pairing:
                with pytest.raises(Unauthorized):
                    await unauthorised.create_queue_client("orders").send(BrokeredMessage("apples"))
                assert pairing.health_of("orders").state is EntityState.HEALTHY
                assert await app.parked_messages() == []


@in_virtual_time
async def test_r031_as_documented_a_busy_server_never_triggers_failover() -> None:
    async with in_memory_pair_application(failover_interval=0, triggers=triggers.AS_DOCUMENTED) as app:
        app.namespaces.primary.outage.busy("orders")
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(5)
        app.namespaces.primary.outage.restore()
        await sending
        assert await app.arrived_bodies() == ["apples"]
        assert app.events == []


@in_virtual_time
async def test_r031_as_documented_a_too_large_message_fails_the_entity_over_until_the_next_ping() -> None:
    async with in_memory_pair_application(failover_interval=0, triggers=triggers.AS_DOCUMENTED) as app:
        with pytest.raises(MessageCannotBeParked):
            await app.queue_client().send(BrokeredMessage(b"x" * 300_000))
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        await asyncio.sleep(61)
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY


@in_virtual_time
async def test_r031_as_documented_an_error_that_is_no_messaging_exception_reaches_the_caller() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, failover_interval=0, triggers=triggers.AS_DOCUMENTED) as app:
            with pytest.raises((InvalidArgument, NotAllowed)):
                await app.queue_client("baskets").send(BrokeredMessage("no session id"))
            assert app.events == []


@in_virtual_time
async def test_single_triggers_can_be_overridden() -> None:
    chosen = {**triggers.AS_DOCUMENTED, EntityNotFound: FailureClass.CALLER}
    async with in_memory_pair_application(failover_interval=0, triggers=chosen) as app:
        with pytest.raises(EntityNotFound):
            await app.queue_client("nowhere").send(BrokeredMessage("apples"))
        await send_to_disabled(app)
        assert [message.text for message in await app.parked_messages()] == ["apples"]


def test_as_documented_is_read_only() -> None:
    with pytest.raises(TypeError):
        triggers.AS_DOCUMENTED[MessageTooLarge] = FailureClass.CALLER  # type: ignore[index]


# --- the docs ---------------------------------------------------------------------------------------------------------


def rows(head: str) -> dict[str, set[str]]:
    """The errors of each class in the table that begins with `head`."""
    table = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    cells = re.findall(r"^\| (unavailable|throttled|caller's fault) \| (.*?) \|", table, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in cells}


def classes(errors_by_class: dict[str, set[str]], chosen: triggers.Triggers) -> dict[str, set[str]]:
    """The same errors, each in its class according to the code."""
    by_class: dict[str, set[str]] = {name: set() for name in errors_by_class}
    for name in set().union(*errors_by_class.values()):
        kind = getattr(client_errors, name, None) or getattr(errors, name)
        error = kind.__new__(kind)
        by_class[triggers.class_of(error, chosen).value].add(name)
    return by_class


def test_r031_the_docs_have_the_tables_of_the_code() -> None:
    default, documented = rows("| class | errors | what follows |"), rows("| class with `AS_DOCUMENTED` |")
    assert sorted(default) == sorted(kind.value for kind in FailureClass)
    assert classes(default, DEFAULT) == default
    assert "as above, and" in PAGE
    documented["unavailable"] |= default["unavailable"]
    assert classes(documented, triggers.AS_DOCUMENTED) == documented
    assert set().union(*documented.values()) == set().union(*default.values())


def test_r031_the_docs_say_that_the_default_deviates_and_why() -> None:
    text = " ".join(PAGE.split())
    assert "The default deviates from Microsoft's documents." in text
    assert (
        "any `MessagingException` that is not transient trigger failover, except unauthorised and server busy" in text
    )
    assert "the mistake is hidden from the caller, the backlog fills with messages that cannot be delivered" in text

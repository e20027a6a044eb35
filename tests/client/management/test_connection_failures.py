"""A service that cannot be reached, does not answer, or breaks off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.management.fake_service import (
    CLOSE_CONNECTION,
    NO_RESPONSE,
    atom_entry,
    atom_feed,
    http_response,
    run_fake_service,
)
from tests.client.management.manager_factory import ManagerFactory
from tests.support.server_process import run_server
from twinbus.client import NamespaceManager, RetryPolicy
from twinbus.client.errors import ConnectionFailed, ConnectionLost, EntityNotFound, TimedOut
from twinbus.client.management import QueueDescription
from twinbus.model.errors import EntityAlreadyExists, FailureClass, ServerBusy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess
    from twinbus.model.errors import ServiceBusError

AT_ONCE = RetryPolicy(max_retries=2, first_pause_s=0.0, busy_pause_s=0.0)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_server_that_is_down_is_told_and_found_when_it_is_up_again(scheme: str, tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        async with ManagerFactory(server, scheme)() as manager:
            await manager.create_queue("orders")
            server.stop()
            with pytest.raises(ConnectionFailed, match="cannot be reached") as caught:
                await manager.get_queue("orders")
            server.start()
            assert await manager.queue_exists("orders")
    assert caught.value.failure_class is FailureClass.UNAVAILABLE


async def test_a_certificate_that_nobody_vouches_for_is_refused(server: ServerProcess) -> None:
    text = ManagerFactory(server, "https").connection_string()
    manager = NamespaceManager.from_connection_string(text, retry_policy=AT_ONCE, operation_timeout=20)
    async with manager:
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await manager.get_namespace_info()


async def test_a_port_without_tls_is_told_and_not_spoken_to_without_it(server: ServerProcess) -> None:
    text = ManagerFactory(server, "http").connection_string().removesuffix(";UseDevelopmentEmulator=true")
    async with NamespaceManager.from_connection_string(text, retry_policy=AT_ONCE, operation_timeout=20) as manager:
        with pytest.raises(ConnectionFailed, match="SSL"):
            await manager.get_namespace_info()


async def test_no_answer_within_the_time_is_a_timeout() -> None:
    async with run_fake_service(NO_RESPONSE) as service, service.manager(operation_timeout=0.2) as manager:
        with pytest.raises(TimedOut, match=r"PUT of 'orders' took longer than 0\.2 s") as caught:
            await manager.create_queue("orders")
    assert caught.value.may_have_happened


async def test_a_connection_that_breaks_off_is_lost() -> None:
    async with run_fake_service(CLOSE_CONNECTION) as service, service.manager() as manager:
        with pytest.raises(ConnectionLost, match="did not answer"):
            await manager.create_queue("orders")


async def test_half_an_answer_is_none() -> None:
    async with (
        run_fake_service(http_response(200, atom_entry())[:-20]) as service,
        service.manager(operation_timeout=0.2) as manager,
    ):
        with pytest.raises(TimedOut):
            await manager.get_queue("orders")


@pytest.mark.parametrize("first", [CLOSE_CONNECTION, http_response(500), http_response(503), http_response(504)])
async def test_what_may_succeed_later_is_tried_again(first: bytes) -> None:
    async with (
        run_fake_service(first, first, http_response(200, atom_entry())) as service,
        service.manager(retry_policy=AT_ONCE) as manager,
    ):
        assert await manager.get_queue("orders") == QueueDescription()
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [(http_response(500), 3), (http_response(404), 1), (http_response(401), 1), (CLOSE_CONNECTION, 3)],
)
async def test_it_is_tried_as_often_as_the_policy_says(refusal: bytes, tries: int) -> None:
    async with run_fake_service(refusal) as service, service.manager(retry_policy=AT_ONCE) as manager:
        with pytest.raises(Exception, match=r"orders|answer"):
            await manager.get_queue("orders")
    assert len(service.requests) == tries


async def test_a_busy_server_is_asked_again_where_there_is_no_time_for_the_whole_pause() -> None:
    patient, loop = RetryPolicy(busy_pause_s=30.0), asyncio.get_running_loop()
    async with (
        run_fake_service(http_response(503)) as service,
        service.manager(retry_policy=patient, operation_timeout=0.4) as manager,
    ):
        begun_s = loop.time()
        with pytest.raises(ServerBusy):
            await manager.get_queue("orders")
        assert loop.time() - begun_s > 0.3
    assert len(service.requests) == 4


async def test_a_busy_server_gets_the_pause_that_it_asks_for() -> None:
    patient, loop = RetryPolicy(busy_pause_s=30.0), asyncio.get_running_loop()
    answers = (http_response(429, retry_after=1), http_response(200, atom_entry()))
    async with run_fake_service(*answers) as service, service.manager(retry_policy=patient) as manager:
        begun_s = loop.time()
        await manager.get_queue("orders")
        assert 1 <= loop.time() - begun_s < 10
    assert len(service.requests) == 2


@pytest.mark.parametrize(("status", "kind"), [(409, EntityAlreadyExists), (404, EntityNotFound)])
async def test_a_refusal_after_a_lost_answer_says_that_it_may_have_been_ours(
    status: int, kind: type[ServiceBusError]
) -> None:
    async with (
        run_fake_service(CLOSE_CONNECTION, http_response(status)) as service,
        service.manager(retry_policy=AT_ONCE) as manager,
    ):
        with pytest.raises(kind) as caught:
            await manager.create_queue("orders")
        assert caught.value.__notes__ == ["a try before this one got no answer: it may be what did it"]
        assert caught.value.may_have_happened
        with pytest.raises(kind) as again:
            await manager.create_queue("orders")
    assert not hasattr(again.value, "__notes__")
    assert not again.value.may_have_happened


async def test_a_kept_connection_that_was_closed_meanwhile_costs_no_call() -> None:
    answers = (http_response(200, atom_entry()), CLOSE_CONNECTION, http_response(200, atom_feed()))
    async with run_fake_service(*answers) as service, service.manager(retry_policy=AT_ONCE) as manager:
        assert await manager.queue_exists("orders")
        assert not await manager.queue_exists("orders")

"""Services that cannot be reached, do not respond, or close the connection."""

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
async def test_a_stopped_server_raises_connection_failed_until_it_is_started_again(scheme: str, tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        async with ManagerFactory(server, scheme)() as manager:
            await manager.create_queue("orders")
            server.stop()
            with pytest.raises(ConnectionFailed, match="cannot be reached") as caught:
                await manager.get_queue("orders")
            server.start()
            assert await manager.queue_exists("orders")
    assert caught.value.failure_class is FailureClass.UNAVAILABLE


async def test_an_untrusted_certificate_is_refused(server: ServerProcess) -> None:
    text = ManagerFactory(server, "https").connection_string()
    manager = NamespaceManager.from_connection_string(text, retry_policy=AT_ONCE, operation_timeout=20)
    async with manager:
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await manager.get_namespace_info()


async def test_a_manager_with_tls_does_not_fall_back_to_plain_http(server: ServerProcess) -> None:
    text = ManagerFactory(server, "http").connection_string().removesuffix(";UseDevelopmentEmulator=true")
    async with NamespaceManager.from_connection_string(text, retry_policy=AT_ONCE, operation_timeout=20) as manager:
        with pytest.raises(ConnectionFailed, match="SSL"):
            await manager.get_namespace_info()


async def test_a_missing_response_times_out() -> None:
    async with run_fake_service(NO_RESPONSE) as service, service.manager(operation_timeout=0.2) as manager:
        with pytest.raises(TimedOut, match=r"PUT of 'orders' took longer than 0\.2 s") as caught:
            await manager.create_queue("orders")
    assert caught.value.may_have_happened


async def test_a_connection_closed_without_a_response_raises_connection_lost() -> None:
    async with run_fake_service(CLOSE_CONNECTION) as service, service.manager() as manager:
        with pytest.raises(ConnectionLost, match="did not answer"):
            await manager.create_queue("orders")


async def test_a_truncated_response_times_out() -> None:
    async with (
        run_fake_service(http_response(200, atom_entry())[:-20]) as service,
        service.manager(operation_timeout=0.2) as manager,
    ):
        with pytest.raises(TimedOut):
            await manager.get_queue("orders")


@pytest.mark.parametrize("failure", [CLOSE_CONNECTION, http_response(500), http_response(503), http_response(504)])
async def test_temporary_failures_are_retried(failure: bytes) -> None:
    async with (
        run_fake_service(failure, failure, http_response(200, atom_entry())) as service,
        service.manager(retry_policy=AT_ONCE) as manager,
    ):
        assert await manager.get_queue("orders") == QueueDescription()
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("refusal", "attempts"),
    [(http_response(500), 3), (http_response(404), 1), (http_response(401), 1), (CLOSE_CONNECTION, 3)],
)
async def test_requests_are_retried_as_often_as_the_policy_says(refusal: bytes, attempts: int) -> None:
    async with run_fake_service(refusal) as service, service.manager(retry_policy=AT_ONCE) as manager:
        with pytest.raises(Exception, match=r"orders|answer"):
            await manager.get_queue("orders")
    assert len(service.requests) == attempts


async def test_a_busy_server_is_retried_if_the_timeout_is_shorter_than_the_pause() -> None:
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


async def test_the_pause_in_retry_after_is_used() -> None:
    patient, loop = RetryPolicy(busy_pause_s=30.0), asyncio.get_running_loop()
    responses = (http_response(429, retry_after=1), http_response(200, atom_entry()))
    async with run_fake_service(*responses) as service, service.manager(retry_policy=patient) as manager:
        begun_s = loop.time()
        await manager.get_queue("orders")
        assert 1 <= loop.time() - begun_s < 10
    assert len(service.requests) == 2


@pytest.mark.parametrize(("status", "kind"), [(409, EntityAlreadyExists), (404, EntityNotFound)])
async def test_a_refusal_after_a_lost_response_says_that_an_earlier_attempt_may_have_caused_it(
    status: int, kind: type[ServiceBusError]
) -> None:
    async with (
        run_fake_service(CLOSE_CONNECTION, http_response(status)) as service,
        service.manager(retry_policy=AT_ONCE) as manager,
    ):
        with pytest.raises(kind) as caught:
            await manager.create_queue("orders")
        assert caught.value.__notes__ == ["an earlier attempt got no response, and may have caused this error"]
        assert caught.value.may_have_happened
        with pytest.raises(kind) as again:
            await manager.create_queue("orders")
    assert not hasattr(again.value, "__notes__")
    assert not again.value.may_have_happened


async def test_a_kept_alive_connection_that_the_server_closed_fails_no_call() -> None:
    responses = (http_response(200, atom_entry()), CLOSE_CONNECTION, http_response(200, atom_feed()))
    async with run_fake_service(*responses) as service, service.manager(retry_policy=AT_ONCE) as manager:
        assert await manager.queue_exists("orders")
        assert not await manager.queue_exists("orders")

"""Error class of each HTTP status, and the error text."""

from __future__ import annotations

import pytest

from tests.client.management.fake_service import atom_entry, http_response, run_fake_service
from twinbus.client.errors import EntityNotFound, TimedOut, UnknownAnswer
from twinbus.client.management import QueueDescription
from twinbus.model import errors

ERROR = "<Error><Code>{}</Code><Detail>{}</Detail></Error>"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, UnknownAnswer),
        (400, errors.InvalidArgument),
        (401, errors.Unauthorized),
        (403, errors.QuotaExceeded),
        (404, EntityNotFound),
        (405, errors.NotAllowed),
        (408, TimedOut),
        (409, errors.EntityAlreadyExists),
        (410, EntityNotFound),
        (412, EntityNotFound),
        (413, errors.InvalidArgument),
        (418, errors.NotAllowed),
        (429, errors.ServerBusy),
        (500, errors.InternalFault),
        (501, errors.NotImplementedHere),
        (502, errors.StoreUnavailable),
        (503, errors.ServerBusy),
        (504, errors.StoreUnavailable),
        (599, errors.InternalFault),
    ],
)
async def test_every_status_is_mapped_to_its_error_class(status: int, kind: type[errors.ServiceBusError]) -> None:
    refusal = http_response(status, ERROR.format(status, "the moon is full. TrackingId:1"))
    async with run_fake_service(refusal) as service, service.manager(operation_timeout=5) as manager:
        with pytest.raises(kind, match=r"PUT of 'orders': the moon is full\. TrackingId:1") as caught:
            await manager.create_queue("orders")
    assert type(caught.value) is kind


async def test_a_conflict_other_than_an_existing_entity_is_server_busy() -> None:
    taken, race = ERROR.format(409, "it is there"), ERROR.format(409, "SubCode=40901. Another operation is in progress")
    async with run_fake_service(http_response(409, taken)) as service, service.manager(operation_timeout=5) as manager:
        with pytest.raises(errors.ServerBusy):
            await manager.delete_queue("orders")
        with pytest.raises(errors.ServerBusy):
            await manager.update_queue("orders", QueueDescription())
    async with run_fake_service(http_response(409, race)) as service, service.manager(operation_timeout=5) as manager:
        with pytest.raises(errors.ServerBusy):
            await manager.create_queue("orders")


async def test_a_403_with_another_sub_code_is_not_a_quota_error() -> None:
    refusal = ERROR.format(403, "SubCode=40301. Partitioning is not for this tier")
    async with run_fake_service(http_response(403, refusal)) as service, service.manager() as manager:
        with pytest.raises(errors.NotAllowed, match="is not for this tier"):
            await manager.create_queue("orders")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "status 500 without a reason"),
        ("<Error/>", "status 500 without a reason"),
        ("the gateway is tired", "the gateway is tired"),
        ("<html><body>tired</body></html>", "status 500 without a reason"),
        ("\u00e9" * 5000, "\u00e9" * 1000),
        ('<!DOCTYPE x [<!ENTITY a "b">]><Error><Detail>&a;</Detail></Error>', "<!DOCTYPE"),
        ('<Error xmlns="urn:x"><Code>500</Code><Detail>in a namespace</Detail></Error>', "in a namespace"),
    ],
)
async def test_any_body_of_a_failed_request_gives_an_error_text(body: str, expected: str) -> None:
    async with run_fake_service(http_response(500, body)) as service, service.manager() as manager:
        with pytest.raises(errors.InternalFault) as caught:
            await manager.get_queue("orders")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 1100


async def test_another_2xx_status_is_success() -> None:
    async with run_fake_service(http_response(202, atom_entry())) as service, service.manager() as manager:
        assert await manager.create_queue("orders") == QueueDescription()

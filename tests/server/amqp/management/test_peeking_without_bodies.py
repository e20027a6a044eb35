"""A peek with `omit-message-body` returns messages without their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import peek, request_management, send
from tests.support.raw_client import connect_raw
from twinbus.amqp.message import Properties, build, data, sequence, value
from twinbus.amqp.types import Int

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.mark.parametrize("body", [data(b"1", b"2"), value("1"), sequence(["1"])], ids=["data", "value", "sequence"])
async def test_only_the_body_is_omitted(server: ServerProcess, queue: str, body: bytes) -> None:
    properties, custom = Properties(message_id="1", subject="s"), {"color": "red"}
    async with connect_raw(server) as client:
        await send(client, queue, build(properties=properties, application_properties=custom, body=body))
        [whole] = await peek(client, queue, **{"omit-message-body": False})
        [without_body] = await peek(client, queue, **{"omit-message-body": True})
    assert whole.body_section is not None
    assert without_body.body_section is None
    assert without_body.properties == whole.properties
    assert without_body.application_properties == custom
    assert without_body.message_annotations == whole.message_annotations


async def test_an_omit_message_body_that_is_not_a_boolean_is_refused(server: ServerProcess, queue: str) -> None:
    arguments = {"from-sequence-number": 1, "message-count": Int(1), "omit-message-body": "yes"}
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, "com.microsoft:peek-message", arguments)
    assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")

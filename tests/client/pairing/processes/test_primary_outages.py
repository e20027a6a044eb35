"""The primary is killed, stopped, cut off, silent or slow: no send that was reported successful is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.relay import Relay
from tests.support.server_pair import (
    OPERATION_TIMEOUT_S,
    PING_INTERVAL_S,
    paired_application,
    receive_all,
    receive_all_texts,
    run_server_pair,
)
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed
from twinbus.client.pairing import EntityState, EventKind, triggers
from twinbus.model.errors import EntityDisabled, EntityNotFound

if TYPE_CHECKING:
    from pathlib import Path

ATTEMPT_S = OPERATION_TIMEOUT_S / 2
"""The part of an operation's timeout that an attempt at a silent primary gets."""


async def test_x01_after_a_kill_the_first_failed_send_is_parked_and_all_messages_come_back(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, enable_syphon=True) as app,
    ):
        await app.send("before")
        primary.kill()
        assert await app.seconds_to_send("after 1") < 1
        await app.send("after 2")
        assert app.is_in(EntityState.FAILED_OVER)
        assert "cannot be reached" in app.unhealthy_reason
        assert await app.parked_texts() == ["after 1", "after 2"]
        await asyncio.to_thread(primary.start)
        await app.wait_for_event(EventKind.RESTORED)
        await app.send("back")
        await app.wait_for_event(EventKind.MOVED, 2)
        assert await receive_all_texts(primary, 4) == ["after 1", "after 2", "back", "before"]
        assert await app.parked_texts() == []


async def test_x04_a_kill_under_load_loses_no_successful_send_and_sessions_keep_their_order(
    tmp_path: Path,
) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, enable_syphon=True) as app,
    ):
        sent: set[str] = set()
        sessions = ("apples", "pears", "plums")

        async def send_many(name: str) -> None:
            for number in range(100):
                text = f"{name} {number}"
                await app.queue.send(BrokeredMessage(text, message_id=text, session_id=name))
                sent.add(text)

        sending = [asyncio.ensure_future(send_many(name)) for name in sessions]
        await app.wait_until(lambda: len(sent) >= 60)
        primary.kill()
        await asyncio.gather(*sending)
        await asyncio.to_thread(primary.start)
        await app.wait_for_event(EventKind.RESTORED)
        await app.wait_for_event(EventKind.MOVED, len(app.events_of(EventKind.PARKED)))
        assert len(app.events_of(EventKind.PARKED)) > 100
        messages = await receive_all(primary, len(sent))
        assert sent <= {message.text for message in messages}
        for name in sessions:
            # A send that was in flight when the primary was killed may be stored twice: the first copy counts.
            order = list(dict.fromkeys(message.text for message in messages if message.session_id == name))
            assert order == [f"{name} {number}" for number in range(100)]


async def test_a_send_in_flight_when_the_primary_dies_is_marked_as_a_possible_duplicate(tmp_path: Path) -> None:
    """The link is lost before the response, and no later attempt connects: the lost response is what counts."""
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port) as app,
    ):
        await app.send("before")
        relay.drop_silently()
        sending = asyncio.ensure_future(app.send("under way"))
        await asyncio.sleep(0.2)
        relay.cut()
        await sending
        (parked,) = await app.parked_messages()
        assert parked.text == "under way"
        assert parked.properties["x-ms-possible-duplicate"] is True
        await app.send("later")
        later = [message for message in await app.parked_messages() if message.text == "later"]
        assert "x-ms-possible-duplicate" not in later[0].properties


async def test_the_first_send_to_a_stopped_primary_waits_half_its_timeout_and_the_next_does_not(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, enable_syphon=True) as app,
    ):
        await app.send("before")
        primary.pause()
        assert ATTEMPT_S <= await app.seconds_to_send("first") < ATTEMPT_S + 1.5
        assert app.is_in(EntityState.FAILED_OVER)
        assert f"took longer than {ATTEMPT_S:g} s: it may have been stored" in app.unhealthy_reason
        assert await app.seconds_to_send("second") < 1
        primary.resume()
        await app.wait_for_event(EventKind.RESTORED)
        await app.wait_for_event(EventKind.MOVED, 2)
        received = await receive_all_texts(primary, 3)
        assert set(received) == {"before", "first", "second"}
        assert received.count("before") == received.count("second") == 1


async def test_a_silent_network_is_handled_like_a_stopped_primary(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port, enable_syphon=True) as app,
    ):
        await app.send("before")
        relay.drop_silently()
        assert ATTEMPT_S <= await app.seconds_to_send("first") < ATTEMPT_S + 1.5
        assert app.is_in(EntityState.FAILED_OVER)
        assert await app.seconds_to_send("second") < 1
        await app.wait_for_event(EventKind.PINGED, 2)
        assert all(event.reason is not None for event in app.events_of(EventKind.PINGED))
        pings = len(app.events_of(EventKind.PINGED))
        await relay.restore()
        await app.wait_for_event(EventKind.RESTORED)
        assert len(app.events_of(EventKind.PINGED)) <= pings + 2, "one ping may have been in flight"
        await app.wait_for_event(EventKind.MOVED, 2)
        assert set(await receive_all_texts(primary, 3)) == {"before", "first", "second"}


async def test_a_cut_network_is_detected_at_once(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port, enable_syphon=True) as app,
    ):
        await app.send("before")
        relay.cut()
        assert await app.seconds_to_send("after") < 1
        assert app.is_in(EntityState.FAILED_OVER)
        await relay.restore()
        await app.wait_for_event(EventKind.RESTORED)
        await app.wait_for_event(EventKind.MOVED)
        assert await receive_all_texts(primary, 2) == ["after", "before"]


async def test_a_response_that_comes_too_late_counts_as_no_response(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port) as app,
    ):
        await app.send("before")
        relay.delay(ATTEMPT_S)  # in each direction
        assert await app.seconds_to_send("late") < OPERATION_TIMEOUT_S
        assert app.is_in(EntityState.FAILED_OVER)
        (parked,) = await app.parked_messages()
        assert (parked.text, parked.properties["x-ms-possible-duplicate"]) == ("late", True)
        assert set(await receive_all_texts(primary, 2)) == {"before", "late"}, (
            "the mark is right: the message is a duplicate"
        )


async def test_within_the_interval_the_caller_gets_the_error_and_a_success_prevents_failover(
    tmp_path: Path,
) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary, failover_interval=60) as app,
    ):
        primary.kill()
        with pytest.raises(ConnectionFailed, match="cannot be reached"):
            await app.send("apples")
        assert app.is_in(EntityState.SUSPECT)
        await asyncio.to_thread(primary.start)
        await app.send("pears")
        assert app.is_in(EntityState.HEALTHY)
        assert [event.kind for event in app.events] == [EventKind.SUSPECTED, EventKind.RESTORED]
        assert await receive_all_texts(primary, 1) == ["pears"]


async def test_an_application_that_starts_while_the_primary_is_down_can_send(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        primary.kill()
        async with paired_application(primary, secondary, enable_syphon=True) as app:
            await app.send("apples", "pears")
            assert await app.parked_texts() == ["apples", "pears"]
            await asyncio.to_thread(primary.start)
            await app.wait_for_event(EventKind.MOVED, 2)
            await app.wait_for_event(EventKind.RESTORED)
        assert await receive_all_texts(primary, 2) == ["apples", "pears"]


async def test_r031_as_documented_disabled_and_deleted_entities_fail_over_and_by_default_they_do_not(
    tmp_path: Path,
) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        paired_application(primary, secondary) as app,
        paired_application(primary, secondary, triggers=triggers.AS_DOCUMENTED, enable_syphon=True) as documented,
    ):
        await app.send("before")
        primary.update_queue("orders", Status="SendDisabled")
        with pytest.raises(EntityDisabled):
            await app.send("refused")
        await documented.send("while disabled")
        assert documented.is_in(EntityState.FAILED_OVER)
        assert [event.message_id for event in documented.events_of(EventKind.PARKED)] == ["while disabled"]
        primary.update_queue("orders", Status="Active")
        await documented.wait_for_event(EventKind.RESTORED)
        await documented.wait_for_event(EventKind.MOVED)
        assert await receive_all_texts(primary, 2) == ["before", "while disabled"]
        primary.delete_queue("orders")
        with pytest.raises(EntityNotFound):
            await app.send("refused")
        await documented.send("while deleted")
        assert documented.is_in(EntityState.FAILED_OVER)
        primary.create_entity("orders", "QueueDescription")
        await documented.wait_for_event(EventKind.MOVED, 2)
        assert await receive_all_texts(primary, 1) == ["while deleted"]
        assert app.events == []
        assert not documented.events_of(EventKind.DEAD_LETTERED)


async def test_q14_sends_to_an_entity_deleted_in_an_outage_fail_until_it_is_created_again(tmp_path: Path) -> None:
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port) as app,
    ):
        await app.send("before")
        relay.cut()
        await app.send("parked")
        primary.delete_queue("orders")
        await relay.restore()
        await app.wait_for_event(EventKind.UNREACHABLE)
        with pytest.raises(Exception, match="could not be found"):
            await app.queue.send(BrokeredMessage("refused"))
        assert await app.parked_texts() == ["parked"]
        primary.create_entity("orders", "QueueDescription")
        await app.wait_for_event(EventKind.RESTORED)
        await app.send("taken")
        assert await receive_all_texts(primary, 1) == ["taken"]
        assert len(app.events_of(EventKind.PINGED)) * PING_INTERVAL_S < 30

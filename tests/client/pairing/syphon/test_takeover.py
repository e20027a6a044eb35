"""Q17: one of several hosts of the syphon drains each backlog queue, and another takes over soon if it fails."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.paired_application import Application, paired_application
from tests.support.relay import Relay
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.client.pairing.syphon.pump import STANDBY_POLL_S
from twinbus.server.amqp import client_connection
from twinbus.testing import InMemoryPair, in_virtual_time, run
from twinbus.testing.loop import fake_time_loop
from twinbus.testing.namespace import AMQP_PORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

OPTIONS: Final[dict[str, Any]] = {"failover_interval": 0, "enable_syphon": True, "backlog_queue_count": 2}
TAKEOVER_LIMIT_S: Final = 10.0
ROUNDS: Final = 10
SOON_S: Final = STANDBY_POLL_S + 0.5
STEP_S: Final = 0.05


class SyphonHost:
    """An application that hosts the syphon, and its network connections to the two namespaces."""

    def __init__(self, app: Application, to_primary: Relay, to_secondary: Relay) -> None:
        self.app = app
        self.to_primary = to_primary
        self.to_secondary = to_secondary

    @property
    def is_active(self) -> bool:
        """Whether all pumps of this host are active."""
        syphon = self.app.pairing.syphon
        return syphon is not None and all(pump.is_active for pump in syphon.pumps)


@contextlib.asynccontextmanager
async def start_host(namespaces: InMemoryPair, **options: Any) -> AsyncIterator[SyphonHost]:  # noqa: ANN401  # options of the pairing
    async with (
        Relay(namespaces.primary.host, AMQP_PORT) as to_primary,
        Relay(namespaces.secondary.host, AMQP_PORT) as to_secondary,
        paired_application(namespaces, ports=(to_primary.port, to_secondary.port), **OPTIONS | options) as app,
    ):
        await asyncio.sleep(1)
        yield SyphonHost(app, to_primary, to_secondary)


@contextlib.asynccontextmanager
async def two_hosts(**options: Any) -> AsyncIterator[tuple[InMemoryPair, SyphonHost, SyphonHost]]:  # noqa: ANN401
    """A pair, a host that stands by, and the active host, which was started later."""
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with start_host(namespaces, **options) as standby, start_host(namespaces, **options) as holder:
            assert holder.is_active
            yield namespaces, standby, holder


async def seconds_until_active(host: SyphonHost) -> float:
    return await seconds_until(lambda: host.is_active)


async def seconds_until(condition: Callable[[], object], limit_s: float = 300.0) -> float:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(STEP_S)
    return loop.time() - start_s


@in_virtual_time
async def test_q17_a_silent_host_is_replaced_within_ten_seconds_and_then_stands_by() -> None:
    async with two_hosts() as (_, *hosts):
        other, holder = hosts
        for number in range(ROUNDS):
            await asyncio.sleep(30 + number * 0.37)  # at various points of the heartbeat interval
            holder.to_secondary.drop_silently()
            assert await seconds_until_active(other) < TAKEOVER_LIMIT_S
            assert not holder.is_active, "the host detects a silent secondary as fast"
            await asyncio.sleep(5)
            await holder.to_secondary.restore()
            await asyncio.sleep(60)
            assert other.is_active, "the host that took over stays active, although its epoch is lower"
            assert not holder.is_active
            holder, other = other, holder
        for host in (holder, other):
            assert len(host.app.events_of(EventKind.PUMP_STARTED)) <= 2 * (ROUNDS // 2 + 1)


async def put_in_backlog(app: Application, *texts: str) -> None:
    """Put messages of one session into the backlog queue, as paired senders park them."""
    sender = app.pairing.secondary.create_message_sender(app.backlog_path(0))
    for text in texts:
        payload = BrokeredMessage(text, session_id="7").encode(app.namespaces.clock.wall_ms())
        await sender.deliver(park(payload, 0, "baskets", is_possible_duplicate=False))


async def next_heartbeat(host: SyphonHost) -> None:
    """Wait until the server has just answered a heartbeat of a host."""
    connection = host.app.pairing.secondary._connection._peer.connection  # type: ignore[union-attr]  # noqa: SLF001
    before_s = connection.silence_limit.confirmed_s
    await seconds_until(lambda: connection.silence_limit.confirmed_s != before_s)


@pytest.mark.parametrize("is_busy", [False, True], ids=["accepted late", "refused late"])
def test_q17_a_host_that_may_have_lost_its_backlog_queue_stops_sending_and_settling(*, is_busy: bool) -> None:
    async def lose() -> None:
        async with two_hosts(backlog_queue_count=1) as (namespaces, other, holder):
            await namespaces.primary.create_queue("baskets", requires_session=True)
            await put_in_backlog(other.app, "first")
            await seconds_until(lambda: holder.app.events_of(EventKind.MOVED))
            holder.to_primary.delay(2.5)
            await next_heartbeat(holder)
            await put_in_backlog(other.app, *[str(number) for number in range(300)])
            await asyncio.sleep(STEP_S)  # the first is in flight; the others follow when it is accepted
            holder.to_secondary.drop_silently()
            if is_busy:
                namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(5.4)  # the response came after 5 s: by then the server may have dropped the connection
            namespaces.primary.outage.restore()
            assert not other.is_active
            await seconds_until(lambda: len(other.app.events_of(EventKind.MOVED)) == 300)
            await asyncio.sleep(60)
            duplicates = 0 if is_busy else 1
            assert len(holder.app.events_of(EventKind.MOVED)) == 1 + duplicates
            assert not holder.app.events_of(EventKind.DEFERRED, EventKind.DEAD_LETTERED)
            assert len(await namespaces.primary.messages("baskets")) == 1 + 300 + duplicates

    run(lose())


@in_virtual_time
async def test_q17_another_host_takes_over_at_once_after_a_cut_a_close_or_the_loss_of_the_primary() -> None:
    async with two_hosts() as (namespaces, other, holder):
        holder.to_secondary.cut()
        assert await seconds_until_active(other) < SOON_S
        await holder.to_secondary.restore()
        await asyncio.sleep(60)
        namespaces.primary.outage.stop()
        await other.app.queue_client().send(BrokeredMessage("apples"))
        other.to_primary.cut()
        namespaces.primary.outage.restore()
        assert await seconds_until_active(holder) < SOON_S
        assert await seconds_until(lambda: holder.app.events_of(EventKind.MOVED)) < SOON_S
        await other.to_primary.restore()
        await asyncio.sleep(60)
        assert holder.is_active, "a host that can reach the primary again stands by, too"
        await holder.app.pairing.close()
        assert await seconds_until_active(other) < SOON_S


@in_virtual_time
async def test_q17_hosts_with_the_same_epoch_do_not_displace_each_other_forever() -> None:
    async with (
        InMemoryPair() as namespaces,
        paired_application(namespaces, **OPTIONS) as first,
        paired_application(namespaces, **OPTIONS) as second,
    ):
        await asyncio.sleep(120)
        assert first.pairing.syphon is not None
        assert second.pairing.syphon is not None
        epochs = {app.pairing.syphon.pumps[0]._settings.epoch for app in (first, second)}  # type: ignore[union-attr]  # noqa: SLF001
        assert len(epochs) == 1, "they were started in the same millisecond"
        assert len(first.events_of(EventKind.PUMP_STARTED)) + len(second.events_of(EventKind.PUMP_STARTED)) <= 4


@in_virtual_time
async def test_a_backlog_of_a_server_without_silence_limits_is_drained_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "read_silence_limit", lambda _: None)
    async with two_hosts(backlog_queue_count=1) as (namespaces, _, holder):
        await namespaces.primary.create_queue("baskets", requires_session=True)
        await asyncio.sleep(600)
        await put_in_backlog(holder.app, "apples", "pears")
        await asyncio.sleep(1)
        assert [message.text for message in await namespaces.primary.messages("baskets")] == ["apples", "pears"]
        assert holder.app.pairing.syphon is not None
        assert holder.app.pairing.syphon.pumps[0]._consumer._link.lease is None  # type: ignore[union-attr]  # noqa: SLF001


@in_virtual_time
async def test_a_pause_of_the_whole_machine_closes_no_connection() -> None:
    async with two_hosts() as (_, other, holder):
        fake_time_loop()._time_selector.now_s += 60  # noqa: SLF001  # no task runs meanwhile
        await asyncio.sleep(60)
        assert holder.is_active
        for host in (holder, other):
            assert not host.app.events_of(EventKind.PUMP_FAILED)
        assert not holder.app.events_of(EventKind.PUMP_DISPLACED)


@in_virtual_time
async def test_r072_c05_heartbeats_are_not_charged_and_do_not_end_the_poll() -> None:
    async with (
        InMemoryPair() as namespaces,
        paired_application(namespaces, **OPTIONS | {"backlog_queue_count": 10}) as app,
    ):
        await asyncio.sleep(30)
        assert app.pairing.syphon is not None
        counts_before = total_usage(namespaces)
        await asyncio.sleep(3_600)
        links = [pump._consumer._link for pump in app.pairing.syphon.pumps if pump._consumer is not None]  # noqa: SLF001
        assert len(links) == 10
        assert all(link.lease is not None and link.lease.is_valid for link in links), "heartbeats are sent and answered"
        counts_after = total_usage(namespaces)
        del counts_after["management"]  # alarms read the backlog's counts
        changed = {
            name: counts_after[name] - counts_before.get(name, 0)
            for name in counts_after
            if counts_after[name] != counts_before.get(name, 0)
        }
        assert changed == {"empty_receives": 40}


def total_usage(namespaces: InMemoryPair) -> dict[str, int]:
    """The usage counts of the secondary, summed over all entities and clients."""
    sums: dict[str, int] = {}
    for row in namespaces.secondary.usage():
        for name in row.__struct_fields__:
            value = getattr(row, name)
            if isinstance(value, int):
                sums[name] = sums.get(name, 0) + value
    return sums

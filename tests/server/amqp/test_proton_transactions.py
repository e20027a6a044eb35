"""qpid-proton declares transactions, sends and accepts in them, commits them and rolls them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.support.raw_client import connect_raw
from tests.support.server_process import TIMEOUT_S
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.message import Properties, build, data, value
from twinbus.amqp.outcomes import ACCEPTED, Declare, TransactionalState
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


class TransactionProgram(MessagingHandler, TransactionHandler):
    """A proton handler that receives and sends messages in one transaction, and commits it or rolls it back."""

    def __init__(self, server: ServerProcess, queue: str, *, receives: int, sends: int, commits: bool) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self._server = server
        self._queue = queue
        self._receives = receives
        self._sends = sends
        self._commits = commits
        self.received: list[Any] = []
        self.log: list[str] = []
        self.transaction: Any = None

    def on_start(self, event: Any) -> None:  # noqa: ANN401
        self.container = event.container
        self.connection = event.container.connect(
            f"amqp://{self._server.host}:{self._server.amqp_port}",
            user=self._server.key_name,
            password=self._server.key,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            reconnect=False,
        )
        self.sender = event.container.create_sender(self.connection, self._queue)
        self.receiver = event.container.create_receiver(self.connection, self._queue)
        self.container.declare_transaction(self.connection, handler=self)
        self.timeout = event.container.schedule(TIMEOUT_S, self)

    def on_timer_task(self, event: Any) -> None:  # noqa: ANN401, ARG002
        self.log.append("timeout")
        self.connection.close()

    def on_transaction_declared(self, event: Any) -> None:  # noqa: ANN401
        self.transaction = event.transaction
        for number in range(self._sends):
            self.transaction.send(self.sender, Message(body=f"new {number}", id=f"new {number}"))
        if self._receives:
            self.receiver.flow(self._receives)
        else:
            self._end()

    def on_message(self, event: Any) -> None:  # noqa: ANN401
        self.received.append(event.message.id)
        self.transaction.accept(event.delivery)
        if len(self.received) == self._receives:
            self._end()

    def _end(self) -> None:
        if self._commits:
            self.transaction.commit()
        else:
            self.transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:  # noqa: ANN401, ARG002
        self._finish("committed")

    def on_transaction_aborted(self, event: Any) -> None:  # noqa: ANN401, ARG002
        self._finish("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:  # noqa: ANN401
        self._finish(f"failed: {event.delivery.remote.condition.name}")

    def on_transaction_declare_failed(self, event: Any) -> None:  # noqa: ANN401, ARG002
        self._finish("not declared")

    def _finish(self, result: str) -> None:
        self.log.append(result)
        self.timeout.cancel()
        self.container.schedule(0.3, _CloseConnection(self.connection))


class _CloseConnection(MessagingHandler):
    """Close the connection after proton has flushed its last frames."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._connection = connection

    def on_timer_task(self, event: Any) -> None:  # noqa: ANN401, ARG002
        self._connection.close()


def run(
    server: ServerProcess, queue: str, *, receives: int = 0, sends: int = 0, commits: bool = True
) -> TransactionProgram:
    program = TransactionProgram(server, queue, receives=receives, sends=sends, commits=commits)
    Container(program).run()
    return program


async def send_old_orders(server: ServerProcess, queue: str, count: int) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for number in range(count):
            assert await client.send(link, order(f"old {number}")) is None


def order(name: str) -> bytes:
    return build(properties=Properties(message_id=name), body=data(name.encode()))


def test_proton_commits_sends(server: ServerProcess, queue: str) -> None:
    program = run(server, queue, sends=3)
    assert program.log == ["committed"]
    assert server.message_counts(queue) == (3, 0)


def test_proton_rolls_back_sends(server: ServerProcess, queue: str) -> None:
    program = run(server, queue, sends=3, commits=False)
    assert program.log == ["aborted"]
    assert server.message_counts(queue) == (0, 0)


async def test_proton_commits_accepts_and_sends(server: ServerProcess, queue: str) -> None:
    await send_old_orders(server, queue, 4)
    program = run(server, queue, receives=3, sends=2)
    assert program.log == ["committed"]
    assert len(program.received) == 3
    assert server.message_counts(queue) == (3, 0)


async def test_messages_of_a_rolled_back_proton_transaction_are_available_at_once(
    server: ServerProcess, queue: str
) -> None:
    await send_old_orders(server, queue, 2)
    assert run(server, queue, receives=2, sends=2, commits=False).log == ["aborted"]
    program = run(server, queue, receives=2)
    assert program.received == ["old 0", "old 1"]
    assert program.log == ["committed"]
    assert server.message_counts(queue) == (0, 0)


# --- raw AMQP client --------------------------------------------------------------------------------------------------


async def test_a_send_in_a_transaction_is_accepted_provisionally(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        txn_id = await coordinator.declare()
        state = await client.send_for_state(link, order("1"), state=TransactionalState(txn_id=txn_id))
        assert isinstance(state, TransactionalState)
        assert (state.txn_id, state.outcome) == (txn_id, ACCEPTED)
        assert server.message_counts(queue) == (0, 0)
        assert await coordinator.discharge(txn_id) is None
        assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("fail", [False, True])
async def test_an_unknown_transaction_is_refused(server: ServerProcess, queue: str, *, fail: bool) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        assert await coordinator.discharge(b"nonsense", fail=fail) == "amqp:transaction:unknown-id"
        state = TransactionalState(txn_id=b"nonsense")
        assert await client.send(link, order("1"), state=state) == "amqp:transaction:unknown-id"
        txn_id = await coordinator.declare()
        assert await coordinator.discharge(txn_id) is None
        assert await coordinator.discharge(txn_id) == "amqp:transaction:unknown-id"
    assert server.message_counts(queue) == (0, 0)


async def test_a_transaction_is_unknown_on_another_connection(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        coordinator, link = await attach_coordinator(client), await other.attach_sender(queue)
        state = TransactionalState(txn_id=await coordinator.declare())
        assert await other.send(link, order("1"), state=state) == "amqp:transaction:unknown-id"


async def test_a_send_to_a_second_entity_fails_the_transaction(server: ServerProcess, queue: str) -> None:
    second = server.create_queue()
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        links = [await client.attach_sender(queue), await client.attach_sender(second)]
        txn_id = await coordinator.declare()
        state = TransactionalState(txn_id=txn_id)
        assert await client.send(links[0], order("1"), state=state) is None
        assert await client.send(links[1], order("2"), state=state) == "amqp:not-allowed"
        assert await coordinator.discharge(txn_id) == "amqp:transaction:rollback"
    assert server.message_counts(queue) == server.message_counts(second) == (0, 0)


async def test_detaching_the_control_link_rolls_back(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        txn_id = await coordinator.declare()
        state = TransactionalState(txn_id=txn_id)
        assert await client.send(link, order("1"), state=state) is None
        await client.detach(coordinator.link)
        assert await client.send(link, order("2"), state=state) == "amqp:transaction:unknown-id"
    assert server.message_counts(queue) == (0, 0)


async def test_an_invalid_message_to_the_coordinator_is_refused(server: ServerProcess) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        for body in (value("declare"), value(None), data(b"declare")):
            assert await client.send(coordinator.link, build(body=body)) == "amqp:decode-error"
        assert await client.send(coordinator.link, b"\xff") == "amqp:decode-error"
        assert await client.send(coordinator.link, build(body=value(Declare(global_id=b"x")))) == "amqp:not-allowed"
        assert await coordinator.declare()


async def test_a_connection_can_have_at_most_a_hundred_open_transactions(server: ServerProcess) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        ids = [await coordinator.declare() for _ in range(100)]
        assert len(set(ids)) == 100
        assert await client.send(coordinator.link, build(body=value(Declare()))) == "com.microsoft:server-busy"
        assert await coordinator.discharge(ids[0]) is None
        assert await coordinator.declare()


async def test_the_transactions_of_a_connection_can_hold_at_most_64_mib(server: ServerProcess, queue: str) -> None:
    large = build(properties=Properties(message_id="1"), body=data(bytes(250_000)))
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        ids = [await coordinator.declare() for _ in range(3)]
        refused = [
            await client.send(link, large, state=TransactionalState(txn_id=ids[number // 90])) for number in range(270)
        ]
        assert refused.count(None) == 268  # 64 MiB
        assert set(refused[268:]) == {"com.microsoft:server-busy"}
        for txn_id in ids[:2]:
            assert await coordinator.discharge(txn_id, fail=True) is None
        assert await coordinator.discharge(ids[2]) == "amqp:transaction:rollback"
        state = TransactionalState(txn_id=await coordinator.declare())
        assert await client.send(link, large, state=state) is None
    assert server.message_counts(queue) == (0, 0)


@pytest.mark.parametrize("what", ["declare", "send", "request"])
async def test_settled_transfers_in_a_transaction_take_effect_without_a_disposition(
    server: ServerProcess, queue: str, what: str
) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_sender(queue)
        requests = await client.attach_sender(f"{queue}/$management")
        txn_id = await coordinator.declare()
        state = TransactionalState(txn_id=txn_id)
        if what == "declare":
            coordinator.link.send(build(body=value(Declare())), settled=True)
        elif what == "send":
            link.send(order("1"), settled=True, state=state)
        else:
            requests.send(build(body=value({})), settled=True, state=state)
        assert await client.send(link, order("2"), state=state) is None
        expected = "amqp:transaction:rollback" if what == "request" else None
        assert await coordinator.discharge(txn_id) == expected
    assert server.message_counts(queue)[0] == {"declare": 1, "send": 2, "request": 0}[what]


async def test_a_rollback_makes_a_settled_session_message_available_again(
    server: ServerProcess,
) -> None:
    queue = server.create_queue(RequiresSession="true")
    source = Source(address=queue, filter={"com.microsoft:session-filter": None})
    async with connect_raw(server) as client:
        payload = build(properties=Properties(message_id="1", group_id="s"), body=data(b"1"))
        assert await client.send(await client.attach_sender(queue), payload) is None
        coordinator, link = await attach_coordinator(client), await client.attach_receiver(queue, source=source)
        (delivery,) = await client.receive(link)
        txn_id = await coordinator.declare()
        link.settle([delivery], TransactionalState(txn_id=txn_id, outcome=ACCEPTED))
        assert await coordinator.discharge(txn_id, fail=True) is None
        assert len(await client.receive(link)) == 1


async def test_a_refused_settlement_fails_the_transaction(server: ServerProcess, queue: str) -> None:
    await send_old_orders(server, queue, 1)
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_receiver(queue)
        sender = await client.attach_sender(queue)
        (delivery,) = await client.receive(link)
        txn_id = await coordinator.declare()
        assert await client.send(sender, order("1"), state=TransactionalState(txn_id=txn_id)) is None
        assert await client.settle(link, delivery, TransactionalState(txn_id=txn_id)) == "amqp:not-allowed"
        assert await coordinator.discharge(txn_id) == "amqp:transaction:rollback"
    assert server.message_counts(queue) == (1, 0)

"""The traffic of the sending program: flows of messages, each with one send after the other.

Owns: the flows, which outlive the program: after a restart they continue where they ended.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.pair.checker import SendCall
from tests.simulation.pair.messages import OwnFault, SimulatedMessage
from twinbus.client.errors import FactoryFaulted, ObjectClosed
from twinbus.model.errors import ServiceBusError
from twinbus.testing import on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.pair.program import Program
    from tests.simulation.pair.settings import EntityPlan
    from tests.simulation.pair.simulation import PairSimulation
    from twinbus.client.clients import QueueClient, TopicClient

SLACK_S: Final = 5.0
"""How much longer than its time-out a send may take: the spool always gets a second."""
_BATCH_PROBABILITY: Final = 0.2
_LARGE_BATCH_PROBABILITY: Final = 0.005
_SCHEDULED_PROBABILITY: Final = 0.08
_SHORT_TTL_PROBABILITY: Final = 0.15
_FAULTY_PROBABILITY: Final = 0.04
_CANCELLED_PROBABILITY: Final = 0.03


class Flow:
    """Messages of one session for one entity, or messages without a session."""

    def __init__(self, simulation: PairSimulation, plan: EntityPlan, session: str | None, random: Random) -> None:
        self.plan = plan
        self.session = session
        self._simulation = simulation
        self._random = random
        self._number = 0
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """End the current pause, so that the flow sends now."""
        self._wake.set()

    async def run(self, program: Program) -> None:
        """Send until the traffic ends or the program closes its factory."""
        factory = program.primary
        assert factory is not None
        create_client = factory.create_topic_client if self.plan.is_topic else factory.create_queue_client
        client: QueueClient | TopicClient = create_client(self.plan.path)
        traffic, is_open = self._simulation.traffic, True
        while is_open and not traffic.is_over:
            await self._pause()
            if not traffic.is_over:
                is_open = await self._send(program, client)

    async def _pause(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(self._random.expovariate(1 / self._simulation.settings.mean_pause_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _send(self, program: Program, client: QueueClient | TopicClient) -> bool:
        """Send one message or a batch. Return False if the program has closed its factory."""
        simulation, random = self._simulation, self._random
        messages = self._make_messages(program)
        limit_s = simulation.settings.operation_timeout_s
        sending = SendCall(self.plan, messages, program.host, simulation.loop.time(), limit_s)
        frozen_before_s = program.frozen_s
        is_cancelled = random.random() < _CANCELLED_PROBABILITY
        simulation.trace(f"{program.host} sends {', '.join(message.id for message in messages)} to {self.plan.path}")
        simulation.checker.begin_call(sending)
        brokered_messages = [message.to_brokered_message() for message in messages]
        try:
            async with asyncio.timeout(random.uniform(0.0, limit_s) if is_cancelled else None):
                if len(brokered_messages) > 1:
                    await client.send_batch(brokered_messages)
                else:
                    await client.send(brokered_messages[0])
        except TimeoutError as error:
            simulation.checker.call_crashed(sending, "the call was cancelled")
            if not is_cancelled:
                simulation.add_problem("ERROR", f"a send of {messages[0]} raised {error!r}")
        except ServiceBusError as error:
            simulation.checker.call_failed(sending, error)
            simulation.trace(f"  {messages[0].id}: {messages[0].outcome.value}: {type(error).__name__}")
            if isinstance(error, ObjectClosed | FactoryFaulted):
                return False
        except Exception as error:  # noqa: BLE001  # sends must raise no other errors
            simulation.checker.call_failed(sending, error)
            simulation.add_problem("ERROR", f"a send of {messages[0]} raised {error!r}")
        else:
            simulation.checker.call_returned(sending)
            simulation.trace(f"  {messages[0].id}: returned")
        self._check_time(sending, program.frozen_s - frozen_before_s)
        return True

    def _check_time(self, sending: SendCall, frozen_s: float) -> None:
        """Check that a send ended within its time-out; a held send may first wait for the failover interval."""
        simulation, settings = self._simulation, self._simulation.settings
        held_s = settings.failover_interval_s + settings.operation_timeout_s if settings.holds_sends else 0.0
        duration_s = simulation.loop.time() - sending.began_s
        if duration_s > sending.limit_s + held_s + frozen_s + SLACK_S:
            simulation.add_problem(
                "LATE", f"the send of {sending.messages[0]} took {duration_s:.1f} s, and had {sending.limit_s:g} s"
            )

    # --- messages ----------------------------------------------------------------------------------------------------

    def _make_messages(self, program: Program) -> list[SimulatedMessage]:
        kind = self._random.random()
        if kind < _LARGE_BATCH_PROBABILITY and self.plan.max_message_kb > 16:
            return [self._make_message(program, padding=2_300) for _ in range(self._random.randint(100, 108))]
        if kind < _BATCH_PROBABILITY:
            return [self._make_message(program) for _ in range(self._random.randint(2, 5))]
        return [self._make_message(program, is_single=True)]

    def _make_message(self, program: Program, *, padding: int = 0, is_single: bool = False) -> SimulatedMessage:
        random, plan = self._random, self.plan
        self._number += 1
        name = f"{plan.path}/{self.session or '-'}/{self._number}"
        message = SimulatedMessage(name, plan.path, self.session, self._number, name.encode() + b"." * padding)
        if self.session is None and plan.is_partitioned and random.random() < 0.5:
            message.partition_key = f"key-{random.randint(0, 40)}"
        if random.random() < _SHORT_TTL_PROBABILITY:
            message.ttl_s = random.randint(10, 120)
        if not is_single:
            return message
        chance = random.random()
        if chance < _SCHEDULED_PROBABILITY:
            message.due_ms = program.clock.wall_ms() + random.randint(5_000, 60_000)
        elif chance < _SCHEDULED_PROBABILITY + _FAULTY_PROBABILITY:
            self._add_fault(message)
        return message

    def _add_fault(self, message: SimulatedMessage) -> None:
        """Make a message faulty, if the entity has a limit that it can violate."""
        if self.plan.requires_session:
            message.session, message.own_fault = None, OwnFault.NO_SESSION
        elif self.plan.max_message_kb < 16:
            message.body += b"." * 1024 * self.plan.max_message_kb
            message.own_fault = OwnFault.TOO_LARGE


class Traffic:
    """All flows of a run."""

    def __init__(self, simulation: PairSimulation, seed: int) -> None:
        self.is_over = False
        self._flows = [
            Flow(simulation, plan, session, Random(f"{seed} {plan.path} {session}"))  # randomness of a simulation
            for plan in simulation.settings.entities
            for session in plan.sessions
        ]

    def start(self, program: Program) -> list[asyncio.Task[None]]:
        """Start all flows in a program, after its start or restart."""
        with on_host(program.host):
            return [asyncio.ensure_future(flow.run(program)) for flow in self._flows]

    def wake_all(self) -> None:
        """Let every flow send something now, if it is not sending already."""
        for flow in self._flows:
            flow.wake()

    def stop(self) -> None:
        self.is_over = True
        self.wake_all()

    @property
    def flows(self) -> Sequence[Flow]:
        return self._flows

"""Parts of entities: one for each fragment.

A part of a queue or subscription consists of several areas, each of them a `Fragment` object with numbers, counters and
an order of its own: the messages, the dead letters and, if needed, messages on their way to other entities.

Owns: the operations on a part (`Part`), and how a part stores messages if its store belongs to this process
(`StoredPart`): how large it may become, and whether its messages are checked for duplicates. What is in a message was
checked before (`intake`); the order and the delivery of messages are the fragment's business.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.broker.entities.local_transaction import LocalTransaction
from twinbus.broker.ports.fragment import LOCAL_OWNER
from twinbus.model.description import fragment_size_mb
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.entity import Entity
    from twinbus.broker.entities.fan_out import Rule
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort, TransactionPort
    from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.path import SubQueue
    from twinbus.model.queue import QueueRuntime

MEGABYTE: Final = 1_048_576


class EntityPart:
    """One fragment of an entity, in this process or in another one."""

    def __init__(self, entity: Entity, number: int) -> None:
        """Made by the namespace; `number` is the fragment's."""
        self.entity = entity
        self.number = number

    @property
    def main(self) -> FragmentPort:
        """Its messages; of a topic, those that are scheduled."""
        raise NotImplementedError

    @property
    def fragments(self) -> list[FragmentPort]:
        """All its areas."""
        return [self.main]

    @property
    def owner(self) -> OwnerPort:
        """The process that owns it."""
        return LOCAL_OWNER

    @property
    def validation_policy(self) -> ValidationPolicy:
        """What its entity demands of messages."""
        return self.entity.validation_policy

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return any(fragment.is_in_use for fragment in self.fragments)

    def fragment_of(self, sub_queue: SubQueue) -> FragmentPort:  # noqa: ARG002
        """Return the area that receivers of the entity, or of one of its dead-letter queues, take messages from."""
        return self.main

    def send(
        self,
        batch: IncomingBatch,
        on_done: OnDone,
        sequence_numbers: list[int] | None = None,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Store messages, all or none; `answer` is called when they are on disk. QuotaExceeded, StoreUnavailable.

        `numbers` gets their sequence numbers before `answer` is called; 0 for a duplicate, which is not stored.
        `beside` is called when the messages are put into a batch, and may put changes into the same batch.
        """
        raise NotImplementedError

    def send_via(self, records: list[bytes], destination: str, on_done: OnDone) -> None:
        """Store messages that go on to another entity, all or none. QuotaExceeded, StoreUnavailable."""
        raise NotImplementedError

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages that another entity forwards, as `Arrivals.take`; `source` is the prefix of its keys."""
        raise NotImplementedError

    def check_can_store(self, size: int) -> None:
        """Raise what a send of `size` bytes would raise, as far as that is known before it."""
        raise NotImplementedError

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active again, as `Resubmission.resubmit`."""
        raise NotImplementedError

    def begin_transaction(self, intake: MessageIntake) -> TransactionPort:
        """Begin the part of a transaction that this part's owner carries out."""
        raise NotImplementedError

    def runtime(self) -> QueueRuntime:
        """Return what it holds now. Its times are those of its entity."""
        raise NotImplementedError

    def apply_description(self, limits: NamespaceLimits) -> None:
        """Adopt the entity's description, which has changed."""

    def put_rule(self, rule_name: str, rule: Rule) -> None:
        """Add a rule to a part of a subscription, or replace it."""

    def remove_rule(self, rule_name: str) -> None:
        """Remove a rule from a part of a subscription."""

    def detach_from_topic(self) -> None:
        """Receive no more copies: the subscription is deleted."""

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from its store."""
        raise NotImplementedError

    def resume(self) -> None:
        """All entities are loaded: messages may be handed out and forwarded."""
        for fragment in self.fragments:
            fragment.resume()

    def close(self, error: ServiceBusError) -> None:
        """The entity was deleted: notify all receivers."""
        for fragment in self.fragments:
            fragment.close(error)


class LocalPart(EntityPart):
    """A part whose store belongs to this process."""

    @property
    def main(self) -> Fragment:
        """Its messages."""
        raise NotImplementedError

    def begin_transaction(self, intake: MessageIntake) -> TransactionPort:
        """Begin a transaction on it."""
        return LocalTransaction(self, intake)

    def send(
        self,
        batch: IncomingBatch,
        on_done: OnDone,
        sequence_numbers: list[int] | None = None,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Store messages, or sync nothing if there are only pings."""
        self.entity.check_send_enabled()
        records, fragment = batch.records, self.main
        if not records:
            fragment.ping(on_done)
            return
        self.check_quota(sum([len(record) for record in records]))
        if (
            self.entity.validation_policy.detects_duplicates and batch.duplicate_ids
        ):  # a message that returns to its entity has no id here
            fragment.duplicate_detection.enqueue(
                records, batch.duplicate_ids, [] if sequence_numbers is None else sequence_numbers, on_done, on_batched
            )
            return
        if fragment.is_publishing:
            fragment.commit_log.check_accepts_sends()
            fragment.check_loaded()
            size = sum([len(record) for record in records])
            fragment.run_in_order(
                partial(_enqueue, fragment, records, on_done, sequence_numbers, on_batched), on_done, size
            )
            return
        _enqueue(fragment, records, on_done, sequence_numbers, on_batched)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Store messages that another entity forwards."""
        self.main.forwarding_inbox.accept(source_prefix, numbered_records, self, on_done)

    def check_can_store(self, size: int) -> None:
        """Raise what a send of `size` bytes would raise."""
        self.entity.check_send_enabled()
        self.main.commit_log.check_accepts_sends()
        self.main.check_loaded()
        self.check_quota(size)

    def stored_bytes(self) -> int:
        """Return the size of all that it holds."""
        raise NotImplementedError

    @property
    def max_size_mb(self) -> int:
        """The size of its entity, as that is described."""
        raise NotImplementedError

    def check_quota(self, size: int) -> None:
        """Raise QuotaExceeded if `size` bytes more do not fit."""
        limit = fragment_size_mb(self.max_size_mb) * MEGABYTE
        held = self.stored_bytes()
        if held + size > limit:
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded for '{self.entity.path}': it holds {held:,} "
                f"bytes of {limit:,}, and {size:,} more do not fit. Receive messages, also from its dead-letter queue, "
                "clear session states, or make the entity larger (MaxSizeInMegabytes)."
            )


def _enqueue(
    fragment: Fragment,
    records: list[bytes],
    on_done: OnDone,
    sequence_numbers: list[int] | None,
    on_batched: Callable[[], None] | None,
) -> None:
    first = fragment.enqueue(records, on_done, on_batched)
    if sequence_numbers is not None:
        sequence_numbers.extend(range(first, first + len(records)))

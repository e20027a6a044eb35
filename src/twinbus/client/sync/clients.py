"""Blocking clients of a queue, a topic or a subscription. What they do is in `twinbus.client.clients`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.client.sync.background import call, wait
from twinbus.client.sync.receiver import MessageReceiver, MessageSession, Receiving
from twinbus.client.sync.sender import MessageSender, Sending

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client import clients
    from twinbus.client.receiver import ReceiveMode

SendingT = TypeVar("SendingT", bound="clients.SendingClient")
ReceivingT = TypeVar("ReceivingT", bound="clients.ReceivingClient")


class _SendingClient(Sending[SendingT]):
    """What queues and topics have in common: one can send to them."""

    @property
    def sender(self) -> MessageSender:
        """What sends."""
        return MessageSender(self.inner.sender)


class _ReceivingClient(Receiving[ReceivingT]):
    """What queues and subscriptions have in common: one can receive from them."""

    @property
    def prefetch(self) -> int:
        """How many messages are asked for ahead. Set it before the first receive."""
        return self.inner.prefetch

    @prefetch.setter
    def prefetch(self, count: int) -> None:
        self.inner.prefetch = count

    @property
    def receiver(self) -> MessageReceiver:
        """What receives."""
        return MessageReceiver(call(lambda: self.inner.receiver))

    def dead_letter_receiver(self, mode: ReceiveMode | None = None) -> MessageReceiver:
        """A receiver of its dead-letter queue."""
        return MessageReceiver(call(lambda: self.inner.dead_letter_receiver(mode)))

    def accept_session(
        self,
        session_id: str | None = None,
        *,
        prefetch: int = 0,
        timeout: dt.timedelta | float | None = None,
        auto_renew: dt.timedelta | float | None = None,
    ) -> MessageSession:
        """Take a session; without an id the next that nobody has. `auto_renew`: for how long to keep its lock."""
        inner = wait(
            lambda: self.inner.accept_session(session_id, prefetch=prefetch, timeout=timeout, auto_renew=auto_renew)
        )
        return MessageSession(inner)

    def get_message_sessions(self, updated_since: dt.datetime | None = None) -> list[str]:
        """Ids of the sessions that have messages or a state; or whose state was set since a time."""
        return wait(lambda: self.inner.get_message_sessions(updated_since))


class QueueClient(_SendingClient["clients.QueueClient"], _ReceivingClient["clients.QueueClient"]):
    """Sends to a queue and receives from it."""


class TopicClient(_SendingClient["clients.TopicClient"]):
    """Sends to a topic."""


class SubscriptionClient(_ReceivingClient["clients.SubscriptionClient"]):
    """Receives from a subscription."""

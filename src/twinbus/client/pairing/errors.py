"""Errors of paired namespaces.

Owns: the errors that only paired applications get. Each error about a message says whether the message is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.client.retry import MAY_BE_STORED, NOT_SENT
from twinbus.model.errors import CallerError, InvalidArgument, InvalidOperation, MessageTooLarge, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PairingFailed(ServiceBusError):
    """Pairing the namespaces failed. The factories stay unpaired, and the call may be repeated."""


class PairingRefused(CallerError):
    """These namespaces cannot be paired, so the same call will fail again."""


class NotSent(ServiceBusError):
    """Neither the primary nor any backlog queue confirmed the message.

    If `may_have_happened` is set, the primary or a backlog queue may have stored the message; otherwise the message was
    not sent. If a batch was split, some of its messages may have been stored: `stored` has their positions.
    """

    def __init__(
        self,
        path: str,
        primary: BaseException | None,
        backlog: Mapping[str, BaseException],
        *,
        spool: BaseException | None = None,
        may_have_happened: bool = False,
        stored: Sequence[int] = (),
        unsure: Sequence[int] | None = None,
        is_failed_over: bool = False,
    ) -> None:
        """Create the error for a send to `path`.

        `backlog` maps each backlog queue that was tried to its error. `may_have_happened` means that a message that is
        not in `stored` may have been stored. `unsure` is only given for batches. `is_failed_over` means that `primary`
        is the error of the earlier send that made the entity fail over.
        """
        reasons = [f"the primary: {_reason(primary, is_failed_over=is_failed_over)}"] if primary is not None else []
        reasons += [f"{', '.join(queues)}: {reason}" for reason, queues in _queues_by_reason(backlog).items()]
        reasons += [f"the spool: {spool}"] if spool is not None else []
        noun = "message" if unsure is None else "batch"
        outcome = f"the {noun} for '{path}' was not sent"
        if may_have_happened:
            outcome = f"the {noun} for '{path}' may have been stored, but no response confirms it"
        self.stored = sorted(stored)
        """The positions of the messages in the batch that are known to be stored."""
        self.unsure = None if unsure is None else sorted(unsure)
        """The positions of other messages that may be stored; None for a single message."""
        if stored:
            count = len(self.stored)
            which = f"its first {count:,} messages" if self.safe == count else f"{count:,} of its messages"
            others = "may have been stored, too" if may_have_happened else "were not sent"
            outcome = f"the batch for '{path}' was split: {which} are safe, the others {others}"
        super().__init__(f"{outcome}. {'; '.join(reasons)}", may_have_happened=may_have_happened or bool(stored))
        self.path = path
        self.primary = primary
        self.backlog = dict(backlog)
        self.spool = spool
        """The reason why the spool did not store the message; None if there is no spool."""

    @property
    def may_have_arrived(self) -> bool:
        """The older name of `may_have_happened`."""
        return self.may_have_happened

    @property
    def safe(self) -> int:
        """The number of messages at the start of the batch that are known to be stored, up to the first gap."""
        return next((index for index, position in enumerate(self.stored) if position != index), len(self.stored))

    @property
    def causes(self) -> list[BaseException]:
        """The errors of the backlog queues, followed by the primary's error, if any."""
        return [*self.backlog.values(), *([self.primary] if self.primary is not None else [])]


def _reason(error: BaseException, *, is_failed_over: bool) -> str:
    """Return the text of an error; for an earlier send's error, omit the outcome of that send's message."""
    text = str(error)
    if not is_failed_over:
        return text
    for ending in (f": {MAY_BE_STORED}", f": {NOT_SENT}"):
        text = text.removesuffix(ending)
    return f"failed over after an earlier send: {text}"


def _queues_by_reason(backlog: Mapping[str, BaseException]) -> dict[str, list[str]]:
    """Return the backlog queues that failed with each reason.

    If the secondary is down, all backlog queues fail with the same reason, which is then reported once.
    """
    queues_by_reason: dict[str, list[str]] = {}
    for queue, reason in backlog.items():
        queues_by_reason.setdefault(str(reason), []).append(queue)
    return queues_by_reason


class SpoolFailed(ServiceBusError):
    """The spool's folder cannot be used, or its disk did not store a message."""


class SpoolFull(SpoolFailed):
    """The spool has reached its size limit."""


class MessageCannotBeParked(MessageTooLarge):
    """The message fits the primary, but parking adds properties that make it too large for a backlog queue."""


class ReservedPropertyName(InvalidArgument):
    """An application property has a name that is reserved for parked messages."""


class FailedOver(InvalidOperation):
    """The operation (a transaction, or cancelling a parked schedule) needs the primary, which is failed over."""


class ParkedMessageMalformed(ServiceBusError):
    """A message in a backlog queue cannot be restored: the message, or a property that parking added, is malformed."""


class PairedMessagingFactoryError(ServiceBusError):
    """This factory was faulted because the pair's other factory was closed or faulted."""


class PrimaryLost(ServiceBusError):
    """The primary went down while a pump was sending parked messages, so the pump waits for the primary."""

    def __init__(self, path: str, error: ServiceBusError) -> None:
        """Create the error for the destination at `path`, which did not respond."""
        super().__init__(f"the primary does not answer: {error}")
        self.path = path
        self.error = error

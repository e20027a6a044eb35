"""What can go wrong with a pair.

Owns: the errors that only a paired application meets. Each says what became of the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.client.retry import MAY_BE_STORED, NOT_SENT
from twinbus.model.errors import CallerError, InvalidArgument, InvalidOperation, MessageTooLarge, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PairingFailed(ServiceBusError):
    """The namespaces could not be paired. Nothing was changed: the call may be repeated."""


class PairingRefused(CallerError):
    """These namespaces cannot be paired: the same call will fail again."""


class NotSent(ServiceBusError):
    """Neither the primary nor any backlog queue confirmed the message.

    It was not sent, or, if `may_have_happened`, one of them may have it. Of a batch that was split, some messages may
    be safe: `stored` has their positions.
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
        """`backlog` has the reason of each backlog queue that was tried.

        `may_have_happened`: one of the messages that are not in `stored` may have been stored all the same. `unsure` is
        given for a batch. `is_failed_over`: `primary` is the error of an earlier send, for which the entity is failed
        over.
        """
        reasons = [f"the primary: {_reason(primary, is_failed_over=is_failed_over)}"] if primary is not None else []
        reasons += [f"{', '.join(queues)}: {reason}" for reason, queues in _queues_by_reason(backlog).items()]
        reasons += [f"the spool: {spool}"] if spool is not None else []
        noun = "message" if unsure is None else "batch"
        what = f"the {noun} for '{path}' was not sent"
        if may_have_happened:
            what = f"the {noun} for '{path}' may have been stored, but no response confirms it"
        self.stored = sorted(stored)
        """The positions of the messages in the batch that are safe."""
        self.unsure = None if unsure is None else sorted(unsure)
        """The positions of other messages that may be stored, too; None: nothing is known of single messages."""
        if stored:
            count = len(self.stored)
            which = f"its first {count:,} messages" if self.safe == count else f"{count:,} messages of it"
            others = "may have been stored, too" if may_have_happened else "were not sent"
            what = f"the batch for '{path}' was split: {which} are safe, the others {others}"
        super().__init__(f"{what}. {'; '.join(reasons)}", may_have_happened=may_have_happened or bool(stored))
        self.path = path
        self.primary = primary
        self.backlog = dict(backlog)
        self.spool = spool
        """Why the local disk did not take it; None where there is no spool."""

    @property
    def may_have_arrived(self) -> bool:
        """The older name of `may_have_happened`."""
        return self.may_have_happened

    @property
    def safe(self) -> int:
        """How many messages of the batch, from its first, are safe."""
        return next((place for place, stored in enumerate(self.stored) if stored != place), len(self.stored))

    @property
    def causes(self) -> list[BaseException]:
        """All of them."""
        return [*self.backlog.values(), *([self.primary] if self.primary is not None else [])]


def _reason(error: BaseException, *, is_failed_over: bool) -> str:
    """Return what an error says; of an earlier send's error, without what it says of that send's message."""
    text = str(error)
    if not is_failed_over:
        return text
    for ending in (f": {MAY_BE_STORED}", f": {NOT_SENT}"):
        text = text.removesuffix(ending)
    return f"failed over after an earlier send: {text}"


def _queues_by_reason(backlog: Mapping[str, BaseException]) -> dict[str, list[str]]:
    """Each reason once: a secondary that is down is the same reason for every backlog queue."""
    found: dict[str, list[str]] = {}
    for queue, reason in backlog.items():
        found.setdefault(str(reason), []).append(queue)
    return found


class SpoolFailed(ServiceBusError):
    """The folder of the spool cannot be used, or its disk did not take a message."""


class SpoolFull(SpoolFailed):
    """The spool has reached its limit."""


class MessageCannotBeParked(MessageTooLarge):
    """The message would have passed to a healthy primary; with what parking adds it is too large."""


class ReservedPropertyName(InvalidArgument):
    """A property has the name of one that parked messages have."""


class FailedOver(InvalidOperation):
    """What was asked for needs the primary, which is failed over: a transaction, or cancelling a parked schedule."""


class ParkedMessageMalformed(ServiceBusError):
    """A message in a backlog queue from which nobody can tell where it belongs."""


class PairedMessagingFactoryError(ServiceBusError):
    """The other factory of the pair has ended: this one was faulted with it (R077)."""


class PrimaryLost(ServiceBusError):
    """The primary is gone while parked messages were on their way back to it: the pump waits."""

    def __init__(self, path: str, error: ServiceBusError) -> None:
        """`path` is of the destination that did not answer."""
        super().__init__(f"the primary does not answer: {error}")
        self.path = path
        self.error = error

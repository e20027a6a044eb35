"""What is known of an operation that took several attempts: whether it may have been carried out.

    doubt = Doubt()
    with doubt.told():
        await attempts.run(..., doubt=doubt)

An error says what became of one attempt. If an earlier attempt got no answer, the operation may have been carried out
whatever the last attempt says; if no request ever left, it was not, even if the last error leaves that open in general.

Owns: that the error of an operation speaks of all its attempts. `sender` and `requests` note what left.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED: Final = "it may have been stored"
UNSENT: Final = "it was not sent"


class Doubt:
    """Of one operation."""

    __slots__ = ("may_have_happened",)

    def __init__(self, *, may_have_happened: bool = False) -> None:
        """`may_have_happened`: an attempt that was made before got no answer."""
        self.may_have_happened = may_have_happened
        """A request has left, and no answer says that nothing came of it."""

    def note(self, error: ServiceBusError) -> None:
        """Take into account what became of a request that had left."""
        self.may_have_happened = self.may_have_happened or error.may_have_happened

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have errors say what is known of the operation as a whole."""
        try:
            yield
        except ServiceBusError as error:
            told = self._of_all(error)
            if told is error:
                raise
            raise told from error

    def _of_all(self, error: ServiceBusError) -> ServiceBusError:
        if error.may_have_happened is self.may_have_happened:
            return error
        text = f"an earlier attempt got no answer and may have been carried out; then {error}"
        return error.retold(may_have_happened=self.may_have_happened, text=text if self.may_have_happened else None)


def of_send(error: ServiceBusError, *, may_have_happened: bool) -> ServiceBusError:
    """Return the error of a send of several attempts, of which `error` ended the last one."""
    if isinstance(error, TimedOut) and not str(error).endswith((STORED, UNSENT)):
        known = STORED if may_have_happened else UNSENT
        return error.retold(may_have_happened=may_have_happened, text=f"{error}: {known}")
    if error.may_have_happened is may_have_happened:
        return error
    if not may_have_happened:
        is_of_link = isinstance(error, ConnectionLost)  # while attaching, say
        return ConnectionFailed(str(error)) if is_of_link else error.retold(may_have_happened=False)
    if isinstance(error, ObjectClosed | FactoryFaulted):
        return ConnectionLost(f"the sender ended before an answer came, {STORED}: {error}")
    text = f"no answer came, {STORED}; then {error}"
    if isinstance(error, ConnectionFailed):
        return ConnectionLost(text)
    return error.retold(may_have_happened=True, text=text)

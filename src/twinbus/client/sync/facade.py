"""What all blocking objects have in common: they stand for one of `twinbus.client`, and are closed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from twinbus.client.sync.background import wait

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.client.entity import ClientEntity


class Closable(Protocol):
    """What does the work."""

    async def close(self) -> None:
        """End it, and all that was made by it. May be called again."""


ClosableT = TypeVar("ClosableT", bound=Closable)
InnerT = TypeVar("InnerT", bound="ClientEntity")


class Blocking(Generic[ClosableT]):
    """Stands for one object of `twinbus.client`."""

    def __init__(self, inner: ClosableT) -> None:
        """`inner` is what does the work; it belongs to the loop in the background."""
        self.inner = inner

    def __repr__(self) -> str:
        return f"<sync {self.inner!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and all that was made by it. May be called again."""
        wait(self.inner.close)


class Facade(Blocking[InnerT]):
    """A sender, a receiver, or a client that has both. Made by a factory."""

    @property
    def path(self) -> str:
        """Of its entity."""
        return self.inner.path

    @property
    def is_closed(self) -> bool:
        """It cannot be used any more."""
        return self.inner.is_closed

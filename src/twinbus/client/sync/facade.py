"""What all blocking objects have in common: they stand for one of `twinbus.client`, and are closed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from twinbus.client.sync.background import wait

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.client.entity import ClientEntity

InnerT = TypeVar("InnerT", bound="ClientEntity")


class Facade(Generic[InnerT]):
    """A sender, a receiver, or a client that has both."""

    def __init__(self, inner: InnerT) -> None:
        """Made by a factory. `inner` is what does the work; it belongs to the loop in the background."""
        self.inner = inner

    def __repr__(self) -> str:
        return f"<sync {self.inner!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """Of its entity."""
        return self.inner.path

    @property
    def is_closed(self) -> bool:
        """It cannot be used any more."""
        return self.inner.is_closed

    def close(self) -> None:
        """End it. May be called again."""
        wait(self.inner.close)

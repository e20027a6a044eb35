"""Links: the common part of `Sender` and `Receiver`. A link carries messages in one direction, limited by credit.

Owns attaching, detaching, and the counters that flow frames carry. The session owns delivery ids, windows and
settlement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.codec.performatives import Attach, Detach, Error, Flow
from twinbus.amqp.errors import FRAME_SIZE_TOO_SMALL, FrameTooLarge, LocalError
from twinbus.amqp.states import LINK_TRANSITIONS, LinkState, ReceiverSettleMode, Role, SenderSettleMode, Step
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.session import Session

SERIAL_MASK: Final = 2**32 - 1
"""Mask for counters on the wire, which have 32 bits and wrap around."""
SERIAL_HALF: Final = 2**31
"""Half of the counter range: if `(a - b) & SERIAL_MASK` is at least this, then a is before b."""
MAX_TAG_BYTES: Final = 32


class Link:
    """Local end of a link, sender or receiver."""

    role: ClassVar[bool]

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Create an unattached link; only the session does this."""
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.local_state = LinkState.UNATTACHED
        self.remote_state = LinkState.UNATTACHED
        self.remote_attach: Attach | None = None
        """The peer's attach. After our response, `_addresses_only` has removed most of its fields. None after the link
        has ended."""
        self.snd_settle_mode: int = SenderSettleMode.MIXED
        self.rcv_settle_mode: int = ReceiverSettleMode.FIRST
        self.delivery_count = 0
        self.credit = 0
        self.unsettled_ids: set[int] = set()
        """Delivery ids of this link in the session's `unsettled_deliveries`."""
        self.shared_id_count = 0
        """Number of this link's unsettled deliveries minus the number of their distinct delivery ids. 0 unless the peer
        breaks AMQP's rules."""
        self.unanswered_count = 0
        """Number of messages that the program has received but not answered yet (receivers only)."""
        self.unanswered_bytes = 0
        self.is_draining = False
        """True if we have asked the peer to use up or give back its credit (receivers only)."""
        self.lost_deliveries: list[OutgoingDelivery] = []
        """Messages sent on a link that has ended, whose outcome will never arrive."""
        self._owes_flow = False
        self.is_announced = False
        """True if the program knows this link, and so gets an event when the link ends."""
        self.context: object = None
        """Free for use by the program."""
        self.on_accept: Callable[[], dict[str, object]] | None = None
        """Called when we respond to the peer's attach; the returned properties are added to the response."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.local_state.name}/{self.remote_state.name}>"

    @property
    def is_attached(self) -> bool:
        """True if both ends are attached, so that messages may flow."""
        return self.local_state is LinkState.ATTACHED and self.remote_state is LinkState.ATTACHED

    @property
    def unsettled_count(self) -> int:
        """Number of unsettled messages on this link."""
        return len(self.unsettled_ids) + self.shared_id_count

    @property
    def is_over(self) -> bool:
        """True if the link was detached or its session ended. Answering or granting credit then has no effect."""
        return self.local_state is LinkState.DETACHED

    def _next_state(self, step: Step) -> LinkState:
        """Return the state after `step`. Callers set the state only after queuing the frame, in case of an error."""
        next_state = LINK_TRANSITIONS.get((self.local_state, step))
        if next_state is None:
            raise LocalError(f"{step.name.lower()} is not allowed on {self!r}")
        return next_state

    def attach(self, attach: Attach) -> None:
        """Send our attach: to open a link, or in response to the peer's attach (see `accept`)."""
        next_state = self._next_state(Step.ATTACH)
        self.session.send(Step.ATTACH, attach)
        self.local_state = next_state
        self.snd_settle_mode, self.rcv_settle_mode = attach.snd_settle_mode, attach.rcv_settle_mode
        if self._owes_flow:
            self.send_flow()

    def accept(
        self,
        *,
        source: Composite | None = None,
        target: Composite | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: tuple[str, ...] | None = None,
    ) -> None:
        """Respond to the peer's attach with ours. Source and target default to those in the peer's attach.

        If the response is larger than the peer's maximum frame size, refuse the link instead. If the peer has detached
        the link meanwhile, do nothing.
        """
        if self.is_over:
            return
        remote_attach = self._require_remote_attach()
        if self.on_accept is not None:
            properties = {**(properties or {}), **self.on_accept()}
        answer = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=remote_attach.snd_settle_mode,
            rcv_settle_mode=remote_attach.rcv_settle_mode,
            source=source if source is not None else remote_attach.source,
            target=target if target is not None else remote_attach.target,
            initial_delivery_count=self.delivery_count if self.role is Role.SENDER else None,
            max_message_size=max_message_size or self.session.limits.max_message_size,
            offered_capabilities=offered_capabilities,
            properties=properties,
        )
        try:
            self.attach(answer)
        except FrameTooLarge as error:
            self.refuse(Error(condition=FRAME_SIZE_TOO_SMALL, description=str(error)))
        else:
            self.remote_attach = _addresses_only(remote_attach)

    def refuse(self, error: Error) -> None:
        """Respond to the peer's attach with an attach without source and target, followed by a detach with `error`."""
        if self.is_over:
            return
        self._attach_nothing()
        self.detach(error=error)
        self.session.forget_name(self)

    def _attach_nothing(self) -> None:
        # Without this attach, the detach would refer to a handle that the peer does not know.
        self.attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
            )
        )

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Detach the local end. The link has ended when the peer responds (LinkDetached)."""
        if self.is_over:
            return
        next_state = self._next_state(Step.DETACH)
        try:
            self.session.send(Step.DETACH, Detach(handle=self.handle, closed=closed, error=error))
        except FrameTooLarge:  # send the error without its description
            short = Error(condition=error.condition) if error is not None else None
            self.session.send(Step.DETACH, Detach(handle=self.handle, closed=closed, error=short))
        self.local_state = next_state
        self.remote_attach = None
        self.session.forget_deliveries(self)

    def answer_detach(self, *, closed: bool) -> None:
        """Respond to the peer's detach, unless we have detached already."""
        if self.local_state is LinkState.UNATTACHED:
            self._attach_nothing()
        if self.local_state is LinkState.ATTACHED:
            self.detach(closed=closed)

    def send_flow(self, *, drain: bool | None = None, echo: bool = False) -> None:
        """Send this link's flow state to the peer."""
        if self.is_over:
            return
        self._next_state(Step.FLOW)
        knows_count = self.role is Role.SENDER or self.remote_state is not LinkState.UNATTACHED
        self.session.send_flow(
            handle=self.handle,
            delivery_count=self.delivery_count if knows_count else None,
            link_credit=self.credit,
            drain=self.is_draining if drain is None else drain,
            echo=echo,
        )

    def answer_echo(self) -> None:
        """Send this link's state, which the peer asked for, now or as soon as we have attached."""
        if self.local_state is LinkState.UNATTACHED:
            self._owes_flow = True
        else:
            self.send_flow()

    def receive_flow(self, flow: Flow) -> bool:
        """Apply the peer's flow; return True if the program should be notified."""
        raise NotImplementedError

    def _require_remote_attach(self) -> Attach:
        if self.remote_attach is None:
            raise LocalError(f"the peer has not asked to attach {self!r}")
        return self.remote_attach


def _addresses_only(attach: Attach) -> Attach:
    """Return the part of `attach` that is kept while the link exists; it is small, as there may be many links."""
    return Attach(
        name=attach.name,
        handle=attach.handle,
        role=attach.role,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=attach.rcv_settle_mode,
        source=_address_of(attach.source),
        target=_address_of(attach.target),
        initial_delivery_count=attach.initial_delivery_count,
        max_message_size=attach.max_message_size,
    )


def _address_of(terminus: object) -> object:
    if isinstance(terminus, Source | Target) and isinstance(terminus.address, str):
        return type(terminus)(address=terminus.address)
    return None

"""Links: what our two kinds of ends have in common. A link carries messages one way, as far as credit goes.

Owns: attaching and detaching, and the counters that a flow tells. `Sender` and `Receiver` do the rest; delivery ids,
windows and settlement are the session's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.errors import FRAME_SIZE_TOO_SMALL, FrameTooLarge, LocalError
from twinbus.amqp.performatives import Attach, Detach, Error, Flow
from twinbus.amqp.states import LINK_TRANSITIONS, LinkState, ReceiverSettleMode, Role, SenderSettleMode, Step
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.session import Session

SERIAL_MASK: Final = 2**32 - 1
"""Counters on the wire are 32 bits and wrap around."""
SERIAL_HALF: Final = 2**31
"""Two counters further apart than this are the other way round."""
MAX_TAG_BYTES: Final = 32


class Link:
    """What both ends of a link have in common."""

    role: ClassVar[bool]

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.local_state = LinkState.UNATTACHED
        self.remote_state = LinkState.UNATTACHED
        self.remote_attach: Attach | None = None
        """What the peer asked for. Once it is answered, only the addresses of its source and target are left; of a link
        that is over, nothing is."""
        self.snd_settle_mode: int = SenderSettleMode.MIXED
        self.rcv_settle_mode: int = ReceiverSettleMode.FIRST
        self.delivery_count = 0
        self.credit = 0
        self.unsettled_ids: set[int] = set()
        """Of deliveries of this link that are in the session's ledger."""
        self.shared_id_count = 0
        """Deliveries of this link beyond the first of each id: none, unless the peer breaks AMQP's rules."""
        self.unanswered_count = 0
        """Messages handed to the program of which it has said nothing yet; on a receiver only."""
        self.unanswered_bytes = 0
        self.is_draining = False
        """We have asked the peer to use up or give back its credit; on a receiver only."""
        self.lost_deliveries: list[OutgoingDelivery] = []
        """Messages sent on a link that is over, of whose fate nobody will tell."""
        self._owes_flow = False
        self.is_announced = False
        """The program knows of it, so it will be told when it ends."""
        self.context: object = None
        """For the program: what this link is for."""
        self.on_accept: Callable[[], dict[str, object]] | None = None
        """Called when the peer's attach is answered with ours; what it returns is added to the properties of that."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.local_state.name}/{self.remote_state.name}>"

    @property
    def is_attached(self) -> bool:
        """Both ends are attached: messages may flow."""
        return self.local_state is LinkState.ATTACHED and self.remote_state is LinkState.ATTACHED

    @property
    def unsettled_count(self) -> int:
        """Messages of this link that are not settled."""
        return len(self.unsettled_ids) + self.shared_id_count

    @property
    def is_over(self) -> bool:
        """It was detached, or went with its session. Who was about to answer or grant need not: it does nothing."""
        return self.local_state is LinkState.DETACHED

    def _next_state(self, step: Step) -> LinkState:
        """Where a step of ours leads. It is taken once its frame is queued: one that cannot be leaves all as it was."""
        following = LINK_TRANSITIONS.get((self.local_state, step))
        if following is None:
            raise LocalError(f"{step.name.lower()} on {self!r}")
        return following

    def attach(self, attach: Attach) -> None:
        """Send our attach: the first step of a link of ours, or (by `accept`) the answer to theirs."""
        following = self._next_state(Step.ATTACH)
        self.session.send(Step.ATTACH, attach)
        self.local_state = following
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
        """Answer the peer's attach with ours. Source and target are the peer's own where not given.

        An answer that is larger than the frames the peer takes is a refusal instead. The peer may have taken its wish
        back already: then there is nothing to answer, and nothing is.
        """
        if self.is_over:
            return
        theirs = self._require_remote_attach()
        if self.on_accept is not None:
            properties = {**(properties or {}), **self.on_accept()}
        answer = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=theirs.snd_settle_mode,
            rcv_settle_mode=theirs.rcv_settle_mode,
            source=source if source is not None else theirs.source,
            target=target if target is not None else theirs.target,
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
            self.remote_attach = _addresses_only(theirs)

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach with one that has neither source nor target, and a detach that says why."""
        if self.is_over:
            return
        self._attach_nothing()
        self.detach(error=error)
        self.session.forget_name(self)

    def _attach_nothing(self) -> None:
        # The empty attach is needed: a bare detach would be for a handle that the peer does not know.
        self.attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
            )
        )

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Detach our end. The link has ended when the peer answers (LinkDetached)."""
        if self.is_over:
            return
        following = self._next_state(Step.DETACH)
        try:
            self.session.send(Step.DETACH, Detach(handle=self.handle, closed=closed, error=error))
        except FrameTooLarge:  # the condition is what counts
            short = Error(condition=error.condition) if error is not None else None
            self.session.send(Step.DETACH, Detach(handle=self.handle, closed=closed, error=short))
        self.local_state = following
        self.remote_attach = None
        self.session.forget_deliveries(self)

    def answer_detach(self, *, closed: bool) -> None:
        """The peer has detached: do the same, if we have not."""
        if self.local_state is LinkState.UNATTACHED:
            self._attach_nothing()
        if self.local_state is LinkState.ATTACHED:
            self.detach(closed=closed)

    def send_flow(self, *, drain: bool | None = None, echo: bool = False) -> None:
        """Tell the peer this link's state."""
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
        """The peer wants to hear this link's state: now, or once we have attached."""
        if self.local_state is LinkState.UNATTACHED:
            self._owes_flow = True
        else:
            self.send_flow()

    def receive_flow(self, flow: Flow) -> bool:
        """Take over what the peer says of this link; True where the program should hear of it."""
        raise NotImplementedError

    def _require_remote_attach(self) -> Attach:
        if self.remote_attach is None:
            raise LocalError(f"{self!r} was not asked for by the peer")
        return self.remote_attach


def _addresses_only(attach: Attach) -> Attach:
    """What is worth keeping of an attach for as long as its link is there: a peer may attach thousands of links."""
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

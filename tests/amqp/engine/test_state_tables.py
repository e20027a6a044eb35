"""Each table, cell by cell: what it allows happens, what it does not is refused as it should be, by both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import LocalError, Violation
from twinbus.amqp.events import AttachRequested, ConnectionClosed, LinkDetached, SessionEnded
from twinbus.amqp.frames import AMQP_HEADER
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import Credentials, SaslChallenge, SaslInit, SaslLayer, SaslMechanisms, SaslOutcome, SaslResponse
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Settings
from twinbus.amqp.states import (
    CONNECTION_TRANSITIONS,
    LINK_TRANSITIONS,
    SASL_FROM_SERVER,
    SASL_TRANSITIONS,
    SESSION_TRANSITIONS,
    ConnectionState,
    LinkState,
    Role,
    SaslState,
    SaslStep,
    SessionState,
    Step,
)
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.link import Link

FRAMES: Final[dict[Step, Composite]] = {
    Step.OPEN: Open(container_id="client"),
    Step.BEGIN: Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10),
    Step.ATTACH: Attach(name="link", handle=0, role=Role.SENDER, initial_delivery_count=0),
    Step.FLOW: Flow(next_incoming_id=0, incoming_window=10, next_outgoing_id=0, outgoing_window=10),
    Step.TRANSFER: Transfer(handle=0, delivery_id=0, delivery_tag=b"t", settled=True),
    Step.DISPOSITION: Disposition(role=Role.SENDER, first=0, settled=True),
    Step.DETACH: Detach(handle=0, closed=True),
    Step.END: End(),
    Step.CLOSE: Close(),
}
FRAME_STEPS: Final = list(FRAMES)


def cells(states: type, steps: object) -> list[tuple[object, object]]:
    return [(state, step) for state in states for step in steps]  # type: ignore[attr-defined]


def connection_in(state: ConnectionState) -> SingleEngine:
    """A server whose peer has come so far."""
    lone = SingleEngine()
    if state is not ConnectionState.START:
        lone.feed_bytes(AMQP_HEADER)
    if state in (ConnectionState.OPEN, ConnectionState.CLOSED):
        lone.send(Open(container_id="client"))
    if state is ConnectionState.CLOSED:
        lone.send(Close())
    assert lone.connection.remote_state is state
    return lone


# --- connection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "step"), cells(ConnectionState, FRAME_STEPS))
def test_a_connection_takes_the_steps_of_its_table_and_no_others(state: ConnectionState, step: Step) -> None:
    lone = connection_in(state)
    if step in (Step.ATTACH, Step.FLOW, Step.TRANSFER, Step.DISPOSITION, Step.DETACH, Step.END) and (
        state is ConnectionState.OPEN
    ):
        lone.attached()
        lone.end.clear_events()
    lone.sent.clear()
    frame = FRAMES[step] if step is not Step.ATTACH else Attach(name="2", handle=2, role=Role.SENDER)
    events = lone.send(frame)
    following = CONNECTION_TRANSITIONS.get((state, step))
    if following is not None:
        assert lone.connection.remote_state is following
        assert not any(isinstance(event, ConnectionClosed) and not event.by_peer for event in events)
    elif state is ConnectionState.CLOSED:
        assert (events, lone.sent) == ([], [])  # nothing is heard or said after the end
    elif state is ConnectionState.START:
        assert lone.connection.is_finished  # no header: there is no telling what it is
        assert lone.end.only_event(ConnectionClosed).error is not None
    else:
        assert lone.last(Close).error is not None
        assert lone.condition(Close) == errors.ILLEGAL_STATE
        assert not lone.end.only_event(ConnectionClosed).by_peer


@pytest.mark.parametrize("state", list(ConnectionState))
def test_a_second_header_is_no_frame(state: ConnectionState) -> None:
    lone = connection_in(state)
    lone.sent.clear()
    lone.feed_bytes(AMQP_HEADER)
    if (state, Step.HEADER) in CONNECTION_TRANSITIONS:
        assert lone.connection.remote_state is ConnectionState.HEADER_EXCHANGED
    elif state is ConnectionState.CLOSED:
        assert lone.sent == []
    else:  # "AMQP" read as a frame's size is 1.1 GB
        assert lone.condition(Close) == errors.FRAMING_ERROR


@pytest.mark.parametrize(("state", "step"), cells(ConnectionState, FRAME_STEPS))
def test_our_own_illegal_step_on_a_connection_is_raised(state: ConnectionState, step: Step) -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    connection.local_state = state
    following = CONNECTION_TRANSITIONS.get((state, step))
    if following is None:
        with pytest.raises(LocalError, match=step.name.lower()):
            connection.send(step, 0, FRAMES[step])
        assert connection.data_to_send() == b""
    else:
        connection.send(step, 0, FRAMES[step])
        assert connection.local_state is following


# --- session ----------------------------------------------------------------------------------------------------------

SESSION_STEPS: Final = [step for step in FRAME_STEPS if step not in (Step.OPEN, Step.CLOSE)]


@pytest.mark.parametrize(("state", "step"), cells(SessionState, SESSION_STEPS))
def test_a_session_takes_the_steps_of_its_table_and_no_others(state: SessionState, step: Step) -> None:
    lone = SingleEngine().opened()
    if state is not SessionState.UNMAPPED:
        lone.attached()
    if state is SessionState.ENDED:
        lone.send(End())
    lone.sent.clear()
    frame = FRAMES[step] if step is not Step.ATTACH else Attach(name="2", handle=2, role=Role.SENDER)
    events = lone.send(frame)
    if (state, step) in SESSION_TRANSITIONS:
        assert not any(isinstance(event, ConnectionClosed) for event in events)
        assert (Step.END is step) == any(isinstance(event, SessionEnded) for event in events)
    elif state is SessionState.ENDED and step is not Step.BEGIN:
        assert (events, lone.sent) == ([], [])  # late frames of a session that is over are dropped
    elif state is SessionState.ENDED:
        assert isinstance(lone.last(Begin), Begin)  # a new session on the old channel
    else:
        assert lone.condition(Close) == errors.ILLEGAL_STATE


@pytest.mark.parametrize(("state", "step"), cells(SessionState, SESSION_STEPS))
def test_our_own_illegal_step_on_a_session_is_raised(state: SessionState, step: Step) -> None:
    lone = SingleEngine().begun()
    (session,) = lone.connection.sessions.values()
    session.local_state = state
    lone.connection.data_to_send()
    following = SESSION_TRANSITIONS.get((state, step))
    if following is None:
        with pytest.raises(LocalError, match=step.name.lower()):
            session.send(step, FRAMES[step])
        assert lone.connection.data_to_send() == b""
    else:
        session.send(step, FRAMES[step])
        assert session.local_state is following


# --- link -------------------------------------------------------------------------------------------------------------

LINK_STEPS: Final = [Step.ATTACH, Step.FLOW, Step.TRANSFER, Step.DETACH]


@pytest.mark.parametrize(("state", "step"), cells(LinkState, LINK_STEPS))
def test_a_link_takes_the_steps_of_its_table_and_no_others(state: LinkState, step: Step) -> None:
    lone = SingleEngine().begun()
    if state is not LinkState.UNATTACHED:
        link = lone.attached()
        assert isinstance(link, Receiver)
        link.grant(10)
    if state is LinkState.DETACHED:
        lone.send(Detach(handle=0, closed=True))
    lone.sent.clear()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)
    events = lone.send(flow if step is Step.FLOW else FRAMES[step])
    if (state, step) in LINK_TRANSITIONS:
        assert not any(isinstance(event, SessionEnded) for event in events)
        assert (step is Step.ATTACH) == any(isinstance(event, AttachRequested) for event in events)
        assert (step is Step.DETACH) == any(isinstance(event, LinkDetached) for event in events)
    elif step is Step.ATTACH and state is LinkState.DETACHED:
        assert any(isinstance(event, AttachRequested) for event in events)  # a new link on the old handle
    else:
        wanted = errors.HANDLE_IN_USE if step is Step.ATTACH else errors.UNATTACHED_HANDLE
        assert lone.condition(End) == wanted
        assert not any(isinstance(event, ConnectionClosed) for event in events)


def do(link: Link, step: Step) -> None:
    if step is Step.ATTACH:
        link.accept()
    elif step is Step.DETACH:
        link.detach()
    elif step is Step.FLOW:
        link.send_flow()
    elif isinstance(link, Sender):
        link.send(b"")


@pytest.mark.parametrize(("state", "step"), cells(LinkState, LINK_STEPS))
def test_our_own_illegal_step_on_a_link_is_raised(state: LinkState, step: Step) -> None:
    lone = SingleEngine().begun()
    lone.send(Attach(name="link", handle=0, role=Role.RECEIVER, source=Source(), target=Target()))
    link = lone.end.only_event(AttachRequested).link
    link.local_state = state
    link.credit = 10
    following = LINK_TRANSITIONS.get((state, step))
    if state is LinkState.DETACHED and step is not Step.TRANSFER:
        do(link, step)  # it may have ended while the program was about to answer: nothing is said, nothing raised
        assert lone.connection.data_to_send() == b""
    elif following is None:
        with pytest.raises(LocalError):
            do(link, step)
        assert lone.connection.data_to_send() == b""
    else:
        do(link, step)
        assert link.local_state is following


# --- SASL -------------------------------------------------------------------------------------------------------------

SASL_FRAMES: Final[dict[SaslStep, Composite]] = {
    SaslStep.MECHANISMS: SaslMechanisms(sasl_server_mechanisms=("ANONYMOUS",)),
    SaslStep.INIT: SaslInit(mechanism="ANONYMOUS"),
    SaslStep.CHALLENGE: SaslChallenge(challenge=b"?"),
    SaslStep.RESPONSE: SaslResponse(response=b"!"),
    SaslStep.OUTCOME: SaslOutcome(outcome=0),
}


def layer_in(state: SaslState, *, is_client: bool) -> SaslLayer:
    client = SaslLayer.client(Credentials.anonymous(), None)
    layer = client if is_client else SaslLayer.server(("ANONYMOUS",), is_required=True)
    layer.state = state
    return layer


@pytest.mark.parametrize("is_client", [True, False])
@pytest.mark.parametrize(("state", "step"), cells(SaslState, SaslStep))
def test_a_sasl_exchange_takes_the_steps_of_its_table_from_the_end_whose_turn_it_is(
    state: SaslState, step: SaslStep, *, is_client: bool
) -> None:
    legal = (state, step) in SASL_TRANSITIONS
    from_peer = (step in SASL_FROM_SERVER) == is_client
    receiving = layer_in(state, is_client=is_client)
    if legal and from_peer:
        receiving.receive(SASL_FRAMES[step])
        # A client answers the offer of mechanisms at once, which is the next step already.
        follows = SaslState.AWAITING_ANSWER if step is SaslStep.MECHANISMS else SASL_TRANSITIONS[state, step]
        assert receiving.state is follows
    else:
        with pytest.raises(Violation) as caught:
            receiving.receive(SASL_FRAMES[step])
        assert caught.value.condition == errors.ILLEGAL_STATE
    sending = layer_in(state, is_client=is_client)
    if legal and not from_peer:
        sending.send(SASL_FRAMES[step])
        assert sending.state is SASL_TRANSITIONS[state, step]
    else:
        with pytest.raises(LocalError):
            sending.send(SASL_FRAMES[step])
        assert sending.state is state

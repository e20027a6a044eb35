"""State tables, cell by cell: legal steps change the state, illegal ones are refused, for frames of both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import AMQP_HEADER
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import LocalError, Violation
from twinbus.amqp.events import AttachRequested, ConnectionClosed, LinkDetached, SessionEnded
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
    from twinbus.amqp.codec.composite import Composite
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
    """Return a server whose peer is in `state`."""
    engine = SingleEngine()
    if state is not ConnectionState.START:
        engine.feed_bytes(AMQP_HEADER)
    if state in (ConnectionState.OPEN, ConnectionState.CLOSED):
        engine.send(Open(container_id="client"))
    if state is ConnectionState.CLOSED:
        engine.send(Close())
    assert engine.connection.remote_state is state
    return engine


# --- connection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "step"), cells(ConnectionState, FRAME_STEPS))
def test_a_connection_accepts_the_steps_of_its_table_and_no_others(state: ConnectionState, step: Step) -> None:
    engine = connection_in(state)
    if step in (Step.ATTACH, Step.FLOW, Step.TRANSFER, Step.DISPOSITION, Step.DETACH, Step.END) and (
        state is ConnectionState.OPEN
    ):
        engine.attached()
        engine.end.clear_events()
    engine.sent.clear()
    frame = FRAMES[step] if step is not Step.ATTACH else Attach(name="2", handle=2, role=Role.SENDER)
    events = engine.send(frame)
    following = CONNECTION_TRANSITIONS.get((state, step))
    if following is not None:
        assert engine.connection.remote_state is following
        assert not any(isinstance(event, ConnectionClosed) and not event.by_peer for event in events)
    elif state is ConnectionState.CLOSED:
        assert (events, engine.sent) == ([], [])  # a closed connection reports and sends nothing
    elif state is ConnectionState.START:
        assert engine.connection.is_finished  # without a header, the protocol is unknown
        assert engine.end.only_event(ConnectionClosed).error is not None
    else:
        assert engine.last(Close).error is not None
        assert engine.condition(Close) == errors.ILLEGAL_STATE
        assert not engine.end.only_event(ConnectionClosed).by_peer


@pytest.mark.parametrize("state", list(ConnectionState))
def test_a_second_protocol_header_is_refused(state: ConnectionState) -> None:
    engine = connection_in(state)
    engine.sent.clear()
    engine.feed_bytes(AMQP_HEADER)
    if (state, Step.HEADER) in CONNECTION_TRANSITIONS:
        assert engine.connection.remote_state is ConnectionState.HEADER_EXCHANGED
    elif state is ConnectionState.CLOSED:
        assert engine.sent == []
    else:  # "AMQP" read as a frame's size is 1.1 GB
        assert engine.condition(Close) == errors.FRAMING_ERROR


@pytest.mark.parametrize(("state", "step"), cells(ConnectionState, FRAME_STEPS))
def test_our_own_illegal_step_on_a_connection_raises(state: ConnectionState, step: Step) -> None:
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
def test_a_session_accepts_the_steps_of_its_table_and_no_others(state: SessionState, step: Step) -> None:
    engine = SingleEngine().opened()
    if state is not SessionState.UNMAPPED:
        engine.attached()
    if state is SessionState.ENDED:
        engine.send(End())
    engine.sent.clear()
    frame = FRAMES[step] if step is not Step.ATTACH else Attach(name="2", handle=2, role=Role.SENDER)
    events = engine.send(frame)
    if (state, step) in SESSION_TRANSITIONS:
        assert not any(isinstance(event, ConnectionClosed) for event in events)
        assert (Step.END is step) == any(isinstance(event, SessionEnded) for event in events)
    elif state is SessionState.ENDED and step is not Step.BEGIN:
        assert (events, engine.sent) == ([], [])  # late frames of an ended session are dropped
    elif state is SessionState.ENDED:
        assert isinstance(engine.last(Begin), Begin)  # a new session on the old channel
    else:
        assert engine.condition(Close) == errors.ILLEGAL_STATE


@pytest.mark.parametrize(("state", "step"), cells(SessionState, SESSION_STEPS))
def test_our_own_illegal_step_on_a_session_raises(state: SessionState, step: Step) -> None:
    engine = SingleEngine().begun()
    (session,) = engine.connection.sessions.values()
    session.local_state = state
    engine.connection.data_to_send()
    following = SESSION_TRANSITIONS.get((state, step))
    if following is None:
        with pytest.raises(LocalError, match=step.name.lower()):
            session.send(step, FRAMES[step])
        assert engine.connection.data_to_send() == b""
    else:
        session.send(step, FRAMES[step])
        assert session.local_state is following


# --- link -------------------------------------------------------------------------------------------------------------

LINK_STEPS: Final = [Step.ATTACH, Step.FLOW, Step.TRANSFER, Step.DETACH]


@pytest.mark.parametrize(("state", "step"), cells(LinkState, LINK_STEPS))
def test_a_link_accepts_the_steps_of_its_table_and_no_others(state: LinkState, step: Step) -> None:
    engine = SingleEngine().begun()
    if state is not LinkState.UNATTACHED:
        link = engine.attached()
        assert isinstance(link, Receiver)
        link.grant(10)
    if state is LinkState.DETACHED:
        engine.send(Detach(handle=0, closed=True))
    engine.sent.clear()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)
    events = engine.send(flow if step is Step.FLOW else FRAMES[step])
    if (state, step) in LINK_TRANSITIONS:
        assert not any(isinstance(event, SessionEnded) for event in events)
        assert (step is Step.ATTACH) == any(isinstance(event, AttachRequested) for event in events)
        assert (step is Step.DETACH) == any(isinstance(event, LinkDetached) for event in events)
    elif step is Step.ATTACH and state is LinkState.DETACHED:
        assert any(isinstance(event, AttachRequested) for event in events)  # a new link on the old handle
    else:
        condition = errors.HANDLE_IN_USE if step is Step.ATTACH else errors.UNATTACHED_HANDLE
        assert engine.condition(End) == condition
        assert not any(isinstance(event, ConnectionClosed) for event in events)


def take_step(link: Link, step: Step) -> None:
    if step is Step.ATTACH:
        link.accept()
    elif step is Step.DETACH:
        link.detach()
    elif step is Step.FLOW:
        link.send_flow()
    elif isinstance(link, Sender):
        link.send(b"")


@pytest.mark.parametrize(("state", "step"), cells(LinkState, LINK_STEPS))
def test_our_own_illegal_step_on_a_link_raises(state: LinkState, step: Step) -> None:
    engine = SingleEngine().begun()
    engine.send(Attach(name="link", handle=0, role=Role.RECEIVER, source=Source(), target=Target()))
    link = engine.end.only_event(AttachRequested).link
    link.local_state = state
    link.credit = 10
    following = LINK_TRANSITIONS.get((state, step))
    if state is LinkState.DETACHED and step is not Step.TRANSFER:
        take_step(link, step)  # the link may end before the program answers: nothing is sent or raised
        assert engine.connection.data_to_send() == b""
    elif following is None:
        with pytest.raises(LocalError):
            take_step(link, step)
        assert engine.connection.data_to_send() == b""
    else:
        take_step(link, step)
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
def test_a_sasl_exchange_accepts_the_steps_of_its_table_from_the_right_end_only(
    state: SaslState, step: SaslStep, *, is_client: bool
) -> None:
    legal = (state, step) in SASL_TRANSITIONS
    from_peer = (step in SASL_FROM_SERVER) == is_client
    receiving = layer_in(state, is_client=is_client)
    if legal and from_peer:
        receiving.receive(SASL_FRAMES[step])
        # A client answers the offered mechanisms at once, which is already the next step.
        following = SaslState.AWAITING_ANSWER if step is SaslStep.MECHANISMS else SASL_TRANSITIONS[state, step]
        assert receiving.state is following
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

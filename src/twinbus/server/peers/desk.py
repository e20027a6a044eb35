"""The desk: what one other process asks of the fragments of this one.

Owns: the receivers, readers and transactions of that process, which end with it. What a call means is done by the
broker, as for whoever is connected to this process itself.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twinbus.amqp.decode import decode
from twinbus.broker.browser import Browser
from twinbus.broker.namespace import Transaction
from twinbus.broker.ports import peer_protocol as calls
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.ports.peer_protocol import (
    Done,
    FoundLock,
    Numbers,
    Page,
    Refusals,
    Weigh,
    Weighed,
    Weight,
    failed,
    kind_of,
)
from twinbus.broker.ports.settlement import How, lock_lost
from twinbus.broker.remote.part import RemotePart
from twinbus.broker.remote.visitor import Party, VisitingReader, Visitor
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.broker.part import Part
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.peer_protocol import Answer, Call, Place
    from twinbus.model.path import SubQueue

    Respond: TypeAlias = Callable[[int, Answer], None]
    Tell: TypeAlias = Callable[[Answer], None]
    ManageHere: TypeAlias = Callable[["Desk", calls.Manage, Tell], None]

_NOTICE: Final = 0


class Desk:
    """What one other process does here."""

    def __init__(self, namespace: Namespace, respond: Respond, manage: ManageHere) -> None:
        """`respond` says something to it; `manage` does what it asks of `$management`."""
        self.namespace = namespace
        self._respond = respond
        self._manage = manage
        self._by_id: dict[int, Queue | Topic | Subscription] = {}
        self._visitors: dict[int, Visitor] = {}
        self._readers: dict[int, tuple[VisitingReader, Browser]] = {}
        self._parties: dict[int, Party] = {}
        """By their links."""
        self._party_of: dict[int, Party] = {}
        """By their visitors' numbers."""
        self._transactions: dict[int, Transaction] = {}
        self._acts: dict[type, Callable[[Any, Tell], None]] = {
            calls.Send: self._send,
            calls.Check: self._check,
            calls.SendOn: self._send_on,
            calls.Arrive: self._arrive,
            calls.Settle: self._settle,
            calls.Peek: self._peek,
            calls.FindTime: self._find_time,
            calls.Look: self._look,
            calls.FindLock: self._find_lock,
            calls.Renew: self._renew,
            calls.Weigh: self._weigh,
            calls.Open: self._open,
            calls.Browse: self._browse,
            calls.Commit: self._commit,
            calls.Untaken: self._bring_back,
            calls.Hear: lambda _call, tell: tell(Done()),
        }
        for kind in calls.Manage.__subclasses__():
            self._acts[kind] = partial(manage, self)
        self._notices: dict[type, Callable[[Any], None]] = {
            calls.Claim: self._claim,
            calls.Close: self._close,
            calls.SetApart: self._set_apart,
            calls.RollBack: self._roll_back,
        }

    def receive(self, number: int, call: Call) -> None:
        """Do what is asked, and say what came of it."""
        notice = self._notices.get(type(call))
        if notice is not None:
            notice(call)
            return

        def tell(answer: Answer) -> None:
            self._respond(number, answer)

        try:
            self._acts[type(call)](call, tell)
        except ServiceBusError as error:
            tell(failed(error))

    def close(self) -> None:
        """The other process has gone: its receivers are detached, and its transactions rolled back."""
        for transaction in self._transactions.values():
            transaction.roll_back()
        for visitor in list(self._visitors.values()):
            self._dismiss(visitor)
        for _, browser in self._readers.values():
            browser.leave()

    # --- finding ------------------------------------------------------------------------------------------------------

    def entity(self, entity_id: int) -> Queue | Topic | Subscription:
        """The entity of that id. StoreUnavailable if it is not here: who asks has heard of it earlier, or not yet."""
        entities = self.namespace.entities
        found = self._by_id.get(entity_id)
        if found is None or entities.get(key_of(found.path)) is not found:
            self._by_id = {entity.entity_id: entity for entity in entities.values()}
            found = self._by_id.get(entity_id)
        if found is None:
            raise StoreUnavailable("the entity is being made or deleted in this moment: try again")
        return found

    def part(self, entity_id: int, number: int) -> Part:
        """A part of an entity that is of this process. StoreUnavailable if it is not, which others will learn."""
        part = self.entity(entity_id).parts[number]
        if isinstance(part, RemotePart):
            raise StoreUnavailable(f"fragment {number} of '{part.entity.path}' is not here: try again in a moment")
        return part

    def fragment(self, place: Place) -> Fragment:
        """The fragment at a place."""
        entity, number, sub_queue = place
        return self.part(entity, number).fragment_of(calls.SUB_QUEUES[sub_queue]).local

    def find_session(self, client: int, source: Queue | Subscription, session: bytes) -> Visitor | None:
        """The receiver of a client of the other process that has a session of an entity."""
        fragments = local_fragments(source, calls.SUB_QUEUES[0])
        found = (
            one
            for one in self._visitors.values()
            if one.client == client and one.hold is not None and one.hold.session == session and not one.hold.is_over
        )
        return next((one for one in found if one.fragment in fragments), None)

    def is_of(self, client: int, consumer: Consumer) -> bool:
        """A receiver is of a client of the other process."""
        if not isinstance(consumer, Party) or self._parties.get(consumer.link) is not consumer:
            return False
        return consumer.client == client

    def transaction(self, number: int) -> Transaction:
        """A transaction of the other process, which begins here with what it asks first."""
        found = self._transactions.get(number)
        if found is None:
            found = self._transactions[number] = Transaction(self.namespace.intake)
        return found

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self, call: calls.Send, tell: Tell) -> None:
        part, numbers = self.part(call.entity, call.fragment), cast("list[int]", [])
        parcel = Parcel()
        parcel.records, parcel.ids = call.records, call.ids
        part.send(parcel, lambda error: tell(failed(error) if error is not None else Numbers(numbers)), numbers)
        self._note_use(call.entity)

    def _check(self, call: calls.Check, tell: Tell) -> None:
        refusals: dict[int, tuple[str, str]] = {}
        for number, size in call.sizes.items():
            try:
                self.part(call.entity, number).check_takes(size)
            except ServiceBusError as error:
                refusals[number] = (kind_of(error), str(error))
        tell(Refusals(refusals))

    def _send_on(self, call: calls.SendOn, tell: Tell) -> None:
        self.part(call.entity, call.fragment).send_on(call.records, call.destination, _telling(tell))

    def _arrive(self, call: calls.Arrive, tell: Tell) -> None:
        self.part(call.entity, call.fragment).take_arrivals(call.source, call.items, _telling(tell))

    def _note_use(self, entity_id: int) -> None:
        self._by_id[entity_id].note_use(self.namespace.clock)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _open(self, call: calls.Open, tell: Tell) -> None:
        sub_queue = calls.SUB_QUEUES[call.place[2]]
        source = cast("Queue | Subscription", self.entity(call.place[0]))
        fragment = self.fragment(call.place)
        source.check_open(sub_queue)
        party = self._parties.get(call.link)
        if party is None:
            party = Party(call.link, call.client, source.claim_of(sub_queue))
            where, fragments = f"{source.path}{sub_queue.value}", local_fragments(source, sub_queue)
            party.enter(where, call.epoch, fragments, if_free=call.if_free)
        visitor = Visitor(
            call.consumer, fragment, client=call.client, deletes=call.deletes, notify=partial_notice(self._respond)
        )
        self._parties[call.link] = party
        party.visitors.add(visitor)
        self._visitors[call.consumer] = visitor
        self._party_of[call.consumer] = party
        try:
            _receive(visitor, call.session)
        except ServiceBusError:
            self._dismiss(visitor)
            raise
        source.note_use(self.namespace.clock)
        tell(Done())

    def _claim(self, call: calls.Claim) -> None:
        visitor = self._visitors.get(call.consumer)
        if visitor is not None:
            visitor.claim(call.count)
            return
        found = self._readers.get(call.consumer)
        if found is not None:
            _show(*found, call.count)

    def _close(self, call: calls.Close) -> None:
        visitor = self._visitors.get(call.consumer)
        if visitor is not None:
            self._dismiss(visitor, call.seen)
        found = self._readers.pop(call.consumer, None)
        if found is not None:
            found[1].leave()

    def _dismiss(self, visitor: Visitor, seen: int | None = None) -> None:
        del self._visitors[visitor.number]
        visitor.leave(seen)
        party = self._party_of.pop(visitor.number)
        party.visitors.discard(visitor)
        if not party.visitors:
            party.leave()
            del self._parties[party.link]

    def _bring_back(self, call: calls.Untaken, tell: Tell) -> None:
        visitor = self._visitors.get(call.consumer)
        if visitor is not None:
            visitor.bring_back(call.sequences, _telling(tell))
        else:
            tell(Done())

    def _settle(self, call: calls.Settle, tell: Tell) -> None:
        fragment = self.fragment(call.place)
        numbers = fragment.lock_numbers(call.tags)
        if call.how == How.FREE.value:
            fragment.settlement.free(numbers)
            tell(calls.Lost([]))
            return

        def answer(error: ServiceBusError | None) -> None:
            tell(failed(error) if error is not None else calls.Lost(places))

        lost = fragment.settlement.settle(How(call.how), numbers, answer, _properties(call.properties))
        missing = set(lost)
        places = [place for place, number in enumerate(numbers) if number in missing]
        if len(places) == len(numbers):
            tell(calls.Lost(places))  # nobody else tells it

    # --- looking ------------------------------------------------------------------------------------------------------

    def _browse(self, call: calls.Browse, tell: Tell) -> None:
        reader = VisitingReader(call.consumer, partial_notice(self._respond))
        fragment, reads = self.fragment(call.place), self.namespace.reads
        browser = Browser(fragment, reader, call.first, call.last, ends=call.ends, reads=reads)
        self._readers[call.consumer] = (reader, browser)
        tell(Done())

    def _peek(self, call: calls.Peek, tell: Tell) -> None:
        fragment = self.fragment(call.place)

        def done(page: list[bytes] | ServiceBusError) -> None:
            tell(failed(page) if isinstance(page, ServiceBusError) else Page(page, fragment.holdings.latest_ms))

        fragment.browsing.peek(call.start, call.count, call.max_bytes, done, deferred_only=call.deferred_only)

    def _find_time(self, call: calls.FindTime, tell: Tell) -> None:
        def done(found: int | ServiceBusError) -> None:
            tell(failed(found) if isinstance(found, ServiceBusError) else Numbers([found]))

        self.fragment(call.place).browsing.find_time(call.enqueued_ms, done)

    def _look(self, call: calls.Look, tell: Tell) -> None:
        holdings = self.fragment(call.place).holdings
        tell(Numbers([holdings.low, holdings.shown.next]))

    def _find_lock(self, call: calls.FindLock, tell: Tell) -> None:
        fragment = self.fragment(call.place)
        (number,) = fragment.lock_numbers([call.tag])

        def done(found: tuple[int, str | None] | ServiceBusError) -> None:
            tell(failed(found) if isinstance(found, ServiceBusError) else FoundLock(*found))

        fragment.settlement.find_locked(number, done)

    def _renew(self, call: calls.Renew, tell: Tell) -> None:
        fragment = self.fragment(call.place)
        (number,) = fragment.lock_numbers([call.tag])
        tell(Numbers([fragment.settlement.renew(number)]))

    def _weigh(self, call: Weigh, tell: Tell) -> None:
        weights: list[Weight] = []
        for entity_id in call.entities:
            with suppress(StoreUnavailable):
                entity = self.entity(entity_id)
                weights += [_weight(part) for part in entity.parts if not isinstance(part, RemotePart)]
        tell(Weighed(weights))

    # --- transactions -------------------------------------------------------------------------------------------------

    def _set_apart(self, call: calls.SetApart) -> None:
        transaction = self.transaction(call.transaction)
        try:
            fragment = self.fragment(call.place)
            part = self.part(*call.place[:2])
            numbers, how = fragment.lock_numbers(call.tags), How(call.how)
            if transaction.settle(part, fragment, numbers, how, _properties(call.properties)):
                raise lock_lost()
        except ServiceBusError as error:
            transaction.fail(error)

    def _commit(self, call: calls.Commit, tell: Tell) -> None:
        transaction = self.transaction(call.transaction)
        del self._transactions[call.transaction]
        try:
            target = self.part(call.entity, call.fragment)
            for payload, message_format, destination in call.sent:
                transaction.send(target, payload, message_format, destination)
        except ServiceBusError as error:
            transaction.fail(error)
        transaction.commit(_telling(tell))

    def _roll_back(self, call: calls.RollBack) -> None:
        transaction = self._transactions.pop(call.transaction, None)
        if transaction is not None:
            transaction.roll_back()


def partial_notice(respond: Respond) -> Tell:
    """What says something that nobody asked for."""
    return lambda notice: respond(_NOTICE, notice)


def _receive(visitor: Visitor, session: bytes | None) -> None:
    """Let a visitor receive from its fragment; where that has sessions, from one that it names, or any."""
    fragment = visitor.fragment
    if not fragment.has_sessions:
        fragment.line.add(visitor)
    elif session is None:
        fragment.line.wait(visitor, visitor.granted)
    else:
        fragment.line.accept(visitor, session, visitor.granted)


def _telling(tell: Tell) -> Answered:
    return lambda error: tell(failed(error) if error is not None else Done())


def _show(reader: VisitingReader, browser: Browser, count: int) -> None:
    """Let somebody see so many messages, and hear when there are more."""
    reader.claim(count)

    def drained() -> None:
        reader.drained()
        browser.go_on()

    browser.drain(drained)


def _properties(encoded: bytes) -> dict[str, object]:
    return cast("dict[str, object]", decode(encoded)[0]) if encoded else {}


def local_fragments(source: Queue | Subscription, sub_queue: SubQueue) -> list[Fragment]:
    """Return those fragments of an entity that belong to this process."""
    return [part.fragment_of(sub_queue).local for part in source.parts if not isinstance(part, RemotePart)]


def _weight(part: Part) -> Weight:
    """Return what a part holds; its times are those of its entity."""
    runtime = replace(part.runtime(), accessed_ms=part.entity.accessed_ms)
    values = {field.name: getattr(runtime, field.name) for field in fields(runtime)}
    return Weight(part.entity.entity_id, part.number, values)

"""R075 to R079 and Q21: in a pair with a syphon, the two factories close or fault together."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.paired_application import in_memory_pair_application
from twinbus.client import BrokeredMessage, FactoryState, MessagingFactory
from twinbus.client.errors import FactoryFaulted, ObjectClosed
from twinbus.client.pairing import EventKind, PairedMessagingFactoryError
from twinbus.testing import in_virtual_time

SIDES = ("primary", "secondary")
ENDINGS = ("is closed", "faults")


def end(factory: MessagingFactory, how: str) -> asyncio.Future[None]:
    """Close a factory, or let it fault."""
    if how == "faults":
        factory.abort(RuntimeError("the application says so"))
        return asyncio.ensure_future(asyncio.sleep(0))
    return asyncio.ensure_future(factory.close())


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("ended", SIDES)
@in_virtual_time
async def test_r076_r077_r078_q21_the_factory_that_stays_open_faults_after_five_seconds(ended: str, how: str) -> None:
    async with in_memory_pair_application(enable_syphon=True) as app:
        factory = getattr(app.pairing, ended)
        (partner,) = {app.pairing.primary, app.pairing.secondary} - {factory}
        await end(factory, how)
        await asyncio.sleep(4.9)
        states = [partner.state]
        await asyncio.sleep(0.2)
        states.append(partner.state)
        assert states == [FactoryState.OPEN, FactoryState.FAULTED]
        assert isinstance(partner.fault, PairedMessagingFactoryError)
        assert factory.address in str(partner.fault)
        assert partner.address in str(partner.fault)
        assert ("has faulted" if how == "faults" else "was closed") in str(partner.fault)
        assert len(app.events_of(EventKind.FACTORY_FAULTED)) == 1


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("ended", SIDES)
@in_virtual_time
async def test_r079_q21_if_the_partner_closes_in_time_it_does_not_fault(ended: str, how: str) -> None:
    async with in_memory_pair_application(enable_syphon=True) as app:
        factory = getattr(app.pairing, ended)
        (partner,) = {app.pairing.primary, app.pairing.secondary} - {factory}
        await end(factory, how)
        await asyncio.sleep(4.9)
        await partner.close()
        await asyncio.sleep(10)
        assert partner.state is FactoryState.CLOSED
        assert not app.events_of(EventKind.FACTORY_FAULTED)


@in_virtual_time
async def test_r075_without_the_syphon_each_factory_closes_independently() -> None:
    async with in_memory_pair_application() as app:
        await app.pairing.secondary.close()
        await asyncio.sleep(60)
        await app.queue_client().send(BrokeredMessage("apples"))
        assert await app.arrived_bodies() == ["apples"]


@in_virtual_time
async def test_q21_without_a_grace_period_the_partner_faults_at_once() -> None:
    async with in_memory_pair_application(enable_syphon=True, fault_grace=0) as app:
        app.pairing.secondary.abort(RuntimeError("the application says so"))
        await asyncio.sleep(0.5)
        assert app.primary.state is FactoryState.FAULTED
        with pytest.raises(FactoryFaulted, match="has faulted \\(the application says so\\)"):
            await app.queue_client().send(BrokeredMessage("apples"))


@pytest.mark.parametrize("before", ["nothing", "the primary is closed", "the secondary faults"])
@pytest.mark.parametrize("has_syphon", [False, True])
@in_virtual_time
async def test_q21_closing_the_pairing_closes_both_factories_whatever_happened_before(
    before: str, *, has_syphon: bool
) -> None:
    async with in_memory_pair_application(enable_syphon=has_syphon) as app:
        queue, pairing = app.queue_client(), app.pairing
        if before == "the primary is closed":
            await pairing.primary.close()
        elif before == "the secondary faults":
            pairing.secondary.abort(RuntimeError("the application says so"))
        await pairing.close()
        await pairing.close()
        states = [pairing.primary.state, pairing.secondary.state]
        assert states[0] is FactoryState.CLOSED
        assert states[1] in (FactoryState.CLOSED, FactoryState.FAULTED)
        assert (states[1] is FactoryState.CLOSED) is (before != "the secondary faults")
        with pytest.raises(ObjectClosed):
            await queue.send(BrokeredMessage("apples"))
        await asyncio.sleep(60)
        assert [pairing.primary.state, pairing.secondary.state] == states

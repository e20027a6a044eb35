"""R075 to R079 and Q21: the two factories end together where the syphon runs."""

from __future__ import annotations

import asyncio

import pytest

from tests.pairing.application import paired
from twinbus.client import BrokeredMessage, FactoryState
from twinbus.client.errors import FactoryFaulted, ObjectClosed
from twinbus.client.pairing import EventKind, PairedMessagingFactoryError
from twinbus.testing import in_virtual_time

SIDES = ("primary", "secondary")


@pytest.mark.parametrize("ended", SIDES)
def test_r076_r077_r078_the_one_that_stays_open_is_faulted_after_five_seconds(ended: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with paired(enable_syphon=True) as app:
            one = getattr(app.pairing, ended)
            (partner,) = {app.pairing.primary, app.pairing.secondary} - {one}
            await one.close()
            await asyncio.sleep(4.9)
            states = [partner.state]
            await asyncio.sleep(0.2)
            states.append(partner.state)
            assert states == [FactoryState.OPEN, FactoryState.FAULTED]
            assert isinstance(partner.fault, PairedMessagingFactoryError)
            assert one.address in str(partner.fault)
            assert partner.address in str(partner.fault)
            assert app.told(EventKind.FACTORY_FAULTED)

    run()


@pytest.mark.parametrize("ended", SIDES)
def test_r079_if_the_partner_closes_in_time_nothing_is_faulted(ended: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with paired(enable_syphon=True) as app:
            one = getattr(app.pairing, ended)
            (partner,) = {app.pairing.primary, app.pairing.secondary} - {one}
            await one.close()
            await asyncio.sleep(4)
            await partner.close()
            await asyncio.sleep(10)
            assert partner.state is FactoryState.CLOSED
            assert not app.told(EventKind.FACTORY_FAULTED)

    run()


@in_virtual_time
async def test_r075_without_the_syphon_each_ends_for_itself() -> None:
    async with paired() as app:
        await app.pairing.secondary.close()
        await asyncio.sleep(60)
        await app.queue().send(BrokeredMessage("apples"))
        assert await app.arrived() == ["apples"]


@in_virtual_time
async def test_q21_a_fault_is_noticed_at_once_and_can_be_without_grace() -> None:
    async with paired(enable_syphon=True, fault_grace=0) as app:
        app.pairing.secondary.abort(RuntimeError("the application says so"))
        await asyncio.sleep(0.5)
        assert app.primary.state is FactoryState.FAULTED
        with pytest.raises(FactoryFaulted, match="has faulted \\(the application says so\\)"):
            await app.queue().send(BrokeredMessage("apples"))


@in_virtual_time
async def test_q21_closing_the_handle_closes_both_in_every_case() -> None:
    async with paired() as app:
        queue = app.queue()
        await app.pairing.close()
        await app.pairing.close()
        assert app.pairing.primary.state is app.pairing.secondary.state is FactoryState.CLOSED
        with pytest.raises(ObjectClosed):
            await queue.send(BrokeredMessage("apples"))

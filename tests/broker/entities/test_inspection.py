"""An inspection of a part changes nothing."""

from __future__ import annotations

import pytest

from tests.broker.harness import BrokerHarness
from tests.support.parts import local_part
from twinbus.model.path import SubQueue


@pytest.mark.parametrize("sub_queue", SubQueue)
def test_looking_for_locks_creates_no_area(sub_queue: SubQueue) -> None:
    part = local_part(BrokerHarness().queue)
    assert part.inspect().locks(sub_queue, 0, 10) == []
    assert part.transfer_dead_letters is None

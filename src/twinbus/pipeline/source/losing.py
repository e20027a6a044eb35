"""What a query does when messages are gone that it should have read: it ends, or says so and goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import losses

if TYPE_CHECKING:
    from twinbus.pipeline.source.offsets import Offsets
    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.positions import Positions

log: Final = logging.getLogger(__name__)


def check_losses(start: Offsets, positions: Positions, options: SourceOptions) -> None:
    """PipelineError if data was lost, unless the user said that this is no reason to end."""
    found = losses(start, positions)
    if found and options.fails_on_data_loss:
        raise PipelineError(
            f"data was lost: {'; '.join(found)}. The option failOnDataLoss=false goes on with what is left"
        )
    for one in found:
        log.warning("data was lost: %s", one)

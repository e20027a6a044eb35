"""One entity that is being captured, as the driver sees it.

Owns: where the capture of each of its fragments is, how files of tasks become captured ones, and the completing of what
was captured. A file is given its name, then its manifest; only then its messages are completed. Whatever ends the
driver in between, the next one goes on behind the last manifest.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import uuid
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import EntityNotFound
from twinbus.model.times import EPOCH
from twinbus.pipeline.capture.folder import TEMPORARY
from twinbus.pipeline.capture.manifest import History, Manifest, iso, place_of
from twinbus.pipeline.capture.task import Order
from twinbus.pipeline.capture.window import Window
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import Positions
from twinbus.pipeline.source.entity import Claim
from twinbus.pipeline.source.offsets import Offsets, losses
from twinbus.pipeline.source.options import connect
from twinbus.pipeline.source.positions import ask_positions

if TYPE_CHECKING:
    from twinbus.pipeline.capture.folder import Folder
    from twinbus.pipeline.capture.settings import CaptureSettings
    from twinbus.pipeline.capture.task import Report, Written
    from twinbus.pipeline.source import FragmentPosition

log: Final = logging.getLogger(__name__)


class CapturedEntity:
    """One of them."""

    def __init__(self, folder: Folder, settings: CaptureSettings, path: str) -> None:
        """`open` looks where to go on."""
        self.source = settings.source_of(path)
        self.path = self.source.entity
        self._folder = folder
        self._settings = settings
        self._namespace = settings.namespace_name()
        self.place = place_of(self._namespace, self.path)
        """Its folder."""
        self._temporary = f"{self.place}/{TEMPORARY}/{uuid.uuid4().hex}"
        self._factory = connect(self.source)
        self._claim = Claim(self._factory, self.path) if settings.completes else None
        self._entity_id = 0
        self._windows: dict[int, Window] = {}
        self._histories: dict[int, History] = {}
        self._covered: dict[int, int] = {}
        """The number behind the last file of each fragment; between it and the next there may be nothing."""
        self._owed: dict[int, int] = {}
        """Up to which number each fragment is captured, and not completed yet."""
        self._naming = asyncio.Lock()
        """While a file is given its name, nobody looks for files without a manifest, nor begins a window."""

    async def open(self) -> None:
        """Look where to go on. PipelineError if messages were lost meanwhile, or another capture runs."""
        await asyncio.to_thread(self._folder.delete_folder, f"{self.place}/{TEMPORARY}")
        if self._claim is not None:
            await self._claim.hold()
        await self.look_for_losses()

    async def close(self) -> None:
        """Its connection, and what tasks have left behind."""
        await self._factory.close()
        await asyncio.to_thread(self._folder.delete_folder, self._temporary)

    # --- windows ------------------------------------------------------------------------------------------------------

    async def look(self, now_s: float, *, at_once: bool) -> list[Order]:
        """The windows that are to be written now."""
        positions = await ask_positions(self._factory, self.source)
        await self._take_positions(positions)
        if at_once and positions.down:
            raise PipelineError(f"fragments {positions.down} of '{self.path}' are down: not all can be captured now")
        orders = []
        for position in positions.fragments:
            window = self._windows.get(position.number)
            if window is None or not position.is_available:
                continue
            closing = window.look(position.next, now_s, at_once=at_once)
            if closing is not None:
                orders.append(
                    Order(
                        entity=self.path,
                        source=self.source,
                        entity_id=self._entity_id,
                        closing=closing,
                        uri=self._folder.uri,
                        temporary=self._temporary,
                        size_limit=self._settings.limits.size,
                    )
                )
        return orders

    async def look_for_losses(self) -> None:
        """Go on behind what was lost since it was last looked. PipelineError unless that may be."""
        await self._take_positions(await ask_positions(self._factory, self.source))

    async def _take_positions(self, positions: Positions) -> None:
        """Begin with fragments that are new, all of them after the entity was created again."""
        async with self._naming:
            if self._entity_id not in (0, positions.entity_id):
                self._allow(losses(Offsets(self.path, self._entity_id, {}), positions))
                self._windows.clear()
                self._owed.clear()
            self._entity_id = positions.entity_id
            for position in positions.fragments:
                window = self._windows.get(position.number)
                if not position.is_available or (window is not None and window.is_closing):
                    continue
                if window is None:
                    self._windows[position.number] = await self._begin(position)
                elif self._has_lost(position, self._entity_id, window.first):
                    is_anew = window.first > position.next
                    self._windows[position.number] = self._begin_behind_loss(position, window.first, is_anew=is_anew)

    async def _begin(self, position: FragmentPosition) -> Window:
        """Go on behind the last manifest."""
        number = position.number
        history = self._histories[number] = History(self._folder, place_of(self._namespace, self.path, number))
        last = await asyncio.to_thread(history.find_last)
        first = position.low if last is None else last.toSequenceNumber + 1
        if last is not None and self._has_lost(position, last.entityId, first):
            is_anew = last.entityId != self._entity_id or first > position.next
            return self._begin_behind_loss(position, first, is_anew=is_anew)
        if last is not None:
            self._owed[number] = last.toSequenceNumber  # whoever captured it may not have come to that
        self._covered[number] = first
        return Window(number, first, self._settings.limits)

    def _begin_behind_loss(self, position: FragmentPosition, first: int, *, is_anew: bool) -> Window:
        """Go on with what is left: from `first` on, or with all that there is where numbers come again."""
        number = position.number
        if is_anew:  # what has these numbers now is in no file, and must not be completed before it is
            first = position.low
            self._histories[number].begin_anew()
            self._owed.pop(number, None)
        first = self._covered[number] = min(max(first, position.purged + 1), position.next)
        return Window(number, first, self._settings.limits, is_hurried=is_anew)

    def _has_lost(self, position: FragmentPosition, entity_id: int, first: int) -> bool:
        """Whether messages from a number on were lost before they were captured. PipelineError unless that may be."""
        start = Offsets(self.path, entity_id, {position.number: first})
        return self._allow(losses(start, Positions(self._entity_id, (position,))))

    def _allow(self, found: list[str]) -> bool:
        if found and not self._settings.allows_loss:
            raise PipelineError(f"data was lost: {found[0]}. --allow-data-loss goes on with what is left")
        for one in found:
            log.warning("data was lost: %s", one)
        return bool(found)

    # --- files --------------------------------------------------------------------------------------------------------

    async def commit(self, report: Report) -> list[Manifest]:
        """A task has done its work: its files count from now on, each once its manifest is there."""
        manifests = []
        async with self._naming:
            window = self._window_of(report)
            if window is None:
                return []
            for written in report.files:
                manifests.append(await asyncio.to_thread(self._name, report.fragment, written))
                window.written(written.to_number)
        window.written(report.up_to)
        window.closed(report.numbers, report.size)
        if manifests:
            window.is_hurried = False
            self._owed[report.fragment] = manifests[-1].toSequenceNumber
        return manifests

    def give_up(self, report: Report) -> bool:
        """The job that wrote a window has failed: it is to be written again. False if there is no such window now."""
        window = self._window_of(report)
        if window is not None:
            window.closed()
        return window is not None

    def _window_of(self, report: Report) -> Window | None:
        """None if it is of an entity that is no more: the one that has its name now was begun anew."""
        window = self._windows.get(report.fragment)
        is_it = window is not None and (report.entity_id, report.first) == (self._entity_id, window.first)
        return window if is_it else None

    def _name(self, fragment: int, written: Written) -> Manifest:
        folder, covered = self._folder, self._covered[fragment]
        first = EPOCH + dt.timedelta(microseconds=written.first_us)
        manifest = Manifest(
            file=self._histories[fragment].name_next(first, self._entity_id, covered),
            fragment=fragment,
            sizeInBytes=folder.size(written.temporary),
            eventCount=written.count,
            firstSequenceNumber=written.first_number,
            lastSequenceNumber=written.last_number,
            firstEnqueueTime=iso(written.first_us),
            lastEnqueueTime=iso(written.last_us),
            namespace=self._namespace,
            entity=self.path,
            entityId=self._entity_id,
            fromSequenceNumber=covered,
            toSequenceNumber=written.to_number,
        )
        if folder.exists(manifest.path):
            raise PipelineError(f"{folder.uri_of(manifest.path)} is there already: another capture writes there, too")
        folder.move(written.temporary, manifest.file)
        folder.put(manifest.path, manifest.encode(), f"{self._temporary}/{uuid.uuid4().hex}")
        self._covered[fragment] = written.to_number + 1
        return manifest

    # --- completing ---------------------------------------------------------------------------------------------------

    async def complete_captured(self) -> None:
        """Complete what is in files, if that is wanted."""
        if self._claim is None or not self._owed:
            return
        positions = await ask_positions(self._factory, self.source)
        if positions.entity_id != self._entity_id:
            return  # the next look says so, and forgets what is owed; so it is with a fragment below
        ends = {one.number: one.next for one in positions.fragments if one.is_available}
        for fragment, up_to in list(self._owed.items()):
            if fragment in ends and up_to >= ends[fragment]:
                continue  # it was restored to an earlier state
            try:
                await self._complete(self._claim, fragment, up_to)
            except EntityNotFound:
                return  # deleted, and perhaps created again, since it was asked: the next look says so
            if self._owed.get(fragment) == up_to:  # else there are more files meanwhile
                del self._owed[fragment]

    async def _complete(self, claim: Claim, fragment: int, up_to: int) -> None:
        await claim.hold()
        browser = self._factory.create_message_browser(self.path, fragment=fragment)
        try:
            _, skipped = await browser.complete_up_to(up_to, epoch=claim.epoch, entity_id=self._entity_id)
        finally:
            await browser.close()
        if skipped:
            log.warning("%d captured messages of '%s' stay: somebody has them", skipped, self.path)

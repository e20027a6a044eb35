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
from twinbus.pipeline.capture.folder import TEMPORARY_FOLDER
from twinbus.pipeline.capture.manifest import FragmentHistory, Manifest, folder_path, to_iso
from twinbus.pipeline.capture.task import CaptureTask
from twinbus.pipeline.capture.window import Window
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import Positions
from twinbus.pipeline.source.entity import ExclusiveReceiver
from twinbus.pipeline.source.offsets import Offsets, find_losses
from twinbus.pipeline.source.options import connect
from twinbus.pipeline.source.positions import request_positions

if TYPE_CHECKING:
    from twinbus.pipeline.capture.folder import Folder
    from twinbus.pipeline.capture.settings import CaptureSettings
    from twinbus.pipeline.capture.task import TaskReport, WrittenFile
    from twinbus.pipeline.source import FragmentPosition

log: Final = logging.getLogger(__name__)


class CapturedEntity:
    """One of them."""

    def __init__(self, folder: Folder, settings: CaptureSettings, path: str) -> None:
        """`open` looks where to go on."""
        self.source_options = settings.source_options(path)
        self.path = self.source_options.entity
        self._folder = folder
        self._settings = settings
        self._namespace = settings.namespace_name()
        self.folder_path = folder_path(self._namespace, self.path)
        """Its folder."""
        self._temporary_folder = f"{self.folder_path}/{TEMPORARY_FOLDER}/{uuid.uuid4().hex}"
        self._factory = connect(self.source_options)
        self._exclusive_receiver = ExclusiveReceiver(self._factory, self.path) if settings.completes_captured else None
        self._entity_id = 0
        self._windows: dict[int, Window] = {}
        self._histories: dict[int, FragmentHistory] = {}
        self._next_uncovered: dict[int, int] = {}
        """The number behind the last file of each fragment; between it and the next there may be nothing."""
        self._uncompleted_up_to: dict[int, int] = {}
        """Up to which number each fragment is captured, and not completed yet."""
        self._naming_lock = asyncio.Lock()
        """While a file is given its name, nobody looks for files without a manifest, nor begins a window."""

    async def open(self) -> None:
        """Look where to go on. PipelineError if messages were lost meanwhile, or another capture runs."""
        await asyncio.to_thread(self._folder.delete_folder, f"{self.folder_path}/{TEMPORARY_FOLDER}")
        if self._exclusive_receiver is not None:
            await self._exclusive_receiver.acquire()
        await self.check_for_losses()

    async def close(self) -> None:
        """Its connection, and what tasks have left behind."""
        await self._factory.close()
        await asyncio.to_thread(self._folder.delete_folder, self._temporary_folder)

    # --- windows ------------------------------------------------------------------------------------------------------

    async def find_due_windows(self, now_s: float, *, force: bool) -> list[CaptureTask]:
        """The windows that are to be written now."""
        positions = await request_positions(self._factory, self.source_options)
        await self._update_windows(positions)
        if force and positions.unavailable_fragments:
            raise PipelineError(
                f"fragments {positions.unavailable_fragments} of '{self.path}' are down: not all can be captured now"
            )
        orders = []
        for position in positions.fragments:
            window = self._windows.get(position.fragment)
            if window is None or not position.is_available:
                continue
            closing = window.close_if_due(position.next_sequence_number, now_s, force=force)
            if closing is not None:
                orders.append(
                    CaptureTask(
                        entity=self.path,
                        source_options=self.source_options,
                        entity_id=self._entity_id,
                        window=closing,
                        folder_uri=self._folder.uri,
                        temporary_folder=self._temporary_folder,
                        max_file_bytes=self._settings.limits.max_bytes,
                    )
                )
        return orders

    async def check_for_losses(self) -> None:
        """Go on behind what was lost since it was last looked. PipelineError unless that may be."""
        await self._update_windows(await request_positions(self._factory, self.source_options))

    async def _update_windows(self, positions: Positions) -> None:
        """Begin with fragments that are new, all of them after the entity was created again."""
        async with self._naming_lock:
            if self._entity_id not in (0, positions.entity_id):
                self._report_losses(find_losses(Offsets(self.path, self._entity_id, {}), positions))
                self._windows.clear()
                self._uncompleted_up_to.clear()
            self._entity_id = positions.entity_id
            for position in positions.fragments:
                window = self._windows.get(position.fragment)
                if not position.is_available or (window is not None and window.is_being_written):
                    continue
                if window is None:
                    self._windows[position.fragment] = await self._open_window(position)
                elif self._has_losses(position, self._entity_id, window.first_sequence_number):
                    is_anew = window.first_sequence_number > position.next_sequence_number
                    self._windows[position.fragment] = self._open_window_after_loss(
                        position, window.first_sequence_number, are_numbers_reused=is_anew
                    )

    async def _open_window(self, position: FragmentPosition) -> Window:
        """Go on behind the last manifest."""
        number = position.fragment
        history = self._histories[number] = FragmentHistory(
            self._folder, folder_path(self._namespace, self.path, number)
        )
        last = await asyncio.to_thread(history.find_last)
        first = position.low_sequence_number if last is None else last.toSequenceNumber + 1
        if last is not None and self._has_losses(position, last.entityId, first):
            is_anew = last.entityId != self._entity_id or first > position.next_sequence_number
            return self._open_window_after_loss(position, first, are_numbers_reused=is_anew)
        if last is not None:
            self._uncompleted_up_to[number] = last.toSequenceNumber  # whoever captured it may not have come to that
        self._next_uncovered[number] = first
        return Window(number, first, self._settings.limits)

    def _open_window_after_loss(
        self, position: FragmentPosition, first_sequence_number: int, *, are_numbers_reused: bool
    ) -> Window:
        """Go on with what is left: from `first` on, or with all that there is where numbers come again."""
        number = position.fragment
        if are_numbers_reused:  # what has these numbers now is in no file, and must not be completed before it is
            first_sequence_number = position.low_sequence_number
            self._histories[number].allow_number_reuse()
            self._uncompleted_up_to.pop(number, None)
        first_sequence_number = self._next_uncovered[number] = min(
            max(first_sequence_number, position.purged_sequence_number + 1), position.next_sequence_number
        )
        return Window(number, first_sequence_number, self._settings.limits, closes_at_once=are_numbers_reused)

    def _has_losses(self, position: FragmentPosition, entity_id: int, first_sequence_number: int) -> bool:
        """Whether messages from a number on were lost before they were captured. PipelineError unless that may be."""
        start = Offsets(self.path, entity_id, {position.fragment: first_sequence_number})
        return self._report_losses(find_losses(start, Positions(self._entity_id, (position,))))

    def _report_losses(self, descriptions: list[str]) -> bool:
        if descriptions and not self._settings.allows_data_loss:
            raise PipelineError(f"data was lost: {descriptions[0]}. --allow-data-loss goes on with what is left")
        for one in descriptions:
            log.warning("data was lost: %s", one)
        return bool(descriptions)

    # --- files --------------------------------------------------------------------------------------------------------

    async def commit(self, report: TaskReport) -> list[Manifest]:
        """A task has done its work: its files count from now on, each once its manifest is there."""
        manifests = []
        async with self._naming_lock:
            window = self._window_of(report)
            if window is None:
                return []
            for written in report.files:
                manifests.append(await asyncio.to_thread(self._publish_file, report.fragment, written))
                window.mark_written(written.to_sequence_number)
        window.mark_written(report.captured_up_to)
        window.mark_closed(report.number_count, report.message_bytes)
        if manifests:
            window.closes_at_once = False
            self._uncompleted_up_to[report.fragment] = manifests[-1].toSequenceNumber
        return manifests

    def reopen_window(self, report: TaskReport) -> bool:
        """The job that wrote a window has failed: it is to be written again. False if there is no such window now."""
        window = self._window_of(report)
        if window is not None:
            window.mark_closed()
        return window is not None

    def _window_of(self, report: TaskReport) -> Window | None:
        """None if it is of an entity that is no more: the one that has its name now was begun anew."""
        window = self._windows.get(report.fragment)
        is_it = window is not None and (report.entity_id, report.first_sequence_number) == (
            self._entity_id,
            window.first_sequence_number,
        )
        return window if is_it else None

    def _publish_file(self, fragment: int, written_file: WrittenFile) -> Manifest:
        folder, covered = self._folder, self._next_uncovered[fragment]
        first = EPOCH + dt.timedelta(microseconds=written_file.first_enqueued_us)
        manifest = Manifest(
            file=self._histories[fragment].next_file_path(first, self._entity_id, covered),
            fragment=fragment,
            sizeInBytes=folder.size(written_file.temporary_path),
            eventCount=written_file.message_count,
            firstSequenceNumber=written_file.first_sequence_number,
            lastSequenceNumber=written_file.last_sequence_number,
            firstEnqueueTime=to_iso(written_file.first_enqueued_us),
            lastEnqueueTime=to_iso(written_file.last_enqueued_us),
            namespace=self._namespace,
            entity=self.path,
            entityId=self._entity_id,
            fromSequenceNumber=covered,
            toSequenceNumber=written_file.to_sequence_number,
        )
        if folder.exists(manifest.path):
            raise PipelineError(f"{folder.uri_of(manifest.path)} is there already: another capture writes there, too")
        folder.move(written_file.temporary_path, manifest.file)
        folder.write_atomically(manifest.path, manifest.encode(), f"{self._temporary_folder}/{uuid.uuid4().hex}")
        self._next_uncovered[fragment] = written_file.to_sequence_number + 1
        return manifest

    # --- completing ---------------------------------------------------------------------------------------------------

    async def complete_captured(self) -> None:
        """Complete what is in files, if that is wanted."""
        if self._exclusive_receiver is None or not self._uncompleted_up_to:
            return
        positions = await request_positions(self._factory, self.source_options)
        if positions.entity_id != self._entity_id:
            return  # the next look says so, and forgets what is owed; so it is with a fragment below
        ends = {one.fragment: one.next_sequence_number for one in positions.fragments if one.is_available}
        for fragment, up_to in list(self._uncompleted_up_to.items()):
            if fragment in ends and up_to >= ends[fragment]:
                continue  # it was restored to an earlier state
            try:
                await self._complete(self._exclusive_receiver, fragment, up_to)
            except EntityNotFound:
                return  # deleted, and perhaps created again, since it was asked: the next look says so
            if self._uncompleted_up_to.get(fragment) == up_to:  # else there are more files meanwhile
                del self._uncompleted_up_to[fragment]

    async def _complete(self, exclusive_receiver: ExclusiveReceiver, fragment: int, up_to: int) -> None:
        await exclusive_receiver.acquire()
        browser = self._factory.create_message_browser(self.path, fragment=fragment)
        try:
            _, skipped = await browser.complete_up_to(up_to, epoch=exclusive_receiver.epoch, entity_id=self._entity_id)
        finally:
            await browser.close()
        if skipped:
            log.warning("%d captured messages of '%s' stay: somebody has them", skipped, self.path)

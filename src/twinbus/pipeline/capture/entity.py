"""The driver's state for one captured entity.

Owns the capture position in each fragment, the commit of files that tasks have written, and the completion of
captured messages. A file gets its final name, then its manifest, and only then are its messages completed. If the
driver dies in between, the next driver continues after the last manifest.
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
    """An entity that is being captured."""

    def __init__(self, folder: Folder, settings: CaptureSettings, path: str) -> None:
        """Prepare the capture of `path`. `open` finds the position to continue from."""
        self.source_options = settings.source_options(path)
        self.path = self.source_options.entity
        self._folder = folder
        self._settings = settings
        self._namespace = settings.namespace_name()
        self.folder_path = folder_path(self._namespace, self.path)
        """Folder of the entity."""
        self._temporary_folder = f"{self.folder_path}/{TEMPORARY_FOLDER}/{uuid.uuid4().hex}"
        self._factory = connect(self.source_options)
        self._exclusive_receiver = ExclusiveReceiver(self._factory, self.path) if settings.completes_captured else None
        self._entity_id = 0
        self._windows: dict[int, Window] = {}
        self._histories: dict[int, FragmentHistory] = {}
        self._next_uncovered: dict[int, int] = {}
        """First sequence number after the last file of each fragment. A message with this number need not exist."""
        self._uncompleted_up_to: dict[int, int] = {}
        """Sequence number up to which each fragment is captured but not yet completed."""
        self._naming_lock = asyncio.Lock()
        """Lock for naming files, opening windows and deleting unfinished files."""

    async def open(self) -> None:
        """Find the position to continue from. Raise PipelineError on data loss or if another receiver is active."""
        await asyncio.to_thread(self._folder.delete_folder, f"{self.folder_path}/{TEMPORARY_FOLDER}")
        if self._exclusive_receiver is not None:
            await self._exclusive_receiver.acquire()
        await self.check_for_losses()

    async def close(self) -> None:
        """Close the connection and delete the tasks' temporary files."""
        await self._factory.close()
        await asyncio.to_thread(self._folder.delete_folder, self._temporary_folder)

    # --- windows ------------------------------------------------------------------------------------------------------

    async def find_due_windows(self, now_s: float, *, force: bool) -> list[CaptureTask]:
        """Return tasks for the windows that are due."""
        positions = await request_positions(self._factory, self.source_options)
        await self._update_windows(positions)
        if force and positions.unavailable_fragments:
            raise PipelineError(
                f"fragments {positions.unavailable_fragments} of '{self.path}' are unavailable: "
                "not all messages can be captured now"
            )
        tasks = []
        for position in positions.fragments:
            window = self._windows.get(position.fragment)
            if window is None or not position.is_available:
                continue
            due_window = window.close_if_due(position.next_sequence_number, now_s, force=force)
            if due_window is not None:
                tasks.append(
                    CaptureTask(
                        entity=self.path,
                        source_options=self.source_options,
                        entity_id=self._entity_id,
                        window=due_window,
                        folder_uri=self._folder.uri,
                        temporary_folder=self._temporary_folder,
                        max_file_bytes=self._settings.limits.max_bytes,
                    )
                )
        return tasks

    async def check_for_losses(self) -> None:
        """If messages were lost since the last check, skip them, or raise PipelineError if data loss is not allowed."""
        await self._update_windows(await request_positions(self._factory, self.source_options))

    async def _update_windows(self, positions: Positions) -> None:
        """Open windows for new fragments, or for all fragments if the entity was recreated."""
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
                    are_numbers_reused = window.first_sequence_number > position.next_sequence_number
                    self._windows[position.fragment] = self._open_window_after_loss(
                        position, window.first_sequence_number, are_numbers_reused=are_numbers_reused
                    )

    async def _open_window(self, position: FragmentPosition) -> Window:
        """Open a window after the last manifest."""
        number = position.fragment
        history = self._histories[number] = FragmentHistory(
            self._folder, folder_path(self._namespace, self.path, number)
        )
        last = await asyncio.to_thread(history.find_last)
        first = position.low_sequence_number if last is None else last.toSequenceNumber + 1
        if last is not None and self._has_losses(position, last.entityId, first):
            are_numbers_reused = last.entityId != self._entity_id or first > position.next_sequence_number
            return self._open_window_after_loss(position, first, are_numbers_reused=are_numbers_reused)
        if last is not None:
            self._uncompleted_up_to[number] = last.toSequenceNumber  # perhaps not completed by the previous driver
        self._next_uncovered[number] = first
        return Window(number, first, self._settings.limits)

    def _open_window_after_loss(
        self, position: FragmentPosition, first_sequence_number: int, *, are_numbers_reused: bool
    ) -> Window:
        """Open a window at `first_sequence_number`, or at the first message if sequence numbers are reused."""
        number = position.fragment
        if are_numbers_reused:  # messages with reused numbers are in no file yet: do not complete them
            first_sequence_number = position.low_sequence_number
            self._histories[number].allow_number_reuse()
            self._uncompleted_up_to.pop(number, None)
        first_sequence_number = self._next_uncovered[number] = min(
            max(first_sequence_number, position.purged_sequence_number + 1), position.next_sequence_number
        )
        return Window(number, first_sequence_number, self._settings.limits, closes_at_once=are_numbers_reused)

    def _has_losses(self, position: FragmentPosition, entity_id: int, first_sequence_number: int) -> bool:
        """Return whether uncaptured messages were lost. If so, raise PipelineError unless data loss is allowed."""
        start = Offsets(self.path, entity_id, {position.fragment: first_sequence_number})
        return self._report_losses(find_losses(start, Positions(self._entity_id, (position,))))

    def _report_losses(self, descriptions: list[str]) -> bool:
        if descriptions and not self._settings.allows_data_loss:
            raise PipelineError(
                f"data was lost: {descriptions[0]}. Use --allow-data-loss to continue with the remaining messages"
            )
        for description in descriptions:
            log.warning("data was lost: %s", description)
        return bool(descriptions)

    # --- files --------------------------------------------------------------------------------------------------------

    async def commit(self, report: TaskReport) -> list[Manifest]:
        """Commit the files from a task: rename each file and write its manifest."""
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
        """Mark the window of a failed job as not written. Return False if the window no longer exists."""
        window = self._window_of(report)
        if window is not None:
            window.mark_closed()
        return window is not None

    def _window_of(self, report: TaskReport) -> Window | None:
        """Return the window that a report is about, or None if the entity was recreated or the window replaced."""
        window = self._windows.get(report.fragment)
        is_current = window is not None and (report.entity_id, report.first_sequence_number) == (
            self._entity_id,
            window.first_sequence_number,
        )
        return window if is_current else None

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
            raise PipelineError(
                f"{folder.uri_of(manifest.path)} already exists: stop the other capture that writes there"
            )
        folder.move(written_file.temporary_path, manifest.file)
        folder.write_atomically(manifest.path, manifest.encode(), f"{self._temporary_folder}/{uuid.uuid4().hex}")
        self._next_uncovered[fragment] = written_file.to_sequence_number + 1
        return manifest

    # --- completion ---------------------------------------------------------------------------------------------------

    async def complete_captured(self) -> None:
        """Complete captured messages if the settings require it."""
        if self._exclusive_receiver is None or not self._uncompleted_up_to:
            return
        positions = await request_positions(self._factory, self.source_options)
        if positions.entity_id != self._entity_id:
            return  # the next check detects this and drops pending completions
        ends = {
            position.fragment: position.next_sequence_number
            for position in positions.fragments
            if position.is_available
        }
        for fragment, up_to in list(self._uncompleted_up_to.items()):
            if fragment in ends and up_to >= ends[fragment]:
                continue  # the fragment was restored to an earlier state
            try:
                await self._complete(self._exclusive_receiver, fragment, up_to)
            except EntityNotFound:
                return  # the entity was deleted or recreated: the next check detects this
            if self._uncompleted_up_to.get(fragment) == up_to:  # otherwise more files were committed
                del self._uncompleted_up_to[fragment]

    async def _complete(self, exclusive_receiver: ExclusiveReceiver, fragment: int, up_to: int) -> None:
        await exclusive_receiver.acquire()
        browser = self._factory.create_message_browser(self.path, fragment=fragment)
        try:
            _, skipped = await browser.complete_up_to(up_to, epoch=exclusive_receiver.epoch, entity_id=self._entity_id)
        finally:
            await browser.close()
        if skipped:
            log.warning(
                "%d captured messages of '%s' were not completed: they are locked by a receiver", skipped, self.path
            )

"""Model of a disk that computes its content after a power cut from the trace of the shim.

Each file and each folder has a durable state and an ordered list of changes that no sync has covered yet. A successful
sync makes the changes durable that were made before it began. A failed sync of a file loses these changes for good, as
on Linux: the next sync does not cover them. A power cut loses all remaining changes, or most of them.

    disk = PowerCutDisk(root)            # before the program starts
    disk.replay(trace)                   # after the program was killed
    disk.cut_power()                     # the root now contains only the durable state

A file's name belongs to its folder: a file that was synced is gone if its folder was not synced since. POSIX
guarantees no more than that; many file systems do.

Owns: this model. Knows nothing about the program or the content of files.
"""

from __future__ import annotations

import shutil
import struct
from abc import ABC, abstractmethod
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

RECORD_HEADER: Final = struct.Struct("<IIQqII")
ALL_INODES: Final = 0
"""Inode number in the records of sync and syncfs."""
PAGE_BYTES: Final = 4096
TORN_PAGE_PROBABILITY: Final = 0.4
"""Probability that surviving pages of a torn file lie anywhere, with zeros between them."""


class RecordKind(IntEnum):
    """Kind of a trace record, with the same numbers as in shim.c."""

    MADE_FILE = 0
    WROTE = 1
    TRUNCATED = 2
    SYNC_BEGUN = 3
    SYNC_DONE = 4
    SYNC_FAILED = 5
    ALL_SYNCED = 6
    RENAMED = 7
    UNLINKED = 8
    LINKED = 9
    MADE_FOLDER = 10


class TraceRecord(NamedTuple):
    """A change or sync of the program, as recorded by the shim."""

    kind: RecordKind
    thread: int
    inode: int
    offset: int
    path: str
    second: bytes


class Write(NamedTuple):
    """A change of a file: bytes at an offset, or (`data` is None) a truncation to `offset` bytes."""

    offset: int
    data: bytes | None


Entries: TypeAlias = "dict[str, Node | None]"
"""An atomic change of a folder: new nodes by name, None for a removed name."""
Node: TypeAlias = "File | Folder"
ChangeT = TypeVar("ChangeT", Write, Entries)


class DurableNode(ABC, Generic[ChangeT]):
    """A file or folder with its pending changes, which no sync has covered."""

    def __init__(self, mode: int) -> None:
        self.mode = mode
        """Permissions, which are as durable as the node."""
        self.pending: list[ChangeT] = []
        self._resolved = 0

    @abstractmethod
    def apply(self, change: ChangeT, *, durable: bool) -> None:
        """Apply a change to the current or to the durable state."""

    @property
    def visible(self) -> int:
        """Number of changes so far."""
        return self._resolved + len(self.pending)

    def change(self, change: ChangeT) -> None:
        self.apply(change, durable=False)
        self.pending.append(change)

    def mark_durable(self, end: int, *, durable: bool) -> None:
        """Make the changes up to number `end` durable, or discard them for good."""
        count = max(0, end - self._resolved)
        if durable:
            for change in self.pending[:count]:
                self.apply(change, durable=True)
        del self.pending[:count]
        self._resolved += count

    def lose_unsynced(self, rng: random.Random) -> None:
        """Make a random number of the first pending changes durable."""
        self.mark_durable(self._resolved + rng.randrange(len(self.pending) + 1), durable=True)


class File(DurableNode[Write]):
    """Current and durable content of a file."""

    def __init__(self, content: bytes = b"", mode: int = 0o600) -> None:
        super().__init__(mode)
        self.current = bytearray(content)
        self.durable = bytearray(content)

    def apply(self, change: Write, *, durable: bool) -> None:
        content = self.durable if durable else self.current
        if change.data is None:
            del content[change.offset :]
        content.extend(bytes(max(0, change.offset - len(content))))
        if change.data is not None:
            content[change.offset : change.offset + len(change.data)] = change.data

    def lose_unsynced(self, rng: random.Random) -> None:
        """Also make part of the next write durable, or random pages of all remaining writes."""
        super().lose_unsynced(rng)
        if rng.random() < TORN_PAGE_PROBABILITY:
            pages = [page for write in self.pending for page in _pages(write) if rng.random() < 0.5]
        else:
            pages = [_piece(write, rng) for write in self.pending[:1]]
        for page in pages:
            self.apply(page, durable=True)


def _pages(write: Write) -> list[Write]:
    """Split a write into one write for each page that it touches. A truncation is not split."""
    if write.data is None:
        return [write]
    end = write.offset + len(write.data)
    starts = [write.offset, *range(write.offset // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES, end, PAGE_BYTES)]
    return [
        Write(start, write.data[start - write.offset : stop - write.offset])
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def _piece(write: Write, rng: random.Random) -> Write:
    return write if write.data is None else Write(write.offset, write.data[: rng.randrange(len(write.data) + 1)])


class Folder(DurableNode[Entries]):
    """Current and durable entries of a folder."""

    def __init__(self, mode: int = 0o700) -> None:
        super().__init__(mode)
        self.current: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def apply(self, change: Entries, *, durable: bool) -> None:
        content = self.durable if durable else self.current
        for name, node in change.items():
            if node is None:
                content.pop(name, None)
            else:
                content[name] = node


class PowerCutDisk:
    """Files and folders under a root with their durable state. At the start everything is durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._by_inode: dict[int, Node] = {root.stat().st_ino: self._top}
        self._pending_syncs: dict[int, list[tuple[Node, int]]] = {}
        """By thread: the nodes that its current sync covers, and the number of changes of each."""
        self._load(root, self._top)

    def _load(self, path: Path, folder: Folder) -> None:
        for child in sorted(path.iterdir()):
            if child.is_socket():
                continue  # a socket has no content, and the next start of the program replaces it
            status = child.lstat()
            mode = status.st_mode & 0o777
            known = self._by_inode.get(status.st_ino)
            if child.is_dir():
                node: Node = Folder(mode)
            else:
                node = known if known is not None else File(child.read_bytes(), mode)
            self._by_inode[status.st_ino] = node
            folder.current[child.name] = folder.durable[child.name] = node
            if isinstance(node, Folder):
                self._load(child, node)

    # --- replay ------------------------------------------------------------------------------------------------------

    def replay(self, trace: Path) -> None:
        """Apply all records of a trace."""
        for record in read_trace(trace.read_bytes()):
            self._apply(record)

    def _apply(self, record: TraceRecord) -> None:
        kind = record.kind
        if kind is RecordKind.WROTE:
            self._file(record.inode).change(Write(record.offset, record.second))
        elif kind is RecordKind.TRUNCATED:
            self._file(record.inode).change(Write(record.offset, None))
        elif kind is RecordKind.MADE_FILE:
            self._make_file(record)
        elif kind is RecordKind.SYNC_BEGUN:
            nodes = self._by_inode.values() if record.inode == ALL_INODES else [self._by_inode[record.inode]]
            self._pending_syncs[record.thread] = [(node, node.visible) for node in nodes]
        elif kind in {RecordKind.SYNC_DONE, RecordKind.ALL_SYNCED}:
            for node, end in self._pending_syncs.pop(record.thread):
                node.mark_durable(end, durable=True)
        elif kind is RecordKind.SYNC_FAILED:
            for node, end in self._pending_syncs.pop(record.thread):
                if isinstance(node, File):
                    node.mark_durable(end, durable=False)
        else:
            self._change_names(record)

    def _make_file(self, record: TraceRecord) -> None:
        """Add a file unless it exists; a new file may reuse the inode of a deleted one."""
        folder, name = self._find(record.path)
        if name not in folder.current or folder.current[name] is not self._by_inode.get(record.inode):
            self._by_inode[record.inode] = new_file = File()
            folder.change({name: new_file})

    def _change_names(self, record: TraceRecord) -> None:
        folder, name = self._find(record.path)
        if record.kind is RecordKind.MADE_FOLDER:
            self._by_inode[record.inode] = new_folder = Folder()
            folder.change({name: new_folder})
            return
        if record.kind is RecordKind.UNLINKED:
            folder.change({name: None})
            return
        target, new_name = self._find(record.second.decode())
        removed_name: Entries = {name: None} if record.kind is RecordKind.RENAMED else {}
        if target is folder:
            folder.change({**removed_name, new_name: folder.current[name]})
            return
        target.change({new_name: folder.current[name]})
        if removed_name:
            folder.change(removed_name)

    def _find(self, path: str) -> tuple[Folder, str]:
        """Return the folder that contains a path, and the last name of the path."""
        *upper, name = Path(path).relative_to(self._root).parts
        folder = self._top
        for part in upper:
            lower = folder.current[part]
            assert isinstance(lower, Folder), f"{path}: {part} is no folder"
            folder = lower
        return folder, name

    def _file(self, inode: int) -> File:
        node = self._by_inode[inode]
        assert isinstance(node, File), f"inode {inode} is no file"
        return node

    # --- power cut ---------------------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """Return where the root differs from the replayed trace, that is, changes that the shim did not see.

        The program must have ended.
        """
        replayed = dict(_walk(self._top, durable=False))
        on_disk = {str(path.relative_to(self._root)): path for path in self._root.rglob("*") if not path.is_socket()}
        problems = [f"{name} is only on disk" for name in on_disk.keys() - replayed.keys()]
        problems += [f"{name} is not on disk" for name in replayed.keys() - on_disk.keys()]
        for name in on_disk.keys() & replayed.keys():
            node = replayed[name]
            if isinstance(node, File) and on_disk[name].read_bytes() != node.current:
                problems.append(
                    f"{name} has {on_disk[name].stat().st_size} bytes, the trace tells {len(node.current)} others"
                )
        return sorted(problems)

    def cut_power(self, rng: random.Random | None = None) -> None:
        """Replace the files under the root by their durable state. The program must have been killed.

        Changes that no sync has covered are lost. With `rng`, a random number of the first changes of each file and
        folder survive, and part of the next write or random pages of later writes.
        """
        for path in self._root.rglob("*"):
            status = path.lstat()
            if status.st_ino in self._by_inode:
                self._by_inode[status.st_ino].mode = status.st_mode & 0o777
        if rng is not None:
            for node in self._by_inode.values():
                node.lose_unsynced(rng)
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, node in _walk(self._top, durable=True):
            path = self._root / name
            if isinstance(node, File):
                path.write_bytes(node.durable)
            else:
                path.mkdir()
            path.chmod(node.mode)


def _walk(folder: Folder, *, durable: bool, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield all nodes in a folder by path; a folder comes before its entries."""
    for name, node in sorted((folder.durable if durable else folder.current).items()):
        yield prefix + name, node
        if isinstance(node, Folder):
            yield from _walk(node, durable=durable, prefix=f"{prefix}{name}/")


def read_trace(trace: bytes) -> Iterator[TraceRecord]:
    """Yield the records of a trace. The last record may be incomplete if the process was killed while writing it."""
    at = 0
    while at + RECORD_HEADER.size <= len(trace):
        kind, thread, inode, offset, path_bytes, second_bytes = RECORD_HEADER.unpack_from(trace, at)
        path_at = at + RECORD_HEADER.size
        second_at = path_at + path_bytes
        at = second_at + second_bytes
        if at > len(trace):
            return
        path = trace[path_at:second_at].decode()
        yield TraceRecord(RecordKind(kind), thread, inode, offset, path, trace[second_at:at])

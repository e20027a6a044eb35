"""What a disk holds after a power cut, told from the trace of the shim.

Each file and each folder has a durable state and the changes that no sync has covered yet, in order. A sync that ended
well applies those that came before it began. One that failed loses those of a file for good, as Linux does: the next
sync knows nothing of them. In a power cut the changes that are left are lost, or most of them.

    disk = Disk(root)                    # before the program starts
    disk.replay(trace)                   # when it was killed
    disk.cut_power()                     # the root is now what the disk had

A file's name is its folder's affair: one that was synced itself, but whose folder was not since, is gone. That is what
POSIX promises; many file systems keep more.

Owns: that model. Knows nothing of who wrote, nor of what is in the files.
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
"""Instead of an inode, where sync or syncfs is told."""
PAGE_BYTES: Final = 4096
TORN_PAGE_PROBABILITY: Final = 0.4
"""Of so many files that are torn the pages that survived lie anywhere, with zeros between them."""


class RecordKind(IntEnum):
    """What a record tells, in the order of shim.c."""

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
    """One step of the program's, as the shim wrote it down."""

    kind: RecordKind
    thread: int
    inode: int
    offset: int
    path: str
    second: bytes


class Write(NamedTuple):
    """A change of a file: bytes at a place, or, with `data` None, its new length."""

    offset: int
    data: bytes | None


Entries: TypeAlias = "dict[str, Node | None]"
"""A change of a folder, whole or not at all: what names stand for from now on; None for nothing."""
Node: TypeAlias = "File | Folder"
ChangeT = TypeVar("ChangeT", Write, Entries)


class DurableNode(ABC, Generic[ChangeT]):
    """A file or folder: the changes that no sync has decided about, and how many came before them."""

    def __init__(self, mode: int) -> None:
        self.mode = mode
        """Its permissions. They are as durable as it is."""
        self.pending: list[ChangeT] = []
        self._decided = 0

    @abstractmethod
    def apply(self, change: ChangeT, *, durable: bool) -> None:
        """Make a change in what it is now, or in what is sure of it."""

    @property
    def visible(self) -> int:
        """How many changes there were so far."""
        return self._decided + len(self.pending)

    def change(self, change: ChangeT) -> None:
        self.apply(change, durable=False)
        self.pending.append(change)

    def mark_durable(self, end: int, *, durable: bool) -> None:
        """The changes up to that number are durable now, or never will be."""
        count = max(0, end - self._decided)
        if durable:
            for change in self.pending[:count]:
                self.apply(change, durable=True)
        del self.pending[:count]
        self._decided += count

    def lose_unsynced(self, rng: random.Random) -> None:
        """Some of the first changes are durable, as many as chance wants."""
        self.mark_durable(self._decided + rng.randrange(len(self.pending) + 1), durable=True)


class File(DurableNode[Write]):
    """What is in a file now, and what is for sure."""

    def __init__(self, content: bytes = b"", mode: int = 0o600) -> None:
        super().__init__(mode)
        self.now = bytearray(content)
        self.durable = bytearray(content)

    def apply(self, change: Write, *, durable: bool) -> None:
        content = self.durable if durable else self.now
        if change.data is None:
            del content[change.offset :]
        content.extend(bytes(max(0, change.offset - len(content))))
        if change.data is not None:
            content[change.offset : change.offset + len(change.data)] = change.data

    def lose_unsynced(self, rng: random.Random) -> None:
        """Also of the next write a piece is durable; or some pages of all writes that are left, wherever they lie."""
        super().lose_unsynced(rng)
        if rng.random() < TORN_PAGE_PROBABILITY:
            pages = [page for write in self.pending for page in _pages(write) if rng.random() < 0.5]
        else:
            pages = [_piece(write, rng) for write in self.pending[:1]]
        for page in pages:
            self.apply(page, durable=True)


def _pages(write: Write) -> list[Write]:
    """One for each page of the disk that a write touches. A new length is one, too."""
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
    """What is in a folder now, and what is for sure."""

    def __init__(self, mode: int = 0o700) -> None:
        super().__init__(mode)
        self.now: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def apply(self, change: Entries, *, durable: bool) -> None:
        content = self.durable if durable else self.now
        for name, node in change.items():
            if node is None:
                content.pop(name, None)
            else:
                content[name] = node


class PowerCutDisk:
    """The files under a root, each with what is sure of it. At the start all of it is."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._by_inode: dict[int, Node] = {root.stat().st_ino: self._top}
        self._pending_syncs: dict[int, list[tuple[Node, int]]] = {}
        """By thread: what its sync will cover, and how many changes of that."""
        self._load(root, self._top)

    def _load(self, path: Path, folder: Folder) -> None:
        for one in sorted(path.iterdir()):
            if one.is_socket():
                continue  # it holds nothing, and the next start of the program replaces it
            status = one.lstat()
            mode = status.st_mode & 0o777
            known = self._by_inode.get(status.st_ino)
            if one.is_dir():
                node: Node = Folder(mode)
            else:
                node = known if known is not None else File(one.read_bytes(), mode)
            self._by_inode[status.st_ino] = node
            folder.now[one.name] = folder.durable[one.name] = node
            if isinstance(node, Folder):
                self._load(one, node)

    # --- what the program did ----------------------------------------------------------------------------------------

    def replay(self, trace: Path) -> None:
        """Take every step that the trace tells."""
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
            for node, seen in self._pending_syncs.pop(record.thread):
                node.mark_durable(seen, durable=True)
        elif kind is RecordKind.SYNC_FAILED:
            for node, seen in self._pending_syncs.pop(record.thread):
                if isinstance(node, File):
                    node.mark_durable(seen, durable=False)
        else:
            self._change_names(record)

    def _make_file(self, record: TraceRecord) -> None:
        """A file that is there already, or a new one, whose inode may have been that of another before."""
        folder, name = self._find(record.path)
        if name not in folder.now or folder.now[name] is not self._by_inode.get(record.inode):
            self._by_inode[record.inode] = made = File()
            folder.change({name: made})

    def _change_names(self, record: TraceRecord) -> None:
        folder, name = self._find(record.path)
        if record.kind is RecordKind.MADE_FOLDER:
            self._by_inode[record.inode] = made = Folder()
            folder.change({name: made})
            return
        if record.kind is RecordKind.UNLINKED:
            folder.change({name: None})
            return
        target, new_name = self._find(record.second.decode())
        moved: Entries = {name: None} if record.kind is RecordKind.RENAMED else {}
        if target is folder:
            folder.change({**moved, new_name: folder.now[name]})
            return
        target.change({new_name: folder.now[name]})
        if moved:
            folder.change(moved)

    def _find(self, path: str) -> tuple[Folder, str]:
        """The folder that a path leads to, and the last name of it."""
        *upper, name = Path(path).relative_to(self._root).parts
        folder = self._top
        for part in upper:
            lower = folder.now[part]
            assert isinstance(lower, Folder), f"{path}: {part} is no folder"
            folder = lower
        return folder, name

    def _file(self, inode: int) -> File:
        node = self._by_inode[inode]
        assert isinstance(node, File), f"inode {inode} is no file"
        return node

    # --- the end -----------------------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """Where the root differs from what the trace tells of it: what the shim did not see. Nothing is to run then."""
        told = dict(_walk(self._top, durable=False))
        real = {str(path.relative_to(self._root)): path for path in self._root.rglob("*") if not path.is_socket()}
        found = [f"{name} is only on disk" for name in real.keys() - told.keys()]
        found += [f"{name} is not on disk" for name in told.keys() - real.keys()]
        for name in real.keys() & told.keys():
            node = told[name]
            if isinstance(node, File) and real[name].read_bytes() != node.now:
                found.append(f"{name} has {real[name].stat().st_size} bytes, the trace tells {len(node.now)} others")
        return sorted(found)

    def cut_power(self, rng: random.Random | None = None) -> None:
        """Make the root what the disk holds when the power is cut now. The program must have been killed.

        Of the changes that no sync has covered nothing is left; with `rng` the first few are, as many as chance wants,
        of each file and folder, and of what comes next a piece, or some pages.
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


def _walk(folder: Folder, *, durable: bool, above: str = "") -> Iterator[tuple[str, Node]]:
    """All that is in a folder, by path; a folder before what is in it."""
    for name, node in sorted((folder.durable if durable else folder.now).items()):
        yield above + name, node
        if isinstance(node, Folder):
            yield from _walk(node, durable=durable, above=f"{above}{name}/")


def read_trace(trace: bytes) -> Iterator[TraceRecord]:
    """What is in a trace. Its last record may be incomplete, where the process was killed in the middle of it."""
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

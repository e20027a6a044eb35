"""The data directory of a namespace: whose it is, in which format, and where its stores lie.

    with DataDirectory(path) as data:       # made if need be, and locked: nobody else serves from it
        stores = data.claim(settings)       # the directory of every store, by its number

Owns: the lock, the format version, the name of the namespace, the record of where each store lies, and how a file is
written so that after a power cut it is there whole or not at all. Files that belong to another user, or are symbolic
links, are refused: whoever made them decides what is in them. Knows nothing of what the files of others (keys,
catalogue, stores) hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from twinbus.server.config.settings import DEFAULT_STORES, MAX_STORES, InvalidSetting, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.server.config.settings import ServeSettings

log: Final = logging.getLogger(__name__)

FORMAT_VERSION: Final = 4
"""What this version writes and reads."""


def _migrate_format_1(path: Path) -> None:
    """No release has written it."""
    raise StartError(f"{path} has format 1, of a version before the first release: empty its queues with that version")


def _migrate_format_2(path: Path) -> None:
    """A catalogue of format 2 does not know whose subscription a deleted one was: it had none."""
    file = path / "catalogue.db"
    if not file.exists():
        return
    with closing(sqlite3.connect(file)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(doomed)")]
        if columns and "topic_id" not in columns:
            database.execute("ALTER TABLE doomed ADD COLUMN topic_id INTEGER")


def _migrate_format_3(_path: Path) -> None:
    """Rows of format 3 are read as they are: each says its version.

    Format 4 has rows that a build for format 3 fails on: messages with delivery annotations, and marks that count
    session states. The number keeps such a build from opening them.
    """


MIGRATIONS: Final[dict[int, Callable[[Path], None]]] = {
    1: _migrate_format_1,
    2: _migrate_format_2,
    3: _migrate_format_3,
}
"""By a version: what makes a directory of it one of the next. Each may run twice, if it was cut off the first time."""

KEYS_FILE: Final = "keys.json"
KEY_SOCKET_FILE: Final = "keys.sock"

_OWN_FILES: Final = (
    "format",
    "lock",
    KEYS_FILE,
    "namespace",
    "stores.json",
    "catalogue.db",
    "catalogue.db-journal",
    "catalogue.db-wal",
    "catalogue.db-shm",
    "tls/ca.pem",
    "tls/ca.key",
    "tls/server.pem",
    "tls/server.key",
)
"""What has to be a file of our own, if it is there. Directories may be links: stores are put on other disks so."""
_PRIVATE_FILES: Final = frozenset({KEYS_FILE, "tls/ca.key", "tls/server.key"})
"""Those of them that nobody else may read."""
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE_MODE: Final = stat.S_IWGRP | stat.S_IWOTH

_STORE_FOLDER_PREFIX: Final = "twinbus-"
"""How the name of a directory of stores begins, in one that namespaces may share."""
_ALLOWED_IN_NEW_DIRECTORY: Final = {"lock", ".format.new", "lost+found"}
"""What may lie in a directory that is not anyone's yet: a start that was cut off, or a new disk."""


class DataDirectoryInUse(StartError):
    """Another process has the data directory."""

    def __init__(self, path: Path, owner: str) -> None:
        """`owner` is what the lock file says about it."""
        super().__init__(f"{path} is in use by process {owner}: stop that one first, or give another --data")
        self.owner = owner


class _StoresFile(msgspec.Struct, forbid_unknown_fields=True):
    """stores.json. A path that is not absolute is inside the data directory, which may be moved."""

    stores: list[str]


class DataDirectory:
    """A directory that is ours from here until `close`."""

    def __init__(self, path: Path) -> None:
        """Make the directory if there is none, lock it and bring it to our format; StartError says why not."""
        self.path = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would name another place behind a link
        self._check_is_ours()
        make_directory(self.path)
        self._warn_if_writable_by_others()
        for name in _OWN_FILES:
            check_own_file(self.path / name, is_private=name in _PRIVATE_FILES)
        self._lock_descriptor = lock_directory(self.path)
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def catalogue_file(self) -> Path:
        """The file of the catalogue."""
        return self.path / "catalogue.db"

    @property
    def keys_file(self) -> Path:
        """The file of the keys."""
        return self.path / KEYS_FILE

    @property
    def key_socket_file(self) -> Path:
        """The socket at which `twinbus key` reaches the server."""
        return self.path / KEY_SOCKET_FILE

    @property
    def tls_directory(self) -> Path:
        """The directory of the development certificates."""
        return self.path / "tls"

    @property
    def usage_directory(self) -> Path:
        """The directory of what clients use, as it is counted."""
        return self.path / "usage"

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock: a process that inherits it has the directory, too."""
        return self._lock_descriptor

    def record_workers(self, pids: Sequence[int]) -> None:
        """Say in the lock file which processes have inherited the lock: they may outlive this one."""
        text = f"{os.getpid()}, workers {', '.join(map(str, pids))}" if pids else str(os.getpid())
        content = f"{text}\n".encode()
        if self._lock_descriptor >= 0:
            with contextlib.suppress(OSError):  # on a full disk it is not said; a worker is started all the same
                os.pwrite(self._lock_descriptor, content, 0)  # in the place of what was there: that needs no room
                os.ftruncate(self._lock_descriptor, len(content))

    def close(self) -> None:
        """Let another process have it."""
        if self._lock_descriptor >= 0:
            unlock_directory(self._lock_descriptor)
            self._lock_descriptor = -1

    def prepare_stores(self, settings: ServeSettings) -> tuple[Path, ...]:
        """Check that the settings fit what the directory holds, before anything in it is opened; its stores.

        InvalidSetting if it holds another namespace, or if its stores are not those that the settings ask for.
        """
        is_recorded = self._check_namespace(settings.name)
        stores = self.ensure_stores(settings.stores, settings.store_dirs, workers=settings.workers)
        if not is_recorded:
            write_atomically(self.path / "namespace", f"{settings.name}\n".encode())
        return stores

    def _check_namespace(self, name: str) -> bool:
        """Whether the directory says whose data it holds: one that is new, or of an earlier version, does not."""
        file = self.path / "namespace"
        try:
            found = file.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StartError(f"{file} says which namespace this is and cannot be read: {error.strerror}") from error
        if found.casefold() != name.casefold():
            raise InvalidSetting(
                "NAME",
                name,
                f"{self.path} holds the data of the namespace {found!r:.60}: serve it by that name, or give another "
                f"--data. To rename the namespace, write the new name to {file}",
            )
        return True

    def ensure_stores(self, count: int | None, store_dirs: Sequence[Path], *, workers: int = 1) -> tuple[Path, ...]:
        """The directory of every store, by its number: all that were ever made, and new ones up to `count`.

        A count of None means as many as there are. InvalidSetting if that contradicts what the
        directory has: then nothing was made.
        """
        record = self.path / "stores.json"
        recorded = self._read_stores_file(record)
        directories = [self.path / text for text in recorded]
        count = self._check_store_count(len(directories), count, workers)
        self._check_store_dirs(directories, range(len(directories), count), store_dirs)
        for number, directory in enumerate(directories):
            if not directory.is_dir():
                raise StartError(
                    f"store {number} is missing: it lies in {directory}, says {record}; mount its disk, or restore it"
                )
        new = self._create_stores(range(len(directories), count), store_dirs)
        if new and directories:
            log.warning(
                "%d stores are added: existing entities stay in the stores that they are in",
                len(new),
                extra={"data": str(self.path), "stores": count},
            )
        if new:
            inside = [str(path.relative_to(self.path) if path.is_relative_to(self.path) else path) for path in new]
            write_atomically(record, msgspec.json.encode(_StoresFile(recorded + inside)) + b"\n")
        return (*directories, *new)

    def _check_store_count(self, existing_count: int, count: int | None, workers: int) -> int:
        """How many stores there are to be."""
        if count is not None and count < existing_count:
            raise InvalidSetting(
                "--stores",
                count,
                f"{self.path} has {existing_count} stores, and none can be removed: give --stores "
                f"{existing_count}, or leave it out",
            )
        chosen = count or existing_count or DEFAULT_STORES
        if workers > chosen:
            raise InvalidSetting(
                "--workers",
                workers,
                f"each needs a store of its own, and {self.path} {'has' if existing_count else 'gets'} {chosen}: give "
                f"--stores {workers}, or fewer workers",
            )
        return chosen

    def _check_store_dirs(self, directories: Sequence[Path], new: Sequence[int], store_dirs: Sequence[Path]) -> None:
        """Refuse a directory in which no store lies and none is made; warn of stores that lie elsewhere."""
        if not directories or not store_dirs:
            return
        homes = [directory.resolve() for directory in store_dirs]
        stores = [directory.resolve() for directory in directories]
        filled = {homes[number % len(homes)] for number in new}
        for given, home in zip(store_dirs, homes, strict=True):
            if home not in filled and not any(store.is_relative_to(home) for store in stores):
                raise InvalidSetting(
                    "--store-dir",
                    given,
                    f"no store lies there, and stores cannot be moved by this option: the {len(stores)} stores of "
                    f"{self.path} lie in {_parent_directories(stores)}. Leave --store-dir out, or add stores "
                    "there with a higher "
                    "--stores",
                )
        elsewhere = [store for store in stores if not any(store.is_relative_to(home) for home in homes)]
        if elsewhere:
            log.warning(
                "%d stores lie in no --store-dir, and stay where they are",
                len(elsewhere),
                extra={"directories": _parent_directories(elsewhere)},
            )

    def _read_stores_file(self, record: Path) -> list[str]:
        try:
            recorded = msgspec.json.decode(record.read_bytes(), type=_StoresFile).stores
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise StartError(f"{record} says where the stores lie and cannot be read: {error}") from error
        if len(recorded) > MAX_STORES:
            raise StartError(f"{record} names {len(recorded)} stores; there can be {MAX_STORES}")
        return recorded

    def _create_stores(self, store_numbers: Sequence[int], store_dirs: Sequence[Path]) -> list[Path]:
        """Directories for these stores; made before they are recorded, so that what is recorded is there."""
        # Several namespaces may be given the same disks: each makes its stores under a name that no other has.
        unique = f"{_STORE_FOLDER_PREFIX}{secrets.token_hex(6)}"
        made = []
        for number in store_numbers:
            directory = self.path / "stores" / str(number)
            if store_dirs:
                disk = store_dirs[number % len(store_dirs)].absolute()
                if not disk.is_dir():
                    # Not made here: under the mount point of a disk that is not mounted it would be on the wrong one.
                    raise InvalidSetting("--store-dir", disk, "there is no such directory; make it first")
                directory = disk / unique / str(number)
            make_directory(directory)
            made.append(directory)
        return made

    def _check_is_ours(self) -> None:
        """Leave a directory of somebody else as it is, without even a lock file."""
        try:
            names = {entry.name for entry in self.path.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartError(f"{self.path} cannot be a data directory: {error.strerror}") from error
        if "format" not in names and names - _ALLOWED_IN_NEW_DIRECTORY:
            raise StartError(
                f"{self.path} has files in it and is no data directory (no file 'format'): give an empty or new one"
            )

    def _warn_if_writable_by_others(self) -> None:
        """Warn of others who can put files in place of ours. They are found out: such a file is not our own."""
        found = self.path.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & _OTHERS_WRITE_MODE:
            log.warning(
                "other users can change the data directory: chown it to the user that runs the server, and chmod 700",
                extra={"path": str(self.path), "owner": found.st_uid, "mode": f"{stat.S_IMODE(found.st_mode):04o}"},
            )

    def _migrate(self) -> None:
        self._check_is_ours()  # again: somebody may have filled it before it was locked
        file = self.path / "format"
        try:
            text = file.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            write_atomically(file, f"{FORMAT_VERSION}\n".encode())
            return
        if not text.isdigit() or int(text) < 1:
            raise StartError(f"{file} holds {text!r:.40} and not the number of a format: restore it from a copy")
        if int(text) > FORMAT_VERSION:
            raise StartError(
                f"{self.path} has format {text}, made by a newer twinbus; this one reads up to "
                f"{FORMAT_VERSION}: use the newer"
            )
        for version in range(int(text), FORMAT_VERSION):
            MIGRATIONS[version](self.path)
            write_atomically(file, f"{version + 1}\n".encode())


def lock_directory(path: Path) -> int:
    """Lock a data directory for this process; the descriptor holds the lock. InUse, or another StartError."""
    file = path / "lock"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        owner = os.pread(descriptor, 1_000, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise StartError(f"{file} cannot be locked: {error.strerror}") from error
        raise DataDirectoryInUse(path, owner) from None
    return descriptor


def unlock_directory(descriptor: int) -> None:
    """Let another process have it. The lock file stays: one that is removed can be locked by two at once."""
    os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _parent_directories(stores: Sequence[Path]) -> str:
    """The directories of some stores, as `--store-dir` would name those on other disks."""
    homes = [
        store.parents[1] if store.parent.name.startswith(_STORE_FOLDER_PREFIX) else store.parent for store in stores
    ]
    return ", ".join(dict.fromkeys(map(str, homes)))


def check_own_file(path: Path, *, is_private: bool = False) -> None:
    """StartError for what is there and is a link, no file, or another user's; or, if it is private, open to others."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StartError(f"{path} cannot be looked at: {error.strerror}") from error
    mode, own = found.st_mode, os.geteuid()
    if stat.S_ISLNK(mode):
        raise StartError(f"{path} is a symbolic link, which is not followed: put the file itself there")
    if not stat.S_ISREG(mode):
        return  # whoever reads it says so
    if found.st_uid != own:
        raise StartError(
            f"{path} belongs to user {found.st_uid}, and the server runs as user {own}: if you trust what is in it, "
            f"chown {own} it; else remove it"
        )
    if is_private and mode & _OTHERS_MODE:
        raise StartError(
            f"{path} holds a key, and others than its owner may read or write it (mode {stat.S_IMODE(mode):04o}): "
            "keep the key with chmod 600, or remove it for a new one to be made"
        )


def make_directory(path: Path) -> None:
    """A directory for its owner alone, there also after a power cut; one that exists is left as it is."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise StartError(f"{path} cannot be made: {error.strerror}") from error


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put a file in place whole, on disk when this returns. Readers see what was there before, or all of this."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # of a process that was cut off
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask is
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise StartError(f"{path} cannot be written: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """What was made, renamed or removed in a directory stays so after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

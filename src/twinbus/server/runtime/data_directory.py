"""The data directory of a namespace: its lock, its format, its namespace name, and the directories of its stores.

    with DataDirectory(path) as data_directory:            # created if missing, and locked against other servers
        stores = data_directory.prepare_stores(settings)   # the directory of each store, by store number

Owns: the lock, the format version, the name of the namespace, the list of store directories, and atomic writing of
files that survives a power cut. Files that belong to another user, and symbolic links, are refused: somebody else may
control their content. Knows nothing of the content of other modules' files (keys, catalogue, stores).
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
"""The format version that this build writes and reads."""


def _migrate_format_1(path: Path) -> None:
    """Refuse format 1, which no release has written."""
    raise StartError(f"{path} has format 1, of a version before the first release: empty its queues with that version")


def _migrate_format_2(path: Path) -> None:
    """Add the column `topic_id` for deleted subscriptions, which format 2 lacks."""
    file = path / "catalogue.db"
    if not file.exists():
        return
    with closing(sqlite3.connect(file)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(doomed)")]
        if columns and "topic_id" not in columns:
            database.execute("ALTER TABLE doomed ADD COLUMN topic_id INTEGER")


def _migrate_format_3(_path: Path) -> None:
    """Change nothing, because every row has its own version, and rows of format 3 are still readable.

    Format 4 has rows that a build for format 3 cannot read: messages with delivery annotations, and marks that count
    session states. The new version number keeps such a build from opening these rows.
    """


MIGRATIONS: Final[dict[int, Callable[[Path], None]]] = {
    1: _migrate_format_1,
    2: _migrate_format_2,
    3: _migrate_format_3,
}
"""The migration from each version to the next. A migration runs again if it was interrupted."""

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
"""Files that must belong to the server's user, if they exist. Directories may be links, to other disks."""
_PRIVATE_FILES: Final = frozenset({KEYS_FILE, "tls/ca.key", "tls/server.key"})
"""Files in `_OWN_FILES` that other users must not be able to read."""
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE_MODE: Final = stat.S_IWGRP | stat.S_IWOTH

_STORE_FOLDER_PREFIX: Final = "twinbus-"
"""The prefix of a namespace's folder in a `--store-dir`, which several namespaces may share."""
_ALLOWED_IN_NEW_DIRECTORY: Final = {"lock", ".format.new", "lost+found"}
"""Files that a new data directory may contain: left by an interrupted startup, or present on a new disk."""


class DataDirectoryInUse(StartError):
    """Another process has locked the data directory."""

    def __init__(self, path: Path, owner: str) -> None:
        """Create the error; `owner` is the content of the lock file."""
        super().__init__(f"{path} is in use by process {owner}: stop that process first, or give another --data")
        self.owner = owner


class _StoresFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of stores.json. A relative path is inside the data directory, which may be moved."""

    stores: list[str]


class DataDirectory:
    """A data directory that this process has locked until `close`."""

    def __init__(self, path: Path) -> None:
        """Create the directory if missing, lock it, and migrate it. Raise StartError if a step fails."""
        self.path = Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would follow symbolic links
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
        """The catalogue file."""
        return self.path / "catalogue.db"

    @property
    def keys_file(self) -> Path:
        """The key file."""
        return self.path / KEYS_FILE

    @property
    def key_socket_file(self) -> Path:
        """The Unix socket over which `twinbus key` connects to the server."""
        return self.path / KEY_SOCKET_FILE

    @property
    def tls_directory(self) -> Path:
        """The directory for development certificates."""
        return self.path / "tls"

    @property
    def usage_directory(self) -> Path:
        """The directory for usage journals and Parquet files."""
        return self.path / "usage"

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock; a process that inherits the descriptor also holds the lock."""
        return self._lock_descriptor

    def record_workers(self, pids: Sequence[int]) -> None:
        """Write the workers' pids to the lock file, because workers inherit the lock and may outlive this process."""
        text = f"{os.getpid()}, workers {', '.join(map(str, pids))}" if pids else str(os.getpid())
        content = f"{text}\n".encode()
        if self._lock_descriptor >= 0:
            with contextlib.suppress(OSError):  # a full disk must not prevent a worker from starting
                os.pwrite(self._lock_descriptor, content, 0)  # overwriting in place needs no space
                os.ftruncate(self._lock_descriptor, len(content))

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock_descriptor >= 0:
            unlock_directory(self._lock_descriptor)
            self._lock_descriptor = -1

    def prepare_stores(self, settings: ServeSettings) -> tuple[Path, ...]:
        """Check the settings against the directory before anything in it is opened, and return the store directories.

        Raise InvalidSetting if the directory belongs to another namespace, or if its stores do not fit the settings.
        """
        is_recorded = self._check_namespace(settings.name)
        stores = self.ensure_stores(settings.stores, settings.store_dirs, workers=settings.workers)
        if not is_recorded:
            write_atomically(self.path / "namespace", f"{settings.name}\n".encode())
        return stores

    def _check_namespace(self, name: str) -> bool:
        """Raise InvalidSetting if the directory belongs to another namespace.

        Return whether the name is recorded. A directory that is new or from an earlier version has no name.
        """
        file = self.path / "namespace"
        try:
            recorded_name = file.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StartError(f"{file}, the name of the namespace, cannot be read: {error.strerror}") from error
        if recorded_name.casefold() != name.casefold():
            raise InvalidSetting(
                "NAME",
                name,
                f"{self.path} holds the data of the namespace {recorded_name!r:.60}: serve it by that name, or give "
                f"another --data. To rename the namespace, write the new name to {file}",
            )
        return True

    def ensure_stores(self, count: int | None, store_dirs: Sequence[Path], *, workers: int = 1) -> tuple[Path, ...]:
        """Create stores up to `count` (None: keep the current number), and return all store directories by number.

        Raise InvalidSetting, before anything is created, if the parameters contradict the existing stores.
        """
        record = self.path / "stores.json"
        recorded = self._read_stores_file(record)
        directories = [self.path / text for text in recorded]
        count = self._check_store_count(len(directories), count, workers)
        self._check_store_dirs(directories, range(len(directories), count), store_dirs)
        for number, directory in enumerate(directories):
            if not directory.is_dir():
                raise StartError(
                    f"store {number} is missing: expected in {directory} by {record}; mount its disk, or restore it"
                )
        new = self._create_stores(range(len(directories), count), store_dirs)
        if new and directories:
            log.warning(
                "%d stores are added: existing entities stay in their present stores",
                len(new),
                extra={"data": str(self.path), "stores": count},
            )
        if new:
            added = [str(path.relative_to(self.path) if path.is_relative_to(self.path) else path) for path in new]
            write_atomically(record, msgspec.json.encode(_StoresFile(recorded + added)) + b"\n")
        return (*directories, *new)

    def _check_store_count(self, existing_count: int, count: int | None, workers: int) -> int:
        """Return the number of stores after this startup. Raise InvalidSetting if `count` or `workers` does not fit."""
        if count is not None and count < existing_count:
            raise InvalidSetting(
                "--stores",
                count,
                f"{self.path} has {existing_count} stores, which cannot be removed: give --stores "
                f"{existing_count}, or leave it out",
            )
        chosen = count or existing_count or DEFAULT_STORES
        if workers > chosen:
            raise InvalidSetting(
                "--workers",
                workers,
                f"each worker needs a store of its own, but {self.path} {'has' if existing_count else 'gets'} {chosen}"
                f": give --stores {workers}, or fewer workers",
            )
        return chosen

    def _check_store_dirs(self, directories: Sequence[Path], new: Sequence[int], store_dirs: Sequence[Path]) -> None:
        """Raise InvalidSetting for a `--store-dir` without a store; warn about stores that are in no `--store-dir`."""
        if not directories or not store_dirs:
            return
        homes = [directory.resolve() for directory in store_dirs]
        stores = [directory.resolve() for directory in directories]
        filled = {homes[number % len(homes)] for number in new}
        for store_dir, home in zip(store_dirs, homes, strict=True):
            if home not in filled and not any(store.is_relative_to(home) for store in stores):
                raise InvalidSetting(
                    "--store-dir",
                    store_dir,
                    f"has no store, and this option cannot move stores: the {len(stores)} stores of {self.path} are in "
                    f"{_parent_directories(stores)}. Leave --store-dir out, or add stores there with a higher --stores",
                )
        elsewhere = [store for store in stores if not any(store.is_relative_to(home) for home in homes)]
        if elsewhere:
            log.warning(
                "%d stores are in no --store-dir, and stay in their directories",
                len(elsewhere),
                extra={"directories": _parent_directories(elsewhere)},
            )

    def _read_stores_file(self, record: Path) -> list[str]:
        try:
            recorded = msgspec.json.decode(record.read_bytes(), type=_StoresFile).stores
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise StartError(f"{record}, the list of stores, cannot be read: {error}") from error
        if len(recorded) > MAX_STORES:
            raise StartError(f"{record} names {len(recorded)} stores; the limit is {MAX_STORES}")
        return recorded

    def _create_stores(self, store_numbers: Sequence[int], store_dirs: Sequence[Path]) -> list[Path]:
        """Create the directories for new stores before recording them, so that recorded directories always exist."""
        # Several namespaces may share a disk, so each creates its stores in a folder with a unique name.
        folder = f"{_STORE_FOLDER_PREFIX}{secrets.token_hex(6)}"
        created = []
        for number in store_numbers:
            directory = self.path / "stores" / str(number)
            if store_dirs:
                disk = store_dirs[number % len(store_dirs)].absolute()
                if not disk.is_dir():
                    # Do not create the directory: if its disk is not mounted, it would be on the wrong disk.
                    raise InvalidSetting("--store-dir", disk, "does not exist: create it first")
                directory = disk / folder / str(number)
            make_directory(directory)
            created.append(directory)
        return created

    def _check_is_ours(self) -> None:
        """Raise StartError for a directory with other files, before even a lock file is created in it."""
        try:
            names = {entry.name for entry in self.path.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartError(f"{self.path} cannot be a data directory: {error.strerror}") from error
        if "format" not in names and names - _ALLOWED_IN_NEW_DIRECTORY:
            raise StartError(
                f"{self.path} has files but is not a data directory (no file 'format'): give an empty or new directory"
            )

    def _warn_if_writable_by_others(self) -> None:
        """Warn if other users can replace files in the directory; `check_own_file` refuses such files."""
        status = self.path.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & _OTHERS_WRITE_MODE:
            log.warning(
                "other users can change the data directory: chown it to the user that runs the server, and chmod 700",
                extra={"path": str(self.path), "owner": status.st_uid, "mode": f"{stat.S_IMODE(status.st_mode):04o}"},
            )

    def _migrate(self) -> None:
        self._check_is_ours()  # check again, because files may have been created before the directory was locked
        file = self.path / "format"
        try:
            text = file.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            write_atomically(file, f"{FORMAT_VERSION}\n".encode())
            return
        if not text.isdigit() or int(text) < 1:
            raise StartError(f"{file} contains {text!r:.40}, not a format version: restore it from a backup")
        if int(text) > FORMAT_VERSION:
            raise StartError(
                f"{self.path} has format {text} of a newer twinbus, and this version reads up to "
                f"{FORMAT_VERSION}: use the newer version"
            )
        for version in range(int(text), FORMAT_VERSION):
            MIGRATIONS[version](self.path)
            write_atomically(file, f"{version + 1}\n".encode())


def lock_directory(path: Path) -> int:
    """Lock a data directory for this process, and return the descriptor that holds the lock.

    Raise DataDirectoryInUse if another process holds the lock, or another StartError if locking fails.
    """
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
    """Unlock a data directory.

    The lock file stays, because two processes could hold a lock if the file were removed.
    """
    os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _parent_directories(stores: Sequence[Path]) -> str:
    """Return the directories that contain the stores, in the form that `--store-dir` has."""
    homes = [
        store.parents[1] if store.parent.name.startswith(_STORE_FOLDER_PREFIX) else store.parent for store in stores
    ]
    return ", ".join(dict.fromkeys(map(str, homes)))


def check_own_file(path: Path, *, is_private: bool = False) -> None:
    """Raise StartError if the file is a symbolic link, belongs to another user, or is private but open to others."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error
    mode, own_uid = status.st_mode, os.geteuid()
    if stat.S_ISLNK(mode):
        raise StartError(f"{path} is a symbolic link, which is not followed: put the file itself there")
    if not stat.S_ISREG(mode):
        return  # reading the file fails later, with a better message
    if status.st_uid != own_uid:
        raise StartError(
            f"{path} belongs to user {status.st_uid}, but the server runs as user {own_uid}: if you trust its content, "
            f"chown {own_uid} it; otherwise remove it"
        )
    if is_private and mode & _OTHERS_MODE:
        raise StartError(
            f"{path} holds a key, but other users may read or write it (mode {stat.S_IMODE(mode):04o}): keep the key "
            "with chmod 600, or remove the file to have a new key created"
        )


def make_directory(path: Path) -> None:
    """Create a directory for its owner only, unless it exists.

    Sync its parent, so that the directory survives a power cut.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise StartError(f"{path} cannot be created: {error.strerror}") from error


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file and sync it to disk; readers see either the old content or all of the new content."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # left by a process that was killed
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # the umask may have removed permissions
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
    """Sync a directory, so that created, renamed and removed files stay that way after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Replay: captured files back into an entity, through the data source's writing half.

    files = find_files(folder, place, "orders", since=since, until=until)
    rows = rows_of(spark, folder, files, since, until, "label = 'order'")

Owns: which files are read: only those that have a manifest, and only those whose times are wanted. What a task does
with them is in `reading`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from twinbus.model.path import canonical_key
from twinbus.pipeline.capture.manifest import MANIFEST_SUFFIX, Manifest, folder_path, sort_key
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.capture.folder import Folder

MAX_CONCURRENT_READS: Final = 16
"""Manifests: small files, and often far away."""


def find_entity_folder(folder: Folder, entity: str, namespace: str | None) -> str:
    """The folder of a captured entity; PipelineError says what there is instead."""
    names = [namespace] if namespace else [name for name in folder.list_names("") if not name.startswith(("_", "."))]
    found = [name for name in names if folder.list_names(folder_path(name, entity))]
    if len(found) == 1:
        return folder_path(found[0], entity)
    if found:
        raise PipelineError(f"'{entity}' was captured from {', '.join(found)}: say which, by --namespace")
    raise PipelineError(f"nothing of '{entity}' is in {folder.uri}; it has {', '.join(names) or 'nothing'}")


def find_files(
    folder: Folder,
    entity_folder: str,
    entity: str | None = None,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> list[Manifest]:
    """The manifests below a place of files that have messages from `since` on and before `until`, in order.

    Below the folder of an entity are those of others too: dead letters, subscriptions, longer paths. With `entity`
    there are none of these.
    """
    key = None if entity is None else canonical_key(entity)
    with ThreadPoolExecutor(MAX_CONCURRENT_READS) as threads:
        read = threads.map(
            lambda path: Manifest.decode(folder.uri_of(path), folder.read(path)),
            folder.walk(entity_folder, MANIFEST_SUFFIX),
        )
        wanted = [
            one
            for one in read
            if (key is None or canonical_key(one.entity) == key)
            and (since is None or one.last_enqueued >= since)
            and (until is None or one.first_enqueued < until)
        ]
    return sorted(wanted, key=lambda one: (one.fragment, *sort_key(one)))


def read_rows(
    spark: SparkSession,
    folder: Folder,
    files: Sequence[Manifest],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    where: str | None = None,
) -> DataFrame:
    """What is in the files, a partition for each fragment. PipelineError if `where` is no expression of Spark's."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # whoever only looks for files does without

    from twinbus.pipeline.capture.data_source import read_captured_files  # noqa: PLC0415
    from twinbus.pipeline.spark import first_line  # noqa: PLC0415

    rows = read_captured_files(spark, folder.uri, files, since, until)
    if where is None:
        return rows
    try:
        return rows.where(where)
    except PySparkException as error:
        raise PipelineError(f"the filter {where!r:.200} cannot be used: {first_line(error)}") from error


def send_rows(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Send them. PipelineError says what is in the way."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from twinbus.pipeline.spark import failure_reason  # noqa: PLC0415

    try:
        rows.write.format("servicebus").options(**options).mode("append").save()
    except PySparkException as error:
        raise PipelineError(failure_reason(error)) from error

"""Replay of captured files into an entity, through the sink of the data source.

    files = find_files(folder, entity_folder, "orders", since=since, until=until)
    rows = read_rows(spark, folder, files, since=since, until=until, where="label = 'order'")

Owns the selection of files: only files with a manifest, and only files within the requested period. `data_source` reads
the files in tasks.
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
"""Maximum number of manifests read at the same time. Manifests are small, and often on remote storage."""


def find_entity_folder(folder: Folder, entity: str, namespace: str | None) -> str:
    """Return the folder of a captured entity. Raise PipelineError if not exactly one folder matches."""
    names = [namespace] if namespace else [name for name in folder.list_names("") if not name.startswith(("_", "."))]
    matching = [name for name in names if folder.list_names(folder_path(name, entity))]
    if len(matching) == 1:
        return folder_path(matching[0], entity)
    if matching:
        raise PipelineError(f"'{entity}' was captured from {', '.join(matching)}: choose one with --namespace")
    raise PipelineError(f"'{entity}' was not captured to {folder.uri}; namespaces there: {', '.join(names) or 'none'}")


def find_files(
    folder: Folder,
    entity_folder: str,
    entity: str | None = None,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> list[Manifest]:
    """Return the manifests below a folder whose files have messages from `since` to `until` (exclusive), in order.

    An entity's folder also contains the folders of other entities: dead-letter queues, subscriptions, longer paths. If
    `entity` is given, manifests of other entities are left out.
    """
    key = None if entity is None else canonical_key(entity)
    with ThreadPoolExecutor(MAX_CONCURRENT_READS) as threads:
        manifests = threads.map(
            lambda path: Manifest.decode(folder.uri_of(path), folder.read(path)),
            folder.walk(entity_folder, MANIFEST_SUFFIX),
        )
        selected = [
            manifest
            for manifest in manifests
            if (key is None or canonical_key(manifest.entity) == key)
            and (since is None or manifest.last_enqueued >= since)
            and (until is None or manifest.first_enqueued < until)
        ]
    return sorted(selected, key=lambda manifest: (manifest.fragment, *sort_key(manifest)))


def read_rows(
    spark: SparkSession,
    folder: Folder,
    files: Sequence[Manifest],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    where: str | None = None,
) -> DataFrame:
    """Read files as rows, one partition per fragment. Raise PipelineError if `where` is not a Spark expression."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # not needed to find files

    from twinbus.pipeline.capture.data_source import read_captured_files  # noqa: PLC0415
    from twinbus.pipeline.spark import first_line  # noqa: PLC0415

    rows = read_captured_files(spark, folder.uri, files, since, until)
    if where is None:
        return rows
    try:
        return rows.where(where)
    except PySparkException as error:
        raise PipelineError(f"the filter {where!r:.200} is not valid: {first_line(error)}") from error


def send_rows(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Send rows to an entity. Raise PipelineError if the job fails."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from twinbus.pipeline.spark import failure_reason  # noqa: PLC0415

    try:
        rows.write.format("servicebus").options(**options).mode("append").save()
    except PySparkException as error:
        raise PipelineError(failure_reason(error)) from error

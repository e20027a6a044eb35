"""Capture and replay: what goes through an entity, as Parquet files; and back from these into an entity.

Owns: the files, their manifests, and that nothing is in them twice and nothing missing, whatever is killed when. A
window of a fragment's log is read by a task and written to a temporary file; the driver alone gives it its name and its
manifest. The manifests are all that is remembered. `docs/pipeline-capture.md` says what holds.
"""

"""Capture and replay: write an entity's messages to Parquet files, and send messages from these files to an entity.

Owns the files, their manifests, and the guarantee that no message is missing or captured twice, even if processes are
killed. A task reads a window of a fragment's log and writes a temporary file; only the driver gives the file its final
name and its manifest. All state is in the manifests. `docs/pipeline-capture.md` describes the guarantees.
"""

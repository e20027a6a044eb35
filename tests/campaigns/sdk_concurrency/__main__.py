"""All operations of the official SDKs, run concurrently: `python -m tests.campaigns.sdk_concurrency --runs 20`."""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.campaigns.sdk_concurrency.javascript import run_javascript
from tests.campaigns.sdk_concurrency.operations import run_aio, run_sync
from tests.conftest import SOURCES, installed_is_current
from tests.support.server_process import run_server

CLIENTS = {"sync": run_sync, "aio": run_aio, "javascript": run_javascript}


def main() -> int:
    """Run all scenarios of all clients, and print how often each succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--workers", type=int, default=0, help="processes of the server; 0: one, without workers")
    options = parser.parse_args()
    if not installed_is_current():
        os.environ["PYTHONPATH"] = str(SOURCES)
    succeeded: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    server_options = [f"--workers={options.workers}"] if options.workers else []
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), *server_options) as server:
        for run in range(1, options.runs + 1):
            for client in options.clients:
                begun_s = time.monotonic()
                try:
                    observed = CLIENTS[client](server)
                except Exception:  # noqa: BLE001  # a failed run is printed, and the next one starts
                    traceback.print_exc()
                    print(f"run {run}, {client}: FAILED after {time.monotonic() - begun_s:.1f} s", flush=True)  # noqa: T201
                    continue
                succeeded[client] += 1
                if observed is not None:
                    faults += observed.faults
                print(f"run {run}, {client}: {time.monotonic() - begun_s:.1f} s", flush=True)  # noqa: T201
    print("\nExcluded: faults of the SDKs themselves (`sdk_defects.py` shows the source of each):")  # noqa: T201
    for fault, count in faults.items():
        print(f"  {count:5} x {fault}")  # noqa: T201
    for client in options.clients:
        print(f"{client}: {succeeded[client]} of {options.runs} runs succeeded")  # noqa: T201
    return 0 if all(succeeded[client] == options.runs for client in options.clients) else 1


if __name__ == "__main__":
    sys.exit(main())

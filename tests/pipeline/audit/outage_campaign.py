"""The command: python -m tests.pipeline.audit.outage_campaign --outages N [--partitioned] [--seed S].

Runs a campaign of `tests.campaigns.outages` in which all programs write journals, and then the audit command. The audit
must report that nothing is lost, and find as many copies as the campaign's own ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import uvloop

from tests.campaigns.outages.__main__ import print_line
from tests.campaigns.outages.campaign import run_campaign
from tests.campaigns.outages.environment import connection_string_of
from tests.campaigns.outages.plan import AUDITABLE_KINDS, STORE_KINDS, Plan

if TYPE_CHECKING:
    from tests.campaigns.outages.environment import Environment

ROOT: Final = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.pipeline.audit.outage_campaign", description="Audits a campaign of outages."
    )
    parser.add_argument("--outages", type=int, default=30, metavar="N", help="how many")
    parser.add_argument("--partitioned", action="store_true", help="entities of the primary are, and stores fail, too")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all that is left to chance")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinbus-audited-") as folder:
        return uvloop.run(run(options, Path(folder)))


async def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the campaign and the audit; return 0 if nothing is lost and the audit agrees with the ledger."""
    print_line(f"seed {options.seed}")
    campaign_folder, codes = folder / "place", [-1]
    campaign_folder.mkdir()
    journals, report = folder / "journals", folder / "report"

    async def inspect(environment: Environment) -> None:
        codes[0] = await audit(environment, journals, report)

    plan = Plan(
        seed=options.seed,
        outage_count=options.outages,
        partitioned=options.partitioned,
        kinds=(*AUDITABLE_KINDS, *(STORE_KINDS if options.partitioned else ())),
        journals=journals,
    )
    campaign_report = await run_campaign(plan, campaign_folder, print_line, inspect)
    print_line(campaign_report.summary())
    problems = [*campaign_report.problems]
    if codes[0] != 0:
        problems.append(f"the audit ended with {codes[0]}")
    else:
        rows = pq.read_table(report).to_pylist()
        copies = sum(row["came"] for row in rows)
        print_line(f"the audit has {len(rows):,} messages at their destinations, in {copies:,} copies")
        if copies != len(campaign_report.arrivals):
            problems.append(f"{len(campaign_report.arrivals):,} arrived, and the audit has {copies:,}")
    for problem in problems:
        print_line(f"PROBLEM: {problem}")
    return 1 if problems else 0


async def audit(environment: Environment, journals: Path, report: Path) -> int:
    """Run the audit command, and return its exit code."""
    primary, secondary = environment.namespaces
    options = [
        *("--primary", connection_string_of(primary, primary.server.amqp_port)),
        *("--primary-admin", connection_string_of(primary, primary.server.http_port)),
        *("--secondary", connection_string_of(secondary, secondary.server.amqp_port)),
        *("--covered", "*", "--skew", "0", "--report", str(report)),
    ]
    began_s = time.monotonic()
    command = ("-m", "twinbus", "pipeline", "audit", str(journals), *options)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT)
    code = await process.wait()
    print_line(f"the audit took {time.monotonic() - began_s:.0f} s, with Spark's start")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The attackers, in a process of their own: all attacks at the same time.

    python -m tests.campaigns.attacks.attacker_process < site.json

The first line of standard input says where the server is, the second which attacks to make; the end of the input ends
them. The report, one line of JSON with the outcome of each attack, goes to standard output.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

import uvloop

from tests.campaigns.attacks import authenticated, unauthenticated  # noqa: F401  # they fill the table
from tests.campaigns.attacks.attack import ATTACKS, Outcome
from tests.campaigns.attacks.target_server import TargetServer


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    site = TargetServer.from_json(sys.stdin.readline())
    chosen = json.loads(sys.stdin.readline())
    ending = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if sys.stdin.readline() else ending.set())
    outcomes = {name: Outcome(name) for name in chosen}
    tasks = [asyncio.create_task(ATTACKS[name].run(site, outcomes[name])) for name in chosen]
    ended = asyncio.create_task(ending.wait())
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for name, result in zip(chosen, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if not isinstance(result, asyncio.CancelledError):
            outcomes[name].add_problem(f"the attack itself failed: {result!r}")
    loop.remove_reader(sys.stdin)
    sys.stdout.write(json.dumps([outcome.as_dict() for outcome in outcomes.values()]) + "\n")


if __name__ == "__main__":
    uvloop.run(main())

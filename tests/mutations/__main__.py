"""Break the code on purpose, one recorded fault at a time, and see that its tests fail.

    python -m tests.mutations [WORD ...]     those whose topic, statement or description contains a word (default: all)

Each fault is put into a copy of the repository, so the checkout is untouched. The tests named by the chosen mutations
first run on an unchanged copy, where they must pass; then each mutation's tests run with its fault, where at least one
must fail. The exit status is 0 if every fault is noticed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.catalogue import ROOT, Mutation, load

TESTS_FAILED = 1
"""pytest's exit status; others mean that it could not run the tests."""
TAIL = 30


def copy_repository(target: Path) -> None:
    """Copy the files that git knows or would add, and link the packages of the JavaScript tests."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    modules = ROOT / "tests" / "sdk_js" / "node_modules"
    if modules.is_dir():
        (target / "tests" / "sdk_js" / "node_modules").symlink_to(modules)


def run_tests(tests: list[str], copy: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of the copy with this interpreter; servers that they start run the copy's sources."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)


def notices(mutation: Mutation, copy: Path) -> bool:
    """Put the fault into the copy, run its tests, take the fault out again; return whether a test failed."""
    file = copy / mutation.file
    text = file.read_text()
    file.write_text(mutation.applied(text))
    started = time.monotonic()
    try:
        result = run_tests(list(mutation.tests), copy)
    finally:
        file.write_text(text)
    noticed = result.returncode == TESTS_FAILED
    verdict = "noticed" if noticed else "NOT NOTICED"
    print(f"{verdict:11} {mutation.statement}: {mutation.breaks} ({time.monotonic() - started:.0f} s)", flush=True)
    if not noticed:
        print("\n".join(result.stdout.splitlines()[-TAIL:]), flush=True)
    return noticed


def main() -> int:
    """Choose, check that the tests pass, then try each mutation."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("words", nargs="*", metavar="WORD", help="a part of a topic, statement or description")
    cli.add_argument("--list", action="store_true", help="list the chosen mutations, and run nothing")
    options = cli.parse_args()
    chosen = [
        mutation
        for mutation in load()
        if not options.words
        or any(
            word.lower() in f"{mutation.topic} {mutation.statement} {mutation.breaks}".lower() for word in options.words
        )
    ]
    if options.list or not chosen:
        print("\n".join(f"{mutation.statement}: {mutation.breaks}" for mutation in chosen) or "no mutation matches")
        return 0 if chosen else 2
    with tempfile.TemporaryDirectory(prefix="twinbus-mutations-") as name:
        copy = Path(name)
        copy_repository(copy)
        print(f"{len(chosen)} mutations; first, their tests on unchanged code", flush=True)
        passed = run_tests(sorted({test for mutation in chosen for test in mutation.tests}), copy)
        if passed.returncode:
            print(passed.stdout)
            return 1
        missed = sum(not notices(mutation, copy) for mutation in chosen)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations are noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

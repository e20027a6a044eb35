"""The command: python -m tests.pair_simulation [--outages N] [--seed S] [--processes P] | --replay SEED."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # the sources, not a package that was compiled before

from tests.pair_simulation.command import main

if __name__ == "__main__":
    sys.exit(main())

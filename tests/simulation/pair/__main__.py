"""Command: python -m tests.simulation.pair [--outages N] [--seed S] [--processes P] | --replay SEED."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))  # the sources instead of an installed, compiled package

from tests.simulation.pair.command import main

if __name__ == "__main__":
    sys.exit(main())

"""Runs the command: ``python -m pth_tracker``."""

import sys

from pth_tracker.cli import main

if __name__ == "__main__":
    sys.exit(main())

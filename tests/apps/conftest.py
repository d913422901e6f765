"""Makes the apps importable: they are programs, not a package."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1] / "apps"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

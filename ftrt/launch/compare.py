"""``python -m ftrt.launch.compare A.json B.json``: did two runs end with the same digest?"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(paths: list[str]) -> int:
    """Print the digests that two ``ftrt run --json`` files name; 0 if they are equal."""
    digests = [json.loads(Path(path).read_text())["digest"] for path in paths]
    for path, digest in zip(paths, digests, strict=True):
        print(f"{Path(path).stem:>8}  digest {digest}")
    equal = digests[0] is not None and len(set(digests)) == 1
    print("digests are equal" if equal else "digests DIFFER")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

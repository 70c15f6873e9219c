"""The parts of benchmarks/io.py: server, relay, client, workloads, results and report."""

import sys
from pathlib import Path

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

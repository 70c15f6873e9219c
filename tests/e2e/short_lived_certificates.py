"""Run `kubevirt-scheduler` with certificates that are renewed within seconds.

usage: short_lived_certificates.py LEAF_SECONDS SPREAD_SECONDS serve [OPTIONS]
"""

import sys
from datetime import timedelta
from functools import partial
from typing import Any

from certs.rotation import Policy
from webhook.cli import main
from webhook.commands import serve

if __name__ == "__main__":
    leaf, spread = (timedelta(seconds=float(value)) for value in sys.argv[1:3])
    short_lived: Any = partial(Policy, leaf_lifetime=leaf, spread=spread)
    serve.Policy = short_lived
    del sys.argv[1:3]
    main()

"""Run `kubevirt-scheduler` with certificates that are renewed within seconds.

usage: short_lived_certificates.py SECONDS SPREAD_SECONDS serve [OPTIONS]
"""

import sys
from datetime import timedelta
from functools import partial

from certs import rotation
from webhook.cli import main

if __name__ == "__main__":
    rotation.LIFETIME, rotation.SPREAD = (timedelta(seconds=float(value)) for value in sys.argv[1:3])
    rotation.issue = partial(rotation.issue, lifetime=rotation.LIFETIME)
    del sys.argv[1:3]
    main()

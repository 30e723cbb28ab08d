"""`python -m rbi` is the command `rbi`."""

import sys

from rbi.cli import main

sys.exit(main())

"""`python -m rotrnn` is the command `rotrnn`."""

import sys

from rotrnn.cli import main

sys.exit(main())

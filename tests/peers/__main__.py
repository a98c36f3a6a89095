"""Runs Apache's servers and admin tool by hand: python -m tests.peers --help"""

import sys

from tests.peers.apache import main

sys.exit(main())

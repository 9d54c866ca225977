"""make tables, make dashboard: everything generated, from recorded rows."""

import sys

from attnrepro.app.report import main

if __name__ == "__main__":
    sys.exit(main())

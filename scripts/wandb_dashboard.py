"""make wandb-dashboard: a saved workspace and a report, from code."""

import sys

from attnrepro.app.wandb_dashboard import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

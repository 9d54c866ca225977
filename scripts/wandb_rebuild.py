"""make wandb-rebuild: the whole project in Weights & Biases from recorded rows."""

import sys

from attnrepro.app.wandb_rebuild import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

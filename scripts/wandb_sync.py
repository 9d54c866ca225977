"""make wandb-sync: runs that Weights & Biases has not got yet."""

import sys

from attnrepro.app.wandb_sync import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

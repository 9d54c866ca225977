"""Entry, precheck, running, tracking and reporting; nothing here imports torch, lightning or wandb when imported."""

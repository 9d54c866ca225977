"""Lightning lives here: the trainer, measurement modules, exact sums, callbacks."""

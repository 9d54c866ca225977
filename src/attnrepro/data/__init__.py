"""Where random numbers and data come from."""

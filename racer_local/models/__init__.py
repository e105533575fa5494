"""Which models there are: here, in the stores of other programs, on the hub."""

"""What decode steps cost here, and which are computed exactly."""

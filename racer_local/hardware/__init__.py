"""What this machine is, has, and can hold."""

"""Files that several processes share. Standard library and NumPy."""

"""Model files, read in Python before native code sees them."""

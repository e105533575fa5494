"""Where a target and a drafter meet: the decode loop, and text in and out."""

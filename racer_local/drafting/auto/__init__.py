"""Drafts what pays: estimates, planner and guard. Pure, but for the store of rows."""

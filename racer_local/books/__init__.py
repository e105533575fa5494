"""Phrase books: text of the user, prepared to draft from."""

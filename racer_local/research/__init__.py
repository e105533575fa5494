"""Tools that fit weights and measure methods. Not part of the installed package."""

"""Questions to begin with. Layer: pure."""

from __future__ import annotations

__all__ = ["CHANGE_CODE", "EXAMPLES"]

# To change something is to write most of it again: what guesses are good for.
CHANGE_CODE = """\
Rename the function total to sum_of_prices in this code and show the whole code:
```python
def total(prices):
    result = 0
    for price in prices:
        result = result + price
    return result

def average(prices):
    if len(prices) == 0:
        return 0
    return total(prices) / len(prices)

def report(prices):
    print("Number of prices:", len(prices))
    print("Total of prices:", total(prices))
    print("Average of prices:", average(prices))
```"""

EXAMPLES = (
    (
        "Correct a text",
        "Correct the spelling and return the whole text: Their are many reason why "
        "cats sleeps so much. Cats is hunters, and hunters needs rest. A cat who sleep fourteen "
        "hour are a healthy cat.",
    ),
    ("Change some code", CHANGE_CODE),
    ("Explain something", "Explain in simple words why the sky is blue."),
    ("Write a story", "Write a short story about a robot who learns to paint."),
)

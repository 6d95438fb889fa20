"""Limits that we set ourselves, and how figures are printed beside them."""


class Budget:
    """The most, or the least, that ours may be: as a ratio to something else, or in itself."""
    def __init__(self, most=None, least=None):
        self.most, self.least = most, least

    def __str__(self):
        return f"≤ {self.most:,g}" if self.most is not None else f"≥ {self.least:,g}"

    def met(self, value):
        value = round(value, 2)  # as it is printed
        return value <= self.most if self.most is not None else value >= self.least


def verdict(budget, value):
    return "" if budget is None else "met" if budget.met(value) else "**missed**"


def shown(value, unit):
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{number} {unit}" if unit != "/s" else f"{number}/s"

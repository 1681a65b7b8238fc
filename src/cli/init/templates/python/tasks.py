"""Task types of this project: an order is packed in parallel, and gets a receipt."""

from kafleet import App, Context, Fail, Joined

app = App()

PRICES = {"cups": 1200, "tea": 450}
"""Prices in cents."""


@app.task
def order(cx: Context, customer: str, items: list[str]) -> int:
    """Packs each item in a task of its own, and has a receipt written at the end."""
    for number, item in enumerate(items):
        cx.spawn(pack.using(id=f"{number}", name=item), item)
    cx.then(receipt, customer=customer)
    return len(items)


@app.task(retries=3, timeout="30s")
def pack(cx: Context, item: str) -> int:
    """Packs one item and returns its price."""
    if item not in PRICES:
        raise Fail(f"there is no {item}", kind="unknown_item")  # Not retried.
    if cx.number == 1:
        # Shows a retry: any other exception leads to the next attempt, after a second.
        raise ConnectionError("the warehouse does not answer")
    print("packing", item)  # Goes to the log of the task.
    return PRICES[item]


@app.task
def receipt(cx: Joined[int], customer: str) -> str:
    """Adds up the prices, when all items of an order have been packed."""
    total = sum(result.output or 0 for result in cx.results)
    return f"{customer} pays {total / 100:.2f}"


@app.schedule("0 7 * * MON-FRI", zone="Europe/Berlin")
@app.task
def report() -> str:
    """Reports the stock, on a schedule."""
    return f"{len(PRICES)} items are for sale"

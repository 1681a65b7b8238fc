"""Counts the prime numbers below a limit, in parts on many processes."""

from kafleet import App, Context, Joined

app = App()


@app.task
def count_primes(cx: Context, limit: int, parts: int = 20) -> None:
    """Counts the primes below a limit: a child for each part, and their sum when all have ended."""
    step = max(1, -(-limit // parts))
    for first in range(0, limit, step):
        end = min(first + step, limit)
        cx.spawn(count_part.using(id=f"{first}", name=f"{first} to {end - 1}"), first, end)
    cx.then(add)


@app.task(timeout="5m")
def count_part(cx: Context, first: int, end: int) -> int:
    """Counts the primes from `first` to below `end`."""
    count = 0
    for number in range(max(first, 2), end):
        if number % 1000 == 0:
            cx.check()  # Ends the attempt if the task is cancelled.
        count += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return count


@app.task
def add(cx: Joined[int]) -> int:
    """Adds the counts of the parts."""
    return sum(result.output or 0 for result in cx.results)

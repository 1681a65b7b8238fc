"""App of the measured rate."""

from kafleet import App

app = App()


@app.task
def double(x: int) -> int:
    return x * 2

"""App of the measured rate."""

from kafleet import App

app = App()


@app.task
async def adouble(x: int) -> int:
    return x * 2

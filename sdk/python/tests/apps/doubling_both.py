"""App of the measured rate, with both kinds of handlers."""

from kafleet import App

app = App()


@app.task
def double(x: int) -> int:
    return x * 2


@app.task
async def adouble(x: int) -> int:
    return x * 2

"""kafleet: tasks on Kafka, written in Python."""

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        "kafleet needs Python 3.11 or newer: this is Python %s at `%s`; hint: use another virtual environment"
        % (sys.version.split()[0], sys.executable)
    )

from .app import App
from .context import Context, Ended, Joined, current
from .declare import Bundle
from .errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TaskFailed, Unavailable
from .outcomes import Cancelled, Dead, Duration, Fail, Outcome, Retry, SpawnFailed, Unsuccessful, Wait
from .settings import Policy
from .task import Call, DeclarationError, Options, Params, Remote, Submittable, Task
from .version import VERSION as __version__

__all__ = [
    "ApiError", "App", "Bundle", "Call", "Cancelled", "Conflict", "Context", "Dead", "DeclarationError", "Duration", "Ended",
    "Fail", "Forbidden", "Invalid", "Joined", "NotFound", "Options", "Outcome", "Params", "Policy", "Remote",
    "Retry", "SpawnFailed", "Submittable", "Task", "TaskFailed", "Unavailable", "Unsuccessful", "Wait",
    "__version__", "current",
]  # fmt: skip

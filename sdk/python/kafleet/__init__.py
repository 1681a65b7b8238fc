"""kafleet: tasks on Kafka, written in Python."""

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        "kafleet needs Python 3.11 or newer: this is Python %s at `%s`; hint: use another virtual environment"
        % (sys.version.split()[0], sys.executable)
    )

from .app import App
from .call import Call, Options
from .canvas import Chain, External, Group, chain, chord, group
from .context import Context, current
from .declare import Bundle
from .errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TaskFailed, Unavailable
from .handle import GroupHandle, Handle
from .joined import Ended, Joined
from .outbox import OutboxStatement, outbox_statement
from .outcomes import Cancelled, Dead, Duration, Fail, Outcome, Retry, SoftTimeout, SpawnFailed, Unsuccessful, Wait
from .params import UPSTREAM, Upstream
from .settings import Policy
from .status import Status
from .task import DeclarationError, Params, Remote, Submittable, Task
from .version import VERSION as __version__

__all__ = [
    "UPSTREAM", "ApiError", "App", "Bundle", "Call", "Cancelled", "Chain", "Conflict", "Context", "Dead", "DeclarationError",
    "Duration", "Ended", "External", "Fail", "Forbidden", "Group", "GroupHandle", "Handle", "Invalid", "Joined", "NotFound",
    "Options", "OutboxStatement", "Outcome", "Params", "Policy", "Remote", "Retry", "SoftTimeout", "SpawnFailed", "Status",
    "Submittable", "Task", "TaskFailed", "Unavailable", "Unsuccessful", "Upstream", "Wait", "__version__", "chain", "chord",
    "current", "group", "outbox_statement",
]  # fmt: skip

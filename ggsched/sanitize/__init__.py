"""The checker: decides from a plan or a trace alone whether everything is in order.

Both become one stream of events, over which each rule is written once. The checker shares no code
with the passes that make plans and none with the executor that runs them.
"""

from ggsched.sanitize.check import DEFAULT_RUNS, check_plan, check_trace
from ggsched.sanitize.report import Finding, Report, Touch

__all__ = ["DEFAULT_RUNS", "Finding", "Report", "Touch", "check_plan", "check_trace"]

"""How this plug-in waits: OpenCL has no timeouts."""

from typing import Final

from ggsched.backend.queued.polling import Polling

# Short, since a device that is a processor needs it for threads of its own.
POLLING: Final = Polling(spin_s=60e-6, share=1 / 16)

"""How this plug-in waits: the driver has no timeouts."""

from typing import Final

from ggsched.backend.queued.polling import Polling

# A few decoding steps long; the processor has nothing else to do meanwhile.
POLLING: Final = Polling(spin_s=5e-3, share=1 / 64)

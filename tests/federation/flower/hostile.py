"""A server in the place of a SuperLink, which does as it likes."""

import gzip
import http.server
import ssl
import threading
from collections.abc import Iterator

from veracal.federation.flower.wire import flower

BOMB = gzip.compress(bytes(20_000_000))


class Hostile(http.server.BaseHTTPRequestHandler):
    """Responds to calls of a mode's choice; to others as a SuperLink would.

    ``mode`` names one of the methods below, ``only`` the calls that it is for (all of them if
    it is empty), ``letters`` what is handed out to nodes, and ``visits`` what was called.
    """

    mode, only, elsewhere = "proper", "", ""
    letters: list
    pieces: dict
    visits: list
    pushed: list
    flooded: list

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.visits.append(self.path.rpartition("/")[2])
        mode = self.mode if self.visits[-1].startswith(self.only) else "proper"
        try:
            getattr(self, mode)(body)
        except OSError:
            self.close_connection = True

    def respond(self, content: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def proper(self, body):
        self.respond(self.answer(self.visits[-1], body).SerializeToString())

    def answer(self, call: str, body: bytes):
        fleet, message = flower().fleet, flower().message
        if call == "activate-node":
            return fleet.ActivateNodeResponse(node_id=7)
        if call == "pull-messages" and self.letters:
            proto, tree, pieces = self.letters.pop(0)
            self.pieces.update(pieces)
            return fleet.PullMessagesResponse(
                messages_list=[proto], message_object_trees=[tree] if tree else []
            )
        if call == "pull-object":
            name = message.PullObjectRequest.FromString(body).object_id
            content = self.pieces.get(name, b"")
            return message.PullObjectResponse(
                object_found=name in self.pieces, object_available=True, object_content=content
            )
        if call == "push-messages":
            self.pushed.append(fleet.PushMessagesRequest.FromString(body))
        return fleet.PullMessagesResponse()  # empty: a fair response to whatever else there is

    def astray(self, _):
        self.respond(b"", 307, location=self.elsewhere)

    def bomb(self, _):
        self.respond(BOMB, content_encoding="gzip")

    def flood(self, _):
        self.send_response(200)
        self.end_headers()
        while True:
            self.flooded.append(self.wfile.write(bytes(65_536)))

    def noise(self, _):
        self.respond(b"\xff" * 100)

    def failure(self, _):
        self.respond(b"an essay on failure", 500)

    def unsigned(self, _):
        self.respond(b"", 401)

    def hang_up(self, _):
        self.close_connection = True

    def log_message(self, *_):
        pass


def hostile_class() -> type[Hostile]:
    """A separate class without recorded messages."""
    fresh = {"letters": [], "pieces": {}, "visits": [], "pushed": [], "flooded": []}
    return type("Fresh", (Hostile,), fresh)


def served(files, handler) -> Iterator[str]:
    """Address of a server, for as long as it is needed."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.handle_error = lambda *_: None  # clients that do not trust the server hang up
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()

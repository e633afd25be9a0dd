"""Receives webhooks and verifies them with the official packages: webhook_receiver.py PORT.

POST /hook/NAME is what a webhook's address leads to; every request is kept as it came. PUT /set/NAME says with which
secrets it is verified and what it is answered; GET /seen/NAME gives what came. PORT 0 is any free one.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import standardwebhooks

client = openai.OpenAI(api_key="none-is-needed")
lock = threading.Lock()
hooks = {}


def hook(name):
    # `answers` are given one after the other, then `answer` for ever.
    fresh = {"secrets": [], "answers": [], "answer": 204, "location": None, "seen": []}
    return hooks.setdefault(name, fresh)


def verified(secret, headers, body):
    """None when the official package takes it, or why it does not."""
    try:
        parsed = standardwebhooks.Webhook(secret).verify(body, headers)
        assert parsed == json.loads(body), parsed
    except standardwebhooks.WebhookVerificationError as error:
        return str(error)
    return None


def unwrapped(secret, headers, body):
    """What OpenAI's own package makes of it: the type's name, and what of the event it knows."""
    try:
        event = client.webhooks.unwrap(body, headers, secret=secret)
    except openai.InvalidWebhookSignatureError as error:
        return {"error": str(error)}
    # The package itself takes whatever comes: here nothing that its type has may be missing or of another type.
    strict = type(event).model_validate(json.loads(body), strict=True)
    known = {"id": strict.id, "created_at": strict.created_at, "type": strict.type, "data_id": strict.data.id}
    return {"kind": type(event).__name__, **known}


def kept(settings, path, headers, body, answered):
    secrets = settings["secrets"]
    why = [verified(secret, headers, body) for secret in secrets]
    event = {"path": path, "headers": headers, "body": body, "why": why, "answered": answered, "openai": None}
    kind = json.loads(body)["type"]
    # OpenAI has no event for progress.
    if secrets and kind.startswith("batch.") and kind != "batch.progress":
        event["openai"] = unwrapped(secrets[0], headers, body)
    return event


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("content-length", 0))).decode()

    def answer(self, status, value=None, location=None):
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if location:
            self.send_header("location", location)
        if status != 204:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def name(self):
        return self.path.split("/")[2]

    def do_POST(self):
        body = self.body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        with lock:
            settings = hook(self.name())
            status = settings["answers"].pop(0) if settings["answers"] else settings["answer"]
            settings["seen"].append(kept(settings, self.path, headers, body, status))
        self.answer(status, location=settings["location"])

    def do_PUT(self):
        with lock:
            hook(self.name()).update(json.loads(self.body()))
        self.answer(200, {})

    def do_GET(self):
        # A redirect that was followed with another method would be here.
        if not self.path.startswith("/seen/"):
            with lock:
                hook(self.name())["seen"].append({"path": self.path, "method": "GET"})
            return self.answer(204)
        with lock:
            seen = list(hook(self.name())["seen"])
        self.answer(200, seen)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(f"The receiver is ready on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
server.serve_forever()

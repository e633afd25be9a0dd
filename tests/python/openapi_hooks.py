"""What a fuzzer of the API cannot know from its description: bodies of lines, and what there is to ask for.

Most calls with generated names end at the door: there is no such model, no such job. So that as many get further, half
of all generated texts in such a place give way to one that is there. The other half, and whatever is no text at all,
stays as it is. PENSTOCK_OPENAPI_KNOWN holds what is there:
{"model": …, "file": …, "url": …, "own_key": …, "ids": {"/v1/jobs": …, "/v1/batches": …}}
"""

import json
import os
import zlib

import schemathesis

KNOWN = json.loads(os.environ["PENSTOCK_OPENAPI_KNOWN"])
# So that a call whose answer is waited for does not fill the model's context.
MOST_TOKENS = 8


def gives_way(text):
    """Half of all texts, the same ones in every run. Long ones stay: they may be too long on purpose."""
    return isinstance(text, str) and len(text) < 100 and zlib.crc32(text.encode("utf-8", "surrogatepass")) % 2 == 0


@schemathesis.serializer("application/x-ndjson")
def to_lines(ctx, value):
    items = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(item) for item in items).encode()


@schemathesis.deserializer("application/jsonl")
def from_lines(ctx, response):
    """The description is of one line. Of no line there is nothing to say, which an empty line says."""
    lines = [json.loads(line) for line in response.content.decode().splitlines()]
    return lines[0] if lines else {"id": "", "custom_id": "", "response": None, "error": None}


def is_many(tokens):
    """Above what the description allows is wrong on purpose."""
    return type(tokens) is int and MOST_TOKENS < tokens < 2**31


def know_model(request):
    if not gives_way(request.get("model")):
        return
    request["model"] = KNOWN["model"]
    if "input" in request:
        # Vectors have no tokens to limit. Any value is a right one to the description, a text is one to the server.
        request["input"] = "Hello"
        return
    if request.get("max_completion_tokens") is None and request.get("max_tokens") is None:
        request["max_tokens"] = MOST_TOKENS
    for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
        if is_many(request.get(name)):
            request[name] = MOST_TOKENS
    # Of these the description says only that they are there: any value is a right one to it.
    if "prompt" in request:
        request["prompt"] = "Hello"
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and "content" in message:
            message["content"] = "Hello"


def know_body(body):
    for item in body if isinstance(body, list) else [body]:
        if not isinstance(item, dict):
            continue
        for request in (item, item.get("request")):
            if isinstance(request, dict):
                know_model(request)
        for place in (item, item.get("webhook")):
            if isinstance(place, dict) and gives_way(place.get("url")):
                place["url"] = KNOWN["url"]
        if gives_way(item.get("input_file_id")):
            item["input_file_id"] = KNOWN["file"]
        # The description does not say that there is at least one character.
        if item.get("sequence_key") == "":
            item["sequence_key"] = "one"


@schemathesis.hook
def filter_body(context, body):
    """In a form a list of one is sent as that one, and an empty one not at all: nobody can tell that they were lists."""
    is_form = context.operation.path == "/v1/files" and isinstance(body, dict)
    return not is_form or not any(isinstance(part, list) and len(part) < 2 for part in body.values())


@schemathesis.hook
def before_call(context, case, kwargs):
    know_body(case.body)
    prefix = case.operation.path.split("/{")[0]
    for name, text in (case.path_parameters or {}).items():
        # The key that the calls are made with stays good, though GET /v1/keys shows its id.
        if prefix in KNOWN["ids"] and (gives_way(text) or text == KNOWN["own_key"]):
            case.path_parameters[name] = KNOWN["ids"][prefix]

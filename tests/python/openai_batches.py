"""The official `openai` package makes batches: openai_batches.py ADDRESS MODEL.

Upload, create, poll, download, cancel, list with paging, delete; files and batches parse strictly into the package's
own types. Exits with 1 when a check fails; each says what it saw.
"""

import io
import json
import sys
import time

import openai
from openai.types import Batch, Completion, FileDeleted, FileObject
from openai.types.chat import ChatCompletion

ADDRESS, MODEL = sys.argv[1:3]
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
# No retries: a second try would hide what the first one answered.
client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none-is-checked", max_retries=0, timeout=300)


def equal(found, expected, what):
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"


def strictly(kind, value):
    """The package itself takes whatever comes: here nothing may be missing, unknown or of another type."""
    unknown = list(extras(kind.model_validate(value.to_dict(), strict=True)))
    assert not unknown, f"{kind.__name__} has members that the package does not know: {unknown}"
    return value


def extras(value):
    """The members that the package has no name for, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from extras(item)
    elif isinstance(value, openai.BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from extras(getattr(value, name))


def upload(lines):
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = strictly(FileObject, client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch"))
    equal((file.filename, file.bytes, file.purpose, file.status), ("in.jsonl", len(data), "batch", "processed"), "file")
    equal(client.files.content(file.id).read(), data, "the content comes back")
    equal(client.files.retrieve(file.id), file, "the file by its id")
    return file


def line(nth, url=CHATS, max_tokens=1):
    asked = {CHATS: {"messages": [{"role": "user", "content": f"{nth}"}]}, COMPLETIONS: {"prompt": f"{nth}"}}[url]
    body = {"model": MODEL, "max_tokens": max_tokens, **asked}
    return {"custom_id": f"line-{nth}", "method": "POST", "url": url, "body": body}


def create(file, endpoint=CHATS, **options):
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)
    return strictly(Batch, batch)


def left(batch, *statuses, patience=300):
    """The batch once it is in none of these."""
    begin = time.monotonic()
    while batch.status in statuses:
        assert time.monotonic() - begin < patience, f"it stays as it is: {batch}"
        time.sleep(0.2)
        batch = strictly(Batch, client.batches.retrieve(batch.id))
    return batch


def answers(file_id):
    equal(strictly(FileObject, client.files.retrieve(file_id)).purpose, "batch_output", "purpose")
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def runs(url, n_lines, kind):
    lines = [line(nth, url) for nth in range(n_lines)]
    # A bad request is its line's own affair.
    lines[7]["body"]["temperature"] = 9
    batch = create(upload(lines), url, metadata={"run": "7"})
    equal((batch.status, batch.metadata), ("validating", {"run": "7"}), "right after")
    batch = left(batch, *UNFINISHED)
    counts = batch.request_counts
    found = (batch.status, counts.total, counts.completed, counts.failed)
    equal(found, ("completed", n_lines, n_lines - 1, 1), "the end")
    output, errors = answers(batch.output_file_id), answers(batch.error_file_id)
    equal(sorted(a["custom_id"] for a in output + errors), sorted(a["custom_id"] for a in lines), "all lines, once")
    for answer in output:
        equal((answer["response"]["status_code"], answer["error"]), (200, None), "a line's end")
        equal(list(extras(kind.model_validate(answer["response"]["body"], strict=True))), [], "unknown members")
    [error] = errors
    found = (error["custom_id"], error["response"]["status_code"], error["response"]["body"]["error"]["param"])
    equal(found, ("line-7", 400, "temperature"), "the bad request")
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0, batch.usage


def many_completions_run():
    # Their prompts are a few tokens long, those of chats thirty.
    runs(COMPLETIONS, 1_000, Completion)


def chats_run():
    runs(CHATS, 20, ChatCompletion)


def a_wrong_file_fails_its_batch():
    batch = left(create(upload([line(1), line(1)])), *UNFINISHED)
    error = batch.errors.data[0]
    equal((batch.status, error.code, error.line), ("failed", "duplicate_custom_id", 2), "a custom_id given twice")


def a_batch_is_cancelled():
    batch = left(create(upload([line(nth, max_tokens=400) for nth in range(200)])), "validating")
    equal(batch.status, "in_progress", "before the cancel")
    batch = strictly(Batch, client.batches.cancel(batch.id))
    assert batch.status in ("cancelling", "cancelled"), batch
    batch = left(batch, *UNFINISHED)
    counts = batch.request_counts
    equal((batch.status, counts.total, counts.completed + counts.failed), ("cancelled", 200, 200), "after the cancel")
    errors = answers(batch.error_file_id)
    equal({answer["error"]["code"] for answer in errors}, {"batch_cancelled"}, "why there is no answer")
    equal(len(errors), counts.failed, "lines without an answer")


def lists_have_pages():
    files = [upload([line(nth)]) for nth in range(3)]
    batches = [create(file) for file in files]
    for kind, made, pages in (
        (Batch, batches, client.batches.list(limit=2)),
        (FileObject, files, client.files.list(purpose="batch", limit=2, order="desc")),
    ):
        listed = [strictly(kind, item).id for item in pages]
        equal(listed[:3], [item.id for item in reversed(made)], f"{kind.__name__}: newest first, through pages")
        # The three of this check, and one of each check before.
        equal((len(listed), len(set(listed))), (7, 7), f"{kind.__name__}: each is listed once")
    for batch in batches:
        left(batch, *UNFINISHED)
    deleted = strictly(FileDeleted, client.files.delete(files[0].id))
    equal((deleted.id, deleted.deleted), (files[0].id, True), "a deletion")
    try:
        client.files.retrieve(files[0].id)
        raise AssertionError("a deleted file is there")
    except openai.NotFoundError as error:
        equal(error.code, "file_not_found", "a deleted file")


for check in (many_completions_run, chats_run, a_wrong_file_fails_its_batch, a_batch_is_cancelled, lists_have_pages):
    begin = time.monotonic()
    check()
    print(f"ok  {check.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)

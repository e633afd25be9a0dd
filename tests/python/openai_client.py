"""The official `openai` package against a running server: openai_client.py answers|full-queue ADDRESS MODEL GOLDEN.

`answers` checks everything but a full queue; `full-queue` expects a server that takes one interactive job at a time.
Exits with 1 when a check fails; each says what it saw.
"""

import asyncio
import json
import sys
import time
import traceback
import uuid

import openai

MODE, ADDRESS, MODEL, GOLDEN = sys.argv[1:5]
# No retries: a second try would hide what the first one answered.
OPTIONS = {"base_url": f"{ADDRESS}/v1", "api_key": "none-is-checked", "max_retries": 0, "timeout": 300}
client = openai.OpenAI(**OPTIONS)

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def equal(found, expected, what):
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"


def user(text):
    return [{"role": "user", "content": text}]


def chat(text, **options):
    return client.chat.completions.create(model=MODEL, messages=user(text), **{"temperature": 0, **options})


def complete(prompt, **options):
    return client.completions.create(model=MODEL, prompt=prompt, **{"temperature": 0, **options})


def golden(name):
    with open(GOLDEN, encoding="utf-8") as lines:
        return next(line for line in map(json.loads, lines) if line["name"] == name)


@check
def models():
    listed = client.models.list().data
    assert MODEL in [model.id for model in listed], f"models.list: {listed}"
    model = client.models.retrieve(MODEL)
    equal((model.id, model.object, model.owned_by), (MODEL, "model", "penstock"), "models.retrieve")
    assert abs(model.created - time.time()) < 3_600, f"models.retrieve: created {model.created}"


@check
def a_chat():
    answer = chat("What is the capital of France? Answer in one word.", max_tokens=16)
    equal(answer.object, "chat.completion", "object")
    equal(answer.model, MODEL, "model")
    assert answer.id.startswith("chatcmpl-"), answer.id
    [choice] = answer.choices
    equal((choice.index, choice.message.role, choice.finish_reason), (0, "assistant", "stop"), "the choice")
    assert "Paris" in choice.message.content, choice.message.content
    usage = answer.usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total tokens")
    equal(answer.system_fingerprint, client.models.retrieve(MODEL).release[:12], "system_fingerprint")


@check
def max_tokens_ends_an_answer():
    for name in ("max_tokens", "max_completion_tokens"):
        answer = chat("Write a long story about the sea.", **{name: 5})
        equal(answer.usage.completion_tokens, 5, f"completion tokens with {name}=5")
        equal(answer.choices[0].finish_reason, "length", f"finish_reason with {name}=5")


@check
def a_stop_string_is_not_shown():
    whole = chat("Count from one to ten in words.", max_tokens=24).choices[0].message.content
    stop = whole[10:14]
    assert len(stop) == 4, f"too short an answer: {whole!r}"
    answer = chat("Count from one to ten in words.", max_tokens=24, stop=[stop, "never said"])
    equal(answer.choices[0].message.content, whole[: whole.index(stop)], f"the answer before {stop!r} of {whole!r}")
    equal(answer.choices[0].finish_reason, "stop", "finish_reason")


@check
def a_seed_fixes_the_answer():
    def told(seed):
        return chat("Invent a name for a ship.", max_tokens=16, temperature=1.2, seed=seed).choices[0].message.content

    first = told(7)
    equal(told(7), first, "the answer with the same seed")
    others = [told(seed) for seed in (8, 9, 10)]
    assert any(other != first for other in others), f"four seeds gave the same: {first!r}"


@check
def several_answers():
    told = chat("Invent a name for a ship.", max_tokens=12, temperature=1.2, seed=5, n=3)
    equal([choice.index for choice in told.choices], [0, 1, 2], "index")
    texts = [choice.message.content for choice in told.choices]
    alone = chat("Invent a name for a ship.", max_tokens=12, temperature=1.2, seed=5)
    equal(texts[0], alone.choices[0].message.content, "the first answer with and without others")
    assert len(set(texts)) > 1, texts
    equal(told.usage.prompt_tokens, alone.usage.prompt_tokens, "the prompt counts once")
    streamed = [""] * 3
    for chunk in chat("Invent a name for a ship.", max_tokens=12, temperature=1.2, seed=5, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    equal(streamed, texts, "the deltas joined")


@check
def penalties_and_biases():
    def words(**options):
        return complete("one two one two one two one two", max_tokens=16, **options)

    plain = words().choices[0]
    equal(words(presence_penalty=0, frequency_penalty=0, logit_bias={}).choices[0].text, plain.text, "off")
    assert words(frequency_penalty=2, presence_penalty=2).choices[0].text != plain.text, plain.text
    assert words(extra_body={"repetition_penalty": 1.5}).choices[0].text != plain.text, plain.text
    [first] = complete("one two one two", max_tokens=1, logit_bias={"0": 100}, logprobs=0).choices
    equal(first.logprobs.text_offset, [0], "one token")
    equal(first.text, complete([0], max_tokens=1, logit_bias={"0": 100}).choices[0].text, "the token with the bias")


@check
def chat_logprobs():
    answer = chat("What is the capital of France? Answer in one word.", max_tokens=16, logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    equal(len(tokens), answer.usage.completion_tokens, "one entry per token")
    for token in tokens:
        equal(len(token.top_logprobs), 3, "top_logprobs")
        likely = [top.logprob for top in token.top_logprobs]
        assert likely == sorted(likely, reverse=True) and likely[0] <= 0, f"best first: {token}"
        equal((token.token, token.logprob), (token.top_logprobs[0].token, likely[0]), "greedy takes the likeliest")
    *words, end = tokens
    equal((end.token, end.bytes), ("<|im_end|>", None), "the token that ends the answer stands for no text")
    equal("".join(token.token for token in words), answer.choices[0].message.content, "the tokens joined")
    text = b"".join(bytes(token.bytes) for token in words).decode()
    equal(text, answer.choices[0].message.content, "the tokens' bytes joined")
    assert chat("Say hello.", max_tokens=2).choices[0].logprobs is None, "no log-probabilities unless asked for"


@check
def completions_take_text_and_tokens():
    line = golden("several_turns")
    by_text = complete(line["rendered"], max_tokens=12)
    by_tokens = complete(line["prompt_ids"], max_tokens=12)
    equal((by_text.object, by_text.id[:5]), ("text_completion", "cmpl-"), "object and id")
    equal(by_text.usage.prompt_tokens, len(line["prompt_ids"]), "prompt tokens of the text")
    equal(by_tokens.choices[0].text, by_text.choices[0].text, "the answer by tokens and by text")
    answer = client.chat.completions.create(model=MODEL, messages=line["messages"], temperature=0, max_tokens=12)
    equal(answer.choices[0].message.content, by_text.choices[0].text, "the answer by chat and by its rendered prompt")
    equal(answer.usage.prompt_tokens, len(line["prompt_ids"]), "prompt tokens of the chat")


@check
def completion_logprobs():
    answer = complete("The sun rises in the", max_tokens=6, logprobs=2)
    shown, [choice] = answer.choices[0].logprobs, answer.choices
    lengths = [len(shown.tokens), len(shown.token_logprobs), len(shown.top_logprobs), len(shown.text_offset)]
    equal(lengths, [answer.usage.completion_tokens] * 4, "one entry per token in each list")
    for token, logprob, top in zip(shown.tokens, shown.token_logprobs, shown.top_logprobs):
        equal(top[token], logprob, f"the chosen token {token!r} among the likely ones")
        assert len(top) in (1, 2, 3) and max(top.values()) == logprob <= 0, f"{token!r}: {logprob}, {top}"
    equal("".join(shown.tokens), choice.text, "the tokens joined")
    starts = [len("".join(shown.tokens[:nth])) for nth in range(len(shown.tokens))]
    equal(shown.text_offset, starts, "where each token begins")


@check
def an_echo_scores_the_prompt():
    prompt = "The capital of France is"
    scored = complete(prompt, echo=True, max_tokens=0, logprobs=1)
    choice, logprobs = scored.choices[0], scored.choices[0].logprobs
    equal((choice.text, choice.finish_reason), (prompt, "length"), "echo")
    equal(scored.usage.completion_tokens, 0, "echo, tokens generated")
    n = scored.usage.prompt_tokens
    equal([len(each) for each in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs)], [n] * 3, "echo, lengths")
    equal((logprobs.token_logprobs[0], logprobs.top_logprobs[0]), (None, None), "echo, the first token")
    assert all(-30 < value <= 0 for value in logprobs.token_logprobs[1:]), f"echo: {logprobs.token_logprobs}"
    equal("".join(logprobs.tokens), prompt, "echo, tokens joined")
    equal([prompt[at:].startswith(token) for at, token in zip(logprobs.text_offset, logprobs.tokens)], [True] * n, "echo, offsets")
    # What is generated and then given has the same log-probability both ways.
    both = complete(prompt, echo=True, max_tokens=1, logprobs=1)
    equal(both.choices[0].logprobs.token_logprobs[:n], logprobs.token_logprobs, "echo with an answer")
    generated = both.choices[0].logprobs
    again = complete(both.choices[0].text, echo=True, max_tokens=0, logprobs=1).choices[0].logprobs
    equal((again.tokens[-1], again.token_logprobs[-1]), (generated.tokens[-1], generated.token_logprobs[-1]), "echo of an answer")
    equal(complete(prompt, echo=True, max_tokens=0).choices[0].logprobs, None, "echo without logprobs")


@check
def prompt_logprobs_of_a_chat():
    answer = chat("Hi", max_tokens=1, extra_body={"prompt_logprobs": 2})
    scores = answer.model_extra["prompt_logprobs"]
    equal((len(scores), scores[0]), (answer.usage.prompt_tokens, None), "prompt_logprobs")
    for score in scores[1:]:
        ranks = sorted(entry["rank"] for entry in score.values())
        assert ranks[:2] == [1, 2] and len(ranks) in (2, 3), f"prompt_logprobs: {score}"


def vector_of(text, **options):
    return client.embeddings.create(model=MODEL, input=text, **options).data[0].embedding


@check
def embeddings():
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Quarterly revenue fell by 3 %."] * 7
    answer = client.embeddings.create(model=MODEL, input=texts)
    equal([(each.index, each.object) for each in answer.data], [(n, "embedding") for n in range(21)], "embeddings")
    equal((answer.object, answer.model), ("list", MODEL), "embeddings")
    vectors = [each.embedding for each in answer.data]
    equal(vectors[:3], vectors[3:6], "equal texts, equal vectors")
    equal([vector_of(text) for text in texts[:3]], vectors[:3], "vectors of texts alone")
    # The package asks for base64 by itself; numbers must be the same ones.
    equal(vector_of(texts[0], encoding_format="float"), vectors[0], "encoding_format float")
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert all(abs(dot(vector, vector) - 1) < 1e-5 for vector in vectors), "vectors are one long"
    mean = client.embeddings.create(model=MODEL, input=texts[:3], extra_body={"pooling": "mean"})
    mean = [each.embedding for each in mean.data]
    assert dot(mean[0], mean[1]) > dot(mean[0], mean[2]), "what means alike is nearer"
    whole, part = vectors[0], vector_of(texts[0], dimensions=64)
    length = dot(whole[:64], whole[:64]) ** 0.5
    assert len(part) == 64 and all(abs(x - y / length) < 1e-5 for x, y in zip(part, whole)), "dimensions"
    refused(openai.BadRequestError, 400, "dimensions", "invalid_request", lambda: vector_of("x", dimensions=100_000), "too wide")
    longer = "word " * 40_000
    call = lambda: client.embeddings.create(model=MODEL, input=["a", longer])
    refused(openai.BadRequestError, 400, "input[1]", "context_length_exceeded", call, "too long")


def spent(usage):
    """The tokens of a call, but for how many were found in the cache: the same call again finds more."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def joined_chat(chunks, whole):
    """The chunks of a streamed chat that asked for usage, checked against the same answer in one piece."""
    equal({(chunk.id, chunk.created, chunk.object) for chunk in chunks},
          {(chunks[0].id, chunks[0].created, "chat.completion.chunk")}, "id, time and object of all chunks")
    *content, last = chunks
    equal((last.choices, spent(last.usage)), ([], spent(whole.usage)), "the last chunk has the usage and no choice")
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in content), content
    equal(content[0].choices[0].delta.role, "assistant", "the first chunk's role")
    reasons = [chunk.choices[0].finish_reason for chunk in content]
    equal(reasons, [None] * (len(reasons) - 1) + [whole.choices[0].finish_reason], "finish_reason of the chunks")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in content)
    equal(text, whole.choices[0].message.content, "the deltas joined")


STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@check
def a_response_format_is_kept():
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "capital": {"type": "boolean"}},
        "required": ["city", "capital"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
    answer = chat("What is the capital of France? Answer with JSON.", response_format=form, max_tokens=100).choices[0]
    equal(answer.finish_reason, "stop", "response_format: finish_reason")
    value = json.loads(answer.message.content)
    equal(list(value), ["city", "capital"], "response_format: keys")
    assert isinstance(value["capital"], bool) and isinstance(value["city"], str), f"response_format: {value}"
    some = chat("A JSON object with one key, please.", response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert some.finish_reason == "length" or isinstance(json.loads(some.message.content), dict), f"json_object: {some}"
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=user("Is water wet?"),
        stream=True,
        extra_body={"guided_choice": ["certainly", "hardly"]},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text in ("certainly", "hardly"), f"guided_choice: {text!r}"
    text = complete("The year is ", max_tokens=10, extra_body={"guided_regex": "(19|20)[0-9]{2}"}).choices[0].text
    assert len(text) == 4 and text.isdigit() and text[:2] in ("19", "20"), f"guided_regex: {text!r}"


@check
def a_streamed_chat():
    options = {"max_tokens": 24, "logprobs": True, "top_logprobs": 1}
    whole = chat("Write a haiku about 漢字 and 🦀.", **options)
    chunks = list(chat("Write a haiku about 漢字 and 🦀.", **options, **STREAM))
    joined_chat(chunks, whole)
    shown = [token for chunk in chunks for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content]
    equal(shown, whole.choices[0].logprobs.content, "the chunks' log-probabilities")
    without_usage = list(chat("Say hello.", max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in without_usage), "usage comes only if asked for"


@check
def a_streamed_completion():
    whole = complete("def fibonacci(n):", max_tokens=24)
    *content, last = list(complete("def fibonacci(n):", max_tokens=24, **STREAM))
    equal("".join(chunk.choices[0].text for chunk in content), whole.choices[0].text, "the texts joined")
    equal(content[-1].choices[0].finish_reason, whole.choices[0].finish_reason, "finish_reason")
    equal((last.choices, spent(last.usage)), ([], spent(whole.usage)), "the last chunk has the usage and no choice")


@check
def async_calls_at_once():
    questions = ["Name a colour.", "Name a fruit.", "Name a river.", "Name a planet."]
    alone = [chat(question, max_tokens=8) for question in questions]

    async def together():
        async with openai.AsyncOpenAI(**OPTIONS) as client:
            async def ask(question, **options):
                return await client.chat.completions.create(
                    model=MODEL, messages=user(question), temperature=0, max_tokens=8, **options)

            async def stream(question):
                return [chunk async for chunk in await ask(question, **STREAM)]

            whole = await asyncio.gather(*map(ask, questions))
            streamed = await asyncio.gather(*map(stream, questions))
            text = await client.completions.create(model=MODEL, prompt="1, 2, 3,", temperature=0, max_tokens=4)
            models = await client.models.list()
            return whole, streamed, text, models

    whole, streamed, text, models = asyncio.run(together())
    for question, one, same, chunks in zip(questions, alone, whole, streamed):
        equal(same.choices[0].message, one.choices[0].message, f"{question} among others")
        joined_chat(chunks, one)
    equal(text.choices[0].text, complete("1, 2, 3,", max_tokens=4).choices[0].text, "the completion")
    assert MODEL in [model.id for model in models.data]


def refused(kind, status, param, code, call, what):
    try:
        answer = call()
    except kind as error:
        equal((error.status_code, error.param, error.code), (status, param, code), f"{what}: status, param and code")
        assert error.body["message"] and error.type == error.body["type"], f"{what}: {error.body}"
        equal(error.request_id, error.response.headers["x-request-id"], f"{what}: request_id")
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, found {answer}")


@check
def bad_requests_name_the_field():
    def bad(param, code, text="Hi", **options):
        refused(openai.BadRequestError, 400, param, code, lambda: chat(text, **options), f"{param} {code}")

    bad("temprature", "unknown_parameter", extra_body={"temprature": 1})
    bad("temperature", "invalid_value", temperature=3)
    bad("temperature", "invalid_type", extra_body={"temperature": "hot"})
    bad("top_p", "invalid_value", top_p=0)
    bad("max_tokens", "invalid_value", max_tokens=0)
    bad("n", "invalid_value", n=9)
    bad("stop[1]", "invalid_value", stop=["a", ""])
    bad("top_logprobs", "invalid_value", top_logprobs=2)
    bad("stream_options", "invalid_value", stream_options={"include_usage": True})
    bad("tools", "unsupported_parameter", tools=[{"type": "function", "function": {"name": "f"}}])
    bad("response_format.type", "unsupported_parameter", response_format={"type": "yaml"})
    bad("guided_json.$ref", "invalid_value", extra_body={"guided_json": {"$ref": "http://localhost/"}})
    # Found out by the worker, which compiles it.
    bad("guided_json", "invalid_request", extra_body={"guided_json": {"not": {"type": "string"}}})
    bad("min_tokens", "invalid_value", extra_body={"guided_choice": ["a"], "min_tokens": 1})
    bad("messages", "invalid_value", extra_body={"messages": []})
    bad("messages", "missing_required_parameter", extra_body={"messages": None})
    bad("messages[0].role", "invalid_value", extra_body={"messages": [{"role": "wizard", "content": "Hi"}]})
    bad("messages[0].content", "missing_required_parameter", extra_body={"messages": [{"role": "user"}]})
    bad("max_tokens", "context_length_exceeded", max_tokens=10_000_000)
    bad("messages", "context_length_exceeded", text="hello " * 40_000)
    # A stream that cannot begin is an error with a status, not an event.
    bad("messages", "context_length_exceeded", text="hello " * 40_000, stream=True)

    def bad_prompt(param, code, prompt):
        refused(openai.BadRequestError, 400, param, code, lambda: complete(prompt), f"{param} {code}")

    bad_prompt("prompt", "invalid_value", [])
    bad_prompt("prompt", "unsupported_parameter", ["a", "b"])
    bad_prompt("prompt[1]", "invalid_value", [1, 10_000_000])
    bad_prompt("prompt", "context_length_exceeded", [1] * 100_000)


@check
def an_unknown_model_is_not_found():
    def missing(call, what):
        refused(openai.NotFoundError, 404, "model", "model_not_found", call, what)

    no_model = {"model": "no-such-model", "max_tokens": 1}
    missing(lambda: client.chat.completions.create(messages=user("Hi"), **no_model), "chat")
    missing(lambda: client.completions.create(prompt="Hi", **no_model), "completion")
    missing(lambda: client.models.retrieve("no-such-model"), "models.retrieve")


@check
def headers_name_release_and_request():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("Hi"), max_tokens=1)
    answer = raw.parse()
    release = client.models.retrieve(MODEL).release
    equal(raw.headers["penstock-release"], release, "penstock-release")
    assert raw.headers["x-request-id"], "x-request-id"
    equal(answer._request_id, raw.headers["x-request-id"], "_request_id")
    own = {"x-request-id": f"test-{uuid.uuid4()}"}
    raw = client.models.with_raw_response.list(extra_headers=own)
    equal(raw.headers["x-request-id"], own["x-request-id"], "a request id of the client's own")
    equal(raw.headers["penstock-release"], release, "penstock-release of models.list")


def the_job_of(run):
    jobs = client.get("/jobs", cast_to=object, options={"params": {"metadata.run": run}})["data"]
    equal(len(jobs), 1, f"jobs of run {run}")
    return jobs[0]


def is_cancelled(run, what):
    patience = time.monotonic() + 20
    while (job := the_job_of(run))["status"] in ("queued", "running"):
        assert time.monotonic() < patience, f"{what}: the job goes on: {job}"
        time.sleep(0.05)
    equal(job["status"], "cancelled", f"{what}: status of {job['id']}")


# Long enough that only a cancel ends it in time.
ENDLESS = {"max_tokens": 20_000, "extra_body": {"ignore_eos": True}}


@check
def hanging_up_cancels_the_job():
    run = str(uuid.uuid4())
    stream = chat("Count to a million.", stream=True, metadata={"run": run}, **ENDLESS)
    for _, _chunk in zip(range(3), stream):
        pass
    equal(the_job_of(run)["status"], "running", "before the client hangs up")
    stream.close()
    is_cancelled(run, "a stream")

    run = str(uuid.uuid4())
    try:
        chat("Count to a million.", metadata={"run": run}, timeout=1, **ENDLESS)
        raise AssertionError("20,000 tokens within a second")
    except openai.APITimeoutError:
        is_cancelled(run, "a call that timed out")


def full_queue():
    stream = chat("Count to a million.", stream=True, **ENDLESS)
    next(iter(stream))
    for what, call in [
        ("chat", lambda: chat("Hi", max_tokens=1)),
        ("stream", lambda: chat("Hi", max_tokens=1, stream=True)),
        ("completion", lambda: complete("Hi", max_tokens=1)),
    ]:
        error = refused(openai.RateLimitError, 429, None, "queue_full", call, what)
        equal(error.type, "rate_limit_error", f"{what}: type")
        assert int(error.response.headers["retry-after"]) >= 1, f"{what}: {error.response.headers}"
    jobs = client.get("/jobs", cast_to=object)["data"]
    equal(len(jobs), 1, "a refused call leaves no job")
    stream.close()
    # With retries, as users have them, the same call gets through once there is room.
    answer = client.with_options(max_retries=5).chat.completions.create(model=MODEL, messages=user("Hi"), max_tokens=1)
    equal(answer.usage.completion_tokens, 1, "the call that waited")


def main():
    failed = 0
    for function in {"answers": CHECKS, "full-queue": [full_queue]}[MODE]:
        begin = time.monotonic()
        try:
            function()
            print(f"ok     {function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception as error:  # Whatever it is: the other checks are still worth running.
            failed += 1
            here = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
            lines = ", ".join(str(frame.lineno) for frame in here)
            print(f"FAILED {function.__name__} (lines {lines}): {type(error).__name__}: {error}", flush=True)
    print(f"openai {openai.__version__}: {failed} failed")
    sys.exit(1 if failed else 0)


main()

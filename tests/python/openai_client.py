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


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"],
                       "additionalProperties": False},
    }},
    {"type": "function", "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                       "required": ["a", "b"], "additionalProperties": False},
    }},
]


def named(name):
    return {"type": "function", "function": {"name": name}}


def told(calls):
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls or []]


def joined_calls(chunks):
    """Message and calls of a stream, put together as OpenAI's documentation does it."""
    content, calls = "", {}
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, {"id": "", "type": "", "name": "", "arguments": ""})
                call["id"] += delta.id or ""
                call["type"] += delta.type or ""
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
    return content, [calls[index] for index in sorted(calls)]


@check
def a_forced_call_and_its_answer():
    asked = user("What is the weather in Paris?")
    answer = client.chat.completions.create(
        model=MODEL, messages=asked, tools=TOOLS, tool_choice=named("get_weather"), temperature=0, max_tokens=60)
    [choice] = answer.choices
    equal((choice.finish_reason, choice.message.content), ("tool_calls", None), "a forced call: how it ends")
    equal(told(choice.message.tool_calls), [("get_weather", {"city": "Paris"})], "a forced call")
    [call] = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_"), f"a forced call: {call}"
    # The message goes back as the package has it, and as a dict.
    for message in (choice.message, choice.message.model_dump()):
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 31, "sky": "clear"}'}
        last = client.chat.completions.create(
            model=MODEL, messages=[*asked, message, result], tools=TOOLS, temperature=0, max_tokens=60).choices[0]
        assert "31" in (last.message.content or ""), f"the answer after a call: {last}"
        equal((last.message.tool_calls, last.finish_reason), (None, "stop"), "the answer after a call calls nothing")


@check
def calls_are_required_or_not_offered():
    some = chat("What is 17 plus 25?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    equal(told(some.choices[0].message.tool_calls), [("add", {"a": 17, "b": 25})], "a required call")
    none = chat("What is 17 plus 25?", tools=TOOLS, tool_choice="none", max_tokens=40).choices[0]
    equal(none.message.tool_calls, None, "tool_choice none")
    plain = chat("What is 17 plus 25?", max_tokens=40).choices[0]
    equal(none.message.content, plain.message.content, "tool_choice none is as without functions")
    both = chat("What is 17 plus 25?", tools=TOOLS, tool_choice=named("add"), n=2, temperature=1, seed=3, max_tokens=60)
    ids = [call.id for choice in both.choices for call in choice.message.tool_calls]
    equal(len(set(ids)), 2, "each answer's calls have ids of their own")


@check
def calls_are_streamed():
    options = {"tools": TOOLS, "max_tokens": 80}
    for choice in (named("get_weather"), "required"):
        whole = chat("What is the weather in Lima?", tool_choice=choice, **options).choices[0]
        chunks = list(chat("What is the weather in Lima?", tool_choice=choice, **options, **STREAM))
        content, calls = joined_calls(chunks)
        equal([(call["name"], call["arguments"], call["type"]) for call in calls],
              [(call.function.name, call.function.arguments, call.type) for call in whole.message.tool_calls],
              "the deltas of calls joined")
        equal(content, whole.message.content or "", "the deltas of content joined")
        assert all(call["id"].startswith("call_") for call in calls), calls
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        equal(reasons, [whole.finish_reason], "finish_reason of the stream")
        assert "<tool_call>" not in content, content
    # OpenAI's own helper, which puts the deltas together and parses strict arguments.
    with client.chat.completions.stream(
        model=MODEL, messages=user("What is the weather in Lima?"), tools=strict(TOOLS), tool_choice=named("get_weather"),
        temperature=0, max_tokens=60,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds, kinds
    [call] = final.message.tool_calls
    equal((call.function.name, call.function.parsed_arguments), ("get_weather", {"city": "Lima"}), "the package's stream")


def strict(tools):
    return [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in tools]


@check
def the_model_may_call_by_itself():
    asked = "What is the weather in Oslo? Use the function."
    for options in ({"tools": TOOLS}, {"tools": strict(TOOLS)}, {"tools": TOOLS, "parallel_tool_calls": False}):
        whole = chat(asked, max_tokens=100, **options).choices[0]
        content, calls = joined_calls(list(chat(asked, max_tokens=100, stream=True, **options)))
        equal((content, [call["arguments"] for call in calls]),
              (whole.message.content or "", [call.function.arguments for call in whole.message.tool_calls or []]),
              f"the stream of {list(options)}")
        if whole.message.tool_calls:
            equal(whole.finish_reason, "tool_calls", "a call by itself")
            assert all(name == "get_weather" for name, _ in told(whole.message.tool_calls)), whole
        else:
            assert whole.message.content, f"neither text nor a call: {whole}"


@check
def typed_functions_are_parsed():
    import pydantic

    class GetWeather(pydantic.BaseModel):
        """Current weather of a city."""

        city: str
        days: int

    answer = client.chat.completions.parse(
        model=MODEL, messages=user("What will the weather in Rome be for the next 3 days?"), temperature=0, max_tokens=80,
        tools=[openai.pydantic_function_tool(GetWeather)], tool_choice="required", parallel_tool_calls=False)
    [call] = answer.choices[0].message.tool_calls
    equal(call.function.parsed_arguments, GetWeather(city="Rome", days=3), "parsed arguments")


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
    bad("tools[0].function.name", "missing_required_parameter", tools=[{"type": "function", "function": {}}])
    bad("tools[0].type", "unsupported_parameter", tools=[{"type": "custom", "custom": {"name": "f"}}])
    bad("tool_choice", "invalid_value", tool_choice="required")
    bad("response_format", "unsupported_parameter", tools=TOOLS, response_format={"type": "json_object"})
    # Found out by the worker, which compiles it.
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    bad("tools", "invalid_request", tools=[odd], tool_choice="required")
    orphan = [{"role": "user", "content": "Hi"}, {"role": "tool", "content": "x", "tool_call_id": "call_0"}]
    bad("messages[1].tool_call_id", "invalid_value", extra_body={"messages": orphan})
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

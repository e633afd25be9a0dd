// The official `openai` package makes batches: openai_batches.mjs ADDRESS MODEL, beside a node_modules with what
// package.json lists.
//
// Upload, create, poll, download, cancel, list with paging, delete; files and batches are checked strictly against the
// package's own types. Exits with 1 when a check fails; each says what it saw.

import assert from "node:assert/strict";
import { File } from "node:buffer";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import OpenAI, { toFile } from "openai";

// Node 18, which Debian 12 has, keeps it there; the package looks for it here.
globalThis.File ??= File;

const [ADDRESS, MODEL] = process.argv.slice(2);
const [CHATS, COMPLETIONS] = ["/v1/chat/completions", "/v1/completions"];
const UNFINISHED = ["validating", "in_progress", "finalizing", "cancelling"];
// No retries: a second try would hide what the first one answered.
const client = new OpenAI({ baseURL: `${ADDRESS}/v1`, apiKey: "none-is-checked", maxRetries: 0, timeout: 300_000 });

// What was answered, by the package's name for its type; the last check reads it.
const seen = { Batch: [], FileObject: [], FileDeleted: [] };

function strictly(type, value) {
  seen[type].push(value);
  return value;
}

const ids = (items) => items.map((item) => item.id);

const content = async (id) => (await client.files.content(id)).text();

async function upload(lines) {
  const data = lines.map((line) => JSON.stringify(line) + "\n").join("");
  const created = await client.files.create({ file: await toFile(Buffer.from(data), "in.jsonl"), purpose: "batch" });
  const file = strictly("FileObject", created);
  const { filename, bytes, purpose, status } = file;
  assert.deepEqual([filename, bytes, purpose, status], ["in.jsonl", data.length, "batch", "processed"]);
  assert.equal(await content(file.id), data, "the content comes back");
  assert.deepEqual(await client.files.retrieve(file.id), file, "the file by its id");
  return file;
}

function line(nth, url = CHATS, max_tokens = 1) {
  const asked = { [CHATS]: { messages: [{ role: "user", content: `${nth}` }] }, [COMPLETIONS]: { prompt: `${nth}` } };
  return { custom_id: `line-${nth}`, method: "POST", url, body: { model: MODEL, max_tokens, ...asked[url] } };
}

const lines = (n, ...options) => Array.from({ length: n }, (_, nth) => line(nth, ...options));

async function create(file, endpoint = CHATS, options = {}) {
  const asked = { input_file_id: file.id, endpoint, completion_window: "24h", ...options };
  return strictly("Batch", await client.batches.create(asked));
}

// The batch once it is in none of these.
async function left(batch, statuses, patienceMs = 300_000) {
  const begin = Date.now();
  while (statuses.includes(batch.status)) {
    assert(Date.now() - begin < patienceMs, `it stays as it is: ${JSON.stringify(batch)}`);
    await sleep(200);
    batch = strictly("Batch", await client.batches.retrieve(batch.id));
  }
  return batch;
}

async function answers(id) {
  assert.equal(strictly("FileObject", await client.files.retrieve(id)).purpose, "batch_output");
  const text = await content(id);
  return text.trimEnd().split("\n").map((line) => JSON.parse(line));
}

async function runs(url, nLines, object) {
  const asked = lines(nLines, url);
  // A bad request is its line's own affair.
  asked[7].body.temperature = 9;
  let batch = await create(await upload(asked), url, { metadata: { run: "7" } });
  assert.deepEqual([batch.status, batch.metadata], ["validating", { run: "7" }], "right after");
  batch = await left(batch, UNFINISHED);
  const counts = { total: nLines, completed: nLines - 1, failed: 1 };
  assert.deepEqual([batch.status, batch.request_counts], ["completed", counts], "the end");
  const [output, errors] = [await answers(batch.output_file_id), await answers(batch.error_file_id)];
  const names = (some) => some.map((one) => one.custom_id).sort();
  assert.deepEqual(names([...output, ...errors]), names(asked), "all lines, once");
  for (const { response, error } of output) {
    assert.deepEqual([response.status_code, response.body.object, error], [200, object, null], "a line's end");
  }
  const [{ custom_id, response }] = errors;
  const found = [custom_id, response.status_code, response.body.error.param];
  assert.deepEqual(found, ["line-7", 400, "temperature"], "the bad request");
  const { input_tokens, output_tokens, total_tokens } = batch.usage;
  assert(total_tokens > 0 && total_tokens === input_tokens + output_tokens, JSON.stringify(batch.usage));
}

async function many_completions_run() {
  // Their prompts are a few tokens long, those of chats thirty.
  await runs(COMPLETIONS, 1_000, "text_completion");
}

async function chats_run() {
  await runs(CHATS, 20, "chat.completion");
}

const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Current weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 40 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

async function functions_are_called() {
  const asked = {
    model: MODEL,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [weather],
    tool_choice: { type: "function", function: { name: "get_weather" } },
    temperature: 0,
    max_tokens: 60,
  };
  const whole = await client.chat.completions.create(asked);
  const [call] = whole.choices[0].message.tool_calls;
  const seen = [whole.choices[0].finish_reason, call.type, call.function.name];
  assert.deepEqual(seen, ["tool_calls", "function", "get_weather"]);
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
  // The package's own helper puts the deltas together.
  const stream = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(stream.choices[0].message.tool_calls[0].function.arguments, call.function.arguments, "the stream");
  // In a batch it is the same answer.
  const line = { custom_id: "calls", method: "POST", url: CHATS, body: asked };
  const batch = await left(await create(await upload([line])), UNFINISHED);
  const [{ response }] = await answers(batch.output_file_id);
  const { message, finish_reason } = response.body.choices[0];
  assert.deepEqual([message.tool_calls[0].function, finish_reason], [call.function, "tool_calls"], "the batch");
}

async function a_wrong_file_fails_its_batch() {
  const batch = await left(await create(await upload([line(1), line(1)])), UNFINISHED);
  const [error] = batch.errors.data;
  assert.deepEqual([batch.status, error.code, error.line], ["failed", "duplicate_custom_id", 2]);
}

async function a_batch_is_cancelled() {
  let batch = await left(await create(await upload(lines(200, CHATS, 400))), ["validating"]);
  assert.equal(batch.status, "in_progress", "before the cancel");
  batch = strictly("Batch", await client.batches.cancel(batch.id));
  assert(["cancelling", "cancelled"].includes(batch.status), batch.status);
  batch = await left(batch, UNFINISHED);
  const { total, completed, failed } = batch.request_counts;
  assert.deepEqual([batch.status, total, completed + failed], ["cancelled", 200, 200], "after the cancel");
  const errors = await answers(batch.error_file_id);
  assert.deepEqual(new Set(errors.map(({ error }) => error.code)), new Set(["batch_cancelled"]));
  assert.equal(errors.length, failed, "lines without an answer");
}

async function lists_have_pages() {
  const [files, batches] = [[], []];
  for (const nth of [0, 1, 2]) {
    files.push(await upload([line(nth)]));
    batches.push(await create(files[nth]));
  }
  for (const [type, made, pages] of [
    ["Batch", batches, client.batches.list({ limit: 2 })],
    ["FileObject", files, client.files.list({ purpose: "batch", limit: 2, order: "desc" })],
  ]) {
    const listed = [];
    for await (const item of pages) listed.push(strictly(type, item).id);
    assert.deepEqual(listed.slice(0, 3), ids(made).reverse(), `${type}: newest first, through pages`);
    // The three of this check, and one of each check before.
    assert.deepEqual([listed.length, new Set(listed).size], [8, 8], `${type}: each is listed once`);
  }
  for (const batch of batches) await left(batch, UNFINISHED);
  const deleted = strictly("FileDeleted", await client.files.delete(files[0].id));
  assert.deepEqual([deleted.id, deleted.deleted], [files[0].id, true], "a deletion");
  await assert.rejects(client.files.retrieve(files[0].id), (error) => {
    assert(error instanceof OpenAI.NotFoundError, `${error}`);
    assert.equal(error.code, "file_not_found");
    return true;
  });
}

async function answers_are_of_the_types_of_the_package() {
  // OpenAI's own service answers null for what is not there; these types say that it is left out.
  const literal = (value) => JSON.stringify(value, (_, member) => member ?? undefined);
  const constants = Object.entries(seen).map(
    ([type, values]) => `export const seen${type}: OpenAI.${type}[] = [\n${values.map(literal).join(",\n")}\n];\n`,
  );
  const here = (path) => fileURLToPath(new URL(path, import.meta.url));
  // Written out, because only in a literal does the compiler refuse members that the type does not know.
  writeFileSync(here("seen.ts"), `import type OpenAI from "openai";\n\n${constants.join("\n")}`);
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext"];
  const compiler = here("node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, ...options, here("seen.ts")], { stdio: "inherit" });
}

for (const check of [
  many_completions_run,
  chats_run,
  functions_are_called,
  a_wrong_file_fails_its_batch,
  a_batch_is_cancelled,
  lists_have_pages,
  answers_are_of_the_types_of_the_package,
]) {
  const begin = Date.now();
  await check();
  console.log(`ok  ${check.name} (${((Date.now() - begin) / 1_000).toFixed(1)} s)`);
}

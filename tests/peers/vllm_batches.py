"""Batches of random prompts through vLLM, one row of JSON each: what engines.py runs in a process of its own.

The rows have the meaning of `penstock bench engine`: prefill is the time until every sequence has its first token
(a run that asks for one token), decode the rest of a run that asks for all of them.
"""

import argparse
import json
import random
import time

from vllm import LLM, SamplingParams, TokensPrompt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--output-tokens", type=int)
    args = parser.parse_args()
    llm = LLM(
        model=args.model,
        dtype="bfloat16",
        # Each prompt is new anyway; nothing is to be found from the run before.
        enable_prefix_caching=False,
        max_model_len=1024,
        max_num_seqs=max(args.batch),
        max_num_batched_tokens=4096,
        disable_log_stats=True,
    )

    def timed(prompts, n_output):
        sampling = SamplingParams(temperature=0.0, max_tokens=n_output, min_tokens=n_output, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        took = time.perf_counter() - begin
        assert all(len(output.outputs[0].token_ids) == n_output for output in outputs)
        return took

    draw = random.Random(1)

    def prompts_of(batch):
        ids = [[draw.randrange(1000, 100000) for _ in range(args.prompt_tokens)] for _ in range(batch)]
        return [TokensPrompt(prompt_token_ids=prompt) for prompt in ids]

    timed(prompts_of(2), 4)
    for batch in args.batch:
        prompts = prompts_of(batch)
        # The shapes of this batch, so that nothing is compiled or allocated in what is measured.
        timed(prompts, 2)
        prefill = timed(prompts, 1)
        total = timed(prompts, args.output_tokens)
        n_prefill, n_decode = batch * args.prompt_tokens, batch * (args.output_tokens - 1)
        row = {
            "batch": batch,
            "prefill_tokens_per_s": n_prefill / prefill,
            "decode_tokens_per_s": n_decode / (total - prefill),
            "total_tokens_per_s": batch * (args.prompt_tokens + args.output_tokens) / total,
        }
        print("ROW " + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""Penstock's engine beside others on one file and one machine: alternating rounds, medians. See README.md."""

import argparse
import json
import os
import pathlib
import statistics
import sys

from peers import LLAMA, bf16_folder, bf16_gguf, cpu, model_file, penstock, run, say, vllm_environment

ENGINES = ["penstock", "llama.cpp", "llama.cpp-bf16", "vllm"]
FIGURES = ["prefill_tokens_per_s", "decode_tokens_per_s", "total_tokens_per_s"]


def arguments():
    parser = argparse.ArgumentParser(
        prog="tests/peers/engines",
        description="Penstock's engine, llama.cpp and vLLM on the same model: rounds in turn, medians of the rounds.",
        epilog="example: tests/peers/engines --batch 1,16,64 --rounds 5 --json > speed.json",
    )
    numbers = lambda text: [int(number) for number in text.split(",")]
    names = lambda text: text.split(",")
    parser.add_argument("--model", help="GGUF file of a qwen2 or llama model [default: the default model of the catalogue, pulled before]")
    parser.add_argument("--batch", type=numbers, default=[1, 4, 8, 16, 32, 64], metavar="N,...", help="batch sizes; default: 1,4,8,16,32,64")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--output-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds, each engine once in each; default: 5")
    parser.add_argument("--engines", type=names, default=ENGINES, metavar="NAME,...", help="default: " + ",".join(ENGINES))
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    args = parser.parse_args()
    if unknown := set(args.engines) - set(ENGINES):
        parser.error(f"unknown engines {', '.join(sorted(unknown))}: there are {', '.join(ENGINES)}")
    if args.rounds < 1 or args.output_tokens < 2 or args.prompt_tokens < 1 or min(args.batch) < 1:
        parser.error("rounds, batches and prompts are at least 1, outputs 2")
    return args


def measure(engine, file, args):
    batches = ",".join(map(str, args.batch))
    shape = ["--prompt-tokens", str(args.prompt_tokens), "--output-tokens", str(args.output_tokens)]
    if engine == "penstock":
        report = json.loads(run([penstock(), "bench", "engine", "--model", str(file), "--batch", batches, *shape, "--json"]))
        return report["rows"]
    if engine == "vllm":
        here = pathlib.Path(__file__).parent
        command = [sys.executable, str(here / "vllm_batches.py"), str(bf16_folder(file)), "--batch", batches, *shape]
        printed = run(command, **vllm_environment())
        return [json.loads(line[4:]) for line in printed.splitlines() if line.startswith("ROW ")]
    if engine == "llama.cpp-bf16":
        file = bf16_gguf(file)
    context = max(args.batch) * (args.prompt_tokens + args.output_tokens)
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(LLAMA / "llama-batched-bench"), "-m", str(file), "-c", str(context), "-b", "2048", "-ub", "512"]
    command += ["-npp", str(args.prompt_tokens), "-ntg", str(args.output_tokens), "-npl", batches, "-t", threads, "-tb", threads]
    rows = [json.loads(line) for line in run([*command, "--output-format", "jsonl"]).splitlines() if line.startswith("{")]
    return [
        {"batch": row["pl"], "prefill_tokens_per_s": row["speed_pp"], "decode_tokens_per_s": row["speed_tg"], "total_tokens_per_s": row["speed"]}
        for row in rows
    ]


def main():
    args = arguments()
    file = model_file(args.model)
    runs = {engine: [] for engine in args.engines}
    loads = []
    for at in range(args.rounds):
        # Another one begins each time: nobody always has the machine that the same neighbour left.
        turn = at % len(args.engines)
        for engine in args.engines[turn:] + args.engines[:turn]:
            loads.append(os.getloadavg()[0])
            rows = measure(engine, file, args)
            if [row["batch"] for row in rows] != args.batch:
                raise SystemExit(f"tests/peers/engines: {engine} gave rows for {[row['batch'] for row in rows]}")
            runs[engine].append(rows)
            say(f"round {at + 1} of {args.rounds}, {engine}: decode " + ", ".join(f"{row['decode_tokens_per_s']:.0f} at {row['batch']}" for row in rows))
    report = {
        "model": file.name,
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": args.rounds,
        "load_before_runs": loads,
        "rows": [],
    }
    for idx, batch in enumerate(args.batch):
        for engine in args.engines:
            values = {figure: [rows[idx][figure] for rows in runs[engine]] for figure in FIGURES}
            row = {"batch": batch, "engine": engine}
            for figure, seen in values.items():
                row[figure] = {"median": statistics.median(seen), "least": min(seen), "most": max(seen)}
            report["rows"].append(row)
    if args.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    print(f"{report['model']}, {report['cores']} cores of {report['cpu']}, prompts of {args.prompt_tokens} and outputs of {args.output_tokens} tokens")
    print(f"median (least to most) of {args.rounds} rounds, tokens/s")
    print(f"{'batch':>5}  {'engine':<15} {'prefill':>22} {'decode':>22} {'total':>22}")
    for row in report["rows"]:
        cells = ["{median:.0f} ({least:.0f} to {most:.0f})".format(**row[figure]) for figure in FIGURES]
        print(f"{row['batch']:>5}  {row['engine']:<15} " + " ".join(f"{cell:>22}" for cell in cells))
    others = [engine for engine in args.engines if engine != "penstock"]
    if "penstock" in args.engines and others:
        print("penstock to the best other, by medians")
        for idx, batch in enumerate(args.batch):
            of = {row["engine"]: row for row in report["rows"] if row["batch"] == batch}
            ratios = [of["penstock"][figure]["median"] / max(of[other][figure]["median"] for other in others) for figure in FIGURES]
            print(f"{batch:>5}  " + "  ".join(f"{figure.split('_')[0]} {ratio:.2f}" for figure, ratio in zip(FIGURES, ratios)))


if __name__ == "__main__":
    main()

"""Penstock's server beside llama-server and vLLM's under the same load of the same client: `penstock bench serve`."""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from peers import LLAMA, PEERS, bf16_folder, cpu, model_file, penstock, run, say, vllm_environment

SERVERS = ["penstock", "llama-server", "vllm"]
SLOTS = 16


def arguments():
    parser = argparse.ArgumentParser(
        prog="tests/peers/serving",
        description="Penstock, llama-server and vLLM one after the other under the same streaming requests; medians of the rounds.",
        epilog="example: tests/peers/serving --rounds 3 --rate 0.6",
    )
    parser.add_argument("--model", help="GGUF file [default: the default model of the catalogue, pulled before]")
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="requests of a row; default: 64")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="clients at once; default: 16")
    parser.add_argument("--rate", type=float, metavar="R", help="a second row: Poisson arrivals, requests per second")
    parser.add_argument("--prompt-words", type=int, default=100, metavar="N", help="words of a prompt; default: 100")
    parser.add_argument("--output-tokens", type=int, default=64, metavar="N", help="tokens of an answer; default: 64")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, each server once in each; default: 3")
    parser.add_argument("--servers", type=lambda text: text.split(","), default=SERVERS, metavar="NAME,...", help="default: " + ",".join(SERVERS))
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    args = parser.parse_args()
    if unknown := set(args.servers) - set(SERVERS):
        parser.error(f"unknown servers {', '.join(sorted(unknown))}: there are {', '.join(SERVERS)}")
    return args


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(server, file, args):
    """The server's address, once it answers; it is gone afterwards."""
    port = free_port()
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if server == "penstock":
            command = [penstock(), "serve", "--model", str(file), "--listen", f"127.0.0.1:{port}", "--data-dir", folder]
            environment["PENSTOCK_ENGINE__MAX_SEQUENCES"] = str(SLOTS)
        elif server == "llama-server":
            # Each slot has its part of the context; no prompt is new to a cache that keeps it, so it keeps none.
            context = SLOTS * 1024
            command = [str(LLAMA / "llama-server"), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), "-np", str(SLOTS), "-c", str(context)]
            command += ["-t", str(len(os.sched_getaffinity(0))), "--cache-ram", "0"]
        else:
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(bf16_folder(file)), "--served-model-name", "model"]
            command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", str(SLOTS)]
            command += ["--no-enable-prefix-caching"]
            environment |= vllm_environment()
        with open(PEERS / "serving.log", "a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            patience = time.monotonic() + 600
            while True:
                if process.poll() is not None or time.monotonic() > patience:
                    raise SystemExit(f"tests/peers/serving: {server} did not start; its last words are in {PEERS / 'serving.log'}")
                with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                    path = {"penstock": "/readyz"}.get(server, "/health")
                    if urllib.request.urlopen(url + path, timeout=5).status == 200:
                        break
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main():
    args = arguments()
    file = model_file(args.model)
    loads = [("concurrency", ["--concurrency", str(args.concurrency)])]
    if args.rate:
        loads.append(("rate", ["--rate", str(args.rate)]))
    runs = {(server, load): [] for server in args.servers for load, _ in loads}
    for at in range(args.rounds):
        turn = at % len(args.servers)
        for server in args.servers[turn:] + args.servers[:turn]:
            with started(server, file, args) as url:
                shape = ["--prompt-words", str(args.prompt_words), "--output-tokens", str(args.output_tokens), "--json"]
                shape += ["--url", url, "--extra", json.dumps({"ignore_eos": True, "temperature": 0})]
                # The first requests of a process are its slowest, and nobody's load.
                run([penstock(), "bench", "serve", "--concurrency", "2", "--requests", "4", "--seed", "1000", *shape])
                for load, flags in loads:
                    report = json.loads(run([penstock(), "bench", "serve", *flags, "--requests", str(args.requests), "--seed", str(at + 1), *shape]))
                    runs[server, load].append(report["rows"][0])
                    say(f"round {at + 1} of {args.rounds}, {server}, {load}: {json.dumps(report['rows'][0])}")
    if args.json:
        rows = [{"server": server, "load": load, "rows": rows} for (server, load), rows in runs.items()]
        json.dump({"model": file.name, "cpu": cpu(), "cores": len(os.sched_getaffinity(0)), "runs": rows}, sys.stdout, indent=1)
        print()
        return
    print(f"{file.name}, {len(os.sched_getaffinity(0))} cores of {cpu()}, {args.requests} streams of {args.prompt_words} words and {args.output_tokens} tokens, medians of {args.rounds}")
    for load, flags in loads:
        print(" ".join(flags).lstrip("-"))
        for server in args.servers:
            rows = runs[server, load]
            figures = {name: statistics.median(row[name] for row in rows) for name in rows[0] if isinstance(rows[0][name], (int, float))}
            for name, value in rows[0].items():
                if isinstance(value, dict):
                    figures |= {f"{name}.{part}": statistics.median(row[name][part] for row in rows) for part in value if isinstance(value[part], (int, float))}
            print(f"  {server}: " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

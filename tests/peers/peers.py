"""What engines.py and serving.py share: where the peers are, the model in each one's form, running a program."""

import json
import os
import pathlib
import platform
import subprocess
import sys

PEERS = pathlib.Path(os.environ.get("PEERS", "target/peers"))
LLAMA = PEERS / "llama.cpp/build/bin"

def say(text):
    print(f"tests/peers: {text}", file=sys.stderr, flush=True)


def run(command, **environment):
    log = PEERS / "engines.log"
    with open(log, "a") as errors:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment})
    if ended.returncode != 0:
        raise SystemExit(f"tests/peers: {command[0]} failed ({ended.returncode}); its last words are in {log}")
    return ended.stdout


def penstock():
    binary = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release" / "penstock"
    if not binary.exists():
        raise SystemExit("tests/peers: build first: cargo build --release --workspace --locked")
    return str(binary.resolve())


def model_file(given):
    if given:
        return pathlib.Path(given).resolve()
    models = json.loads(run([penstock(), "model", "list", "--json"]))
    name = "qwen2.5-coder-0.5b-instruct-q4_k_m"
    path = next((model.get("path") for model in models if model["name"] == name), None)
    if not path:
        raise SystemExit(f"tests/peers: pull the model first: penstock model pull {name}")
    return pathlib.Path(path).resolve()


def bf16_gguf(file):
    made = PEERS / "models" / f"{file.stem}-bf16.gguf"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part")
        run([str(LLAMA / "llama-quantize"), "--allow-requantize", str(file), str(part), "BF16"])
        part.rename(made)
    return made


def bf16_folder(file):
    """The same weights as vLLM reads them: widened, then rounded to bfloat16."""
    made = PEERS / "models" / f"{file.stem}-bf16"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part")
        convert = (
            "import sys, torch; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
            "folder, name, out = sys.argv[1:]; "
            "M.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16).save_pretrained(out); "
            "T.from_pretrained(folder, gguf_file=name).save_pretrained(out)"
        )
        run([sys.executable, "-c", convert, str(file.parent), file.name, str(part)])
        part.rename(made)
    return made



def vllm_environment():
    # Left to itself it keeps one core for its server and computes on the others.
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
    if openmp := next(PEERS.glob("vllm/lib/**/libiomp5.so"), None):
        environment["LD_PRELOAD"] = str(openmp)
    return environment


def cpu():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()

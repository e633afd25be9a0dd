"""Writes seeds/gguf: headers of tiny models, whose weights the fuzz target takes as zeros. Rarely needed again."""

import pathlib
import struct

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
HIDDEN, MLP, CONTEXT = 32, 32, 64
ALIGNMENT = 32
# Format: number, values of a block, bytes of a block.
FORMATS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q5_0": (6, 32, 22), "Q8_0": (8, 32, 34)}

CHAT_TEMPLATE = (
    "{%- if tools %}{{- tools | tojson }}{% endif %}{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{% if m['content'] is string %}{{ m.content | trim }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def pack(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


class Header:
    def __init__(self, architecture):
        self.keys, self.tensors, self.offset, self.architecture = [], [], 0, architecture
        self.add("general.architecture", STRING, architecture)

    def add(self, key, kind, value):
        self.keys.append(text(key) + struct.pack("<I", kind) + pack(kind, value))

    def own(self, key, kind, value):
        self.add(f"{self.architecture}.{key}", kind, value)

    def add_array(self, key, kind, values):
        items = b"".join(pack(kind, value) for value in values)
        self.keys.append(text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items)

    def tensor(self, name, dims, form="F32"):
        number, block, block_bytes = FORMATS[form]
        n_values = 1
        for dim in dims:
            n_values *= dim
        dims = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        self.tensors.append(text(name) + dims + struct.pack("<IQ", number, self.offset))
        end = self.offset + n_values // block * block_bytes
        self.offset = -(-end // ALIGNMENT) * ALIGNMENT

    def bytes(self):
        counts = struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        return b"GGUF" + counts + b"".join(self.keys) + b"".join(self.tensors)


def byte_alphabet():
    """GPT-2's visible characters, one for every byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + nth) for nth in range(len(hidden))]


def sizes(header, head_dim, n_kv_heads):
    header.own("block_count", U32, 1)
    header.own("context_length", U32, CONTEXT)
    header.own("embedding_length", U32, HIDDEN)
    header.own("feed_forward_length", U32, MLP)
    header.own("attention.head_count", U32, 2)
    header.own("attention.head_count_kv", U32, n_kv_heads)
    header.own("attention.layer_norm_rms_epsilon", F32, 1e-6)
    header.own("rope.freq_base", F32, 1e6)
    return 2 * head_dim, n_kv_heads * head_dim


def layer(header, q, kv, form):
    header.tensor("output_norm.weight", [HIDDEN])
    header.tensor("blk.0.attn_norm.weight", [HIDDEN])
    header.tensor("blk.0.ffn_norm.weight", [HIDDEN])
    header.tensor("blk.0.attn_q.weight", [HIDDEN, q], form)
    header.tensor("blk.0.attn_k.weight", [HIDDEN, kv], form)
    header.tensor("blk.0.attn_v.weight", [HIDDEN, kv], form)
    header.tensor("blk.0.attn_output.weight", [q, HIDDEN], form)
    header.tensor("blk.0.ffn_gate.weight", [HIDDEN, MLP], form)
    header.tensor("blk.0.ffn_up.weight", [HIDDEN, MLP], form)
    header.tensor("blk.0.ffn_down.weight", [MLP, HIDDEN], form)


def qwen2():
    header = Header("qwen2")
    q, kv = sizes(header, head_dim=16, n_kv_heads=1)
    tokens = byte_alphabet() + ["he", "ll", "hell", "Ġw"]
    kinds = [NORMAL] * len(tokens)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    first_special = len(tokens)
    tokens += special + ["<tool_call>"]
    kinds += [CONTROL] * len(special) + [USER_DEFINED]
    header.add("tokenizer.ggml.model", STRING, "gpt2")
    header.add("tokenizer.ggml.pre", STRING, "qwen2")
    header.add_array("tokenizer.ggml.tokens", STRING, tokens)
    header.add_array("tokenizer.ggml.token_type", I32, kinds)
    header.add_array("tokenizer.ggml.merges", STRING, ["h e", "l l", "he ll", "Ġ w"])
    header.add("tokenizer.ggml.bos_token_id", U32, first_special)
    header.add("tokenizer.ggml.eos_token_id", U32, first_special + 2)
    header.add("tokenizer.ggml.add_bos_token", BOOL, False)
    header.add("tokenizer.chat_template", STRING, CHAT_TEMPLATE)
    header.tensor("token_embd.weight", [HIDDEN, len(tokens)], "Q5_0")
    header.tensor("output.weight", [HIDDEN, len(tokens)], "Q8_0")
    layer(header, q, kv, "Q5_0")
    for name, width in (("q", q), ("k", kv), ("v", kv)):
        header.tensor(f"blk.0.attn_{name}.bias", [width])
    return header.bytes()


def gemma3():
    header = Header("gemma3")
    q, kv = sizes(header, head_dim=32, n_kv_heads=1)
    header.own("attention.key_length", U32, 32)
    header.own("attention.value_length", U32, 32)
    header.own("attention.sliding_window", U32, 16)
    pieces = ["\u2581", "h", "e", "l", "he", "ll", "hell", "\u2581he"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces + ["\n\n"]
    kinds = [CONTROL] * 3 + [2] + [BYTE] * 256 + [NORMAL] * len(pieces) + [USER_DEFINED]
    header.add("tokenizer.ggml.model", STRING, "llama")
    header.add_array("tokenizer.ggml.tokens", STRING, tokens)
    header.add_array("tokenizer.ggml.token_type", I32, kinds)
    header.add_array("tokenizer.ggml.scores", F32, [0.0] * 260 + [-float(nth) for nth in range(len(pieces))] + [0.0])
    header.add("tokenizer.ggml.bos_token_id", U32, 2)
    header.add("tokenizer.ggml.eos_token_id", U32, 1)
    header.add("tokenizer.ggml.add_bos_token", BOOL, True)
    header.add("tokenizer.ggml.add_space_prefix", BOOL, False)
    header.tensor("token_embd.weight", [HIDDEN, len(tokens)], "Q8_0")
    layer(header, q, kv, "F16")
    header.tensor("blk.0.attn_q_norm.weight", [32])
    header.tensor("blk.0.attn_k_norm.weight", [32])
    header.tensor("blk.0.post_attention_norm.weight", [HIDDEN])
    header.tensor("blk.0.post_ffw_norm.weight", [HIDDEN])
    return header.bytes()


def small():
    """Every kind of value, one tensor, no tokenizer."""
    header = Header("llama")
    header.add("general.alignment", U32, 64)
    header.add("a.float", F32, 0.5)
    header.add("a.flag", BOOL, True)
    header.add_array("a.numbers", I32, [1, -1])
    header.add_array("a.texts", STRING, ["", "ü"])
    header.tensor("a.weight", [4, 2, 2])
    return header.bytes() + bytes(64 + 64)


folder = pathlib.Path(__file__).parent / "seeds" / "gguf"
folder.mkdir(parents=True, exist_ok=True)
for make in (qwen2, gemma3, small):
    (folder / f"{make.__name__}.gguf").write_bytes(make())

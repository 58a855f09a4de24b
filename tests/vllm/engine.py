# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own, driven by lines of JSON.

    engine.py MODEL [OPTIONS_JSON]    options of KvtierTier, or of KvtierConnector if they have
                                      "connector": true; without any, vLLM has no connector;
                                      "engine": {...}: more arguments of vllm.LLM

Each line on standard input is a request, for example {"op": "generate", "prompts": [[3, 4, 5]]};
the reply is one line on the descriptor that KVTIER_TEST_REPLY_FD names. Standard output and
standard error are vLLM's.
"""

import json
import os
import sys

BLOCK_TOKENS = 32
HOST_ROWS = 96
STEPS_TO_SETTLE = 10_000

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The threads of several engines would wait for each other's turns on a small machine.
    "OMP_NUM_THREADS": "1",
    # The scheduler in this process: a killed test leaves nothing behind.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}.items():
    os.environ.setdefault(name, value)


def transfer_config(options):
    from tiny_model import HEAD_DIM, KV_HEADS, LAYERS
    from vllm.config import KVTransferConfig

    if options.pop("connector", False):
        # A tiny model computes faster than a disk reads.
        options.setdefault("always_load", True)
        return KVTransferConfig(
            kv_connector="KvtierConnector",
            kv_connector_module_path="kvtier.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=options,
        )
    row_bytes = LAYERS * BLOCK_TOKENS * KV_HEADS * HEAD_DIM * 2 * 2
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_offloading",
            "cpu_bytes_to_use": HOST_ROWS * row_bytes,
            "secondary_tiers": [
                {"type": "KvtierTier", "module_path": "kvtier.vllm.tier", **options}
            ],
        },
    )


def make_engine(model, options):
    from vllm import LLM

    arguments = {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "prefix_caching_hash_algo": "sha256_cbor",
    }
    if options is not None:
        arguments.update(options.pop("engine", {}))
        arguments["kv_transfer_config"] = transfer_config(options)
    return LLM(**arguments)


def generate(engine, request):
    """The tokens of each prompt, and how many of the prompt's came from a cache."""
    from vllm import SamplingParams

    parameters = SamplingParams(
        temperature=0.0, max_tokens=request.get("tokens", 16), ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
    outputs = engine.generate(prompts, parameters, use_tqdm=False)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
    }


def forget(engine, request):
    """Drops what vLLM has in its own caches, the one of the GPU and the one in host memory."""
    for _ in range(STEPS_TO_SETTLE):
        if engine.reset_prefix_cache(reset_connector=True):
            return {"done": True}
        # Blocks that are being stored are not free yet, and without its own process the engine
        # steps only for requests.
        generate(engine, {"prompts": [[3, 4, 5]], "tokens": 1})
    return {"done": False}


def metrics(engine, request):
    """The tier's or the connector's figures in vLLM's registry: {"load:copied": 12, ...} and what
    else there is by the last word of its name, the smallest of several."""
    found = {}
    for metric in engine.get_metrics():
        if not metric.name.startswith("vllm:kvtier_"):
            continue
        if "outcome" in metric.labels:
            found[f"{metric.labels['operation']}:{metric.labels['outcome']}"] = metric.value
        else:
            name = metric.name.rpartition("_")[2]
            found[name] = min(metric.value, found.get(name, metric.value))
    return found


def main():
    with os.fdopen(int(os.environ["KVTIER_TEST_REPLY_FD"]), "w") as replies:
        options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else None
        engine = make_engine(sys.argv[1], options)
        operations = {"generate": generate, "forget": forget, "metrics": metrics}
        print(json.dumps({"ready": True}), file=replies, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            reply = operations[request["op"]](engine, request)
            print(json.dumps(reply), file=replies, flush=True)
        # The engine's scheduler, and with it the tier, closes before the interpreter ends.
        engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()

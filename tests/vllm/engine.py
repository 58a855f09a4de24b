# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own, driven by lines of JSON.

    engine.py SOCKET_FD    makes engines until the other end of the socket is closed

It imports vLLM, which takes most of an engine's start, and forks for each engine. A message on the
socket has {"model": path, "options": {...} or null} and the descriptors of the engine's requests,
replies and log; the answer is the engine's process id. {"wait": id} is answered with the exit
status of one that ends.

options: of KvtierConnector; null: vLLM has no connector; "engine": {...}: more arguments of vllm.LLM,
which are no reason for a connector; "connectors": [...]: those of a MultiConnector, in which "kvtier"
stands for ours; "environment": {...}: more of it; "idle_check_s": how often links to the daemon that
nothing uses look whether it is there; "claims": the name of its weights, whatever they are. Each line
of the requests is one, for example {"op": "generate", "prompts": [[3, 4, 5]]}; the reply is one line,
too.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback

BLOCK_TOKENS = 32
STEPS_TO_SETTLE = 10_000
PR_SET_PDEATHSIG = 1
MAX_MESSAGE_BYTES = 1 << 16
VLLM_METRICS = {
    "vllm:num_preemptions": "preemptions",
    "vllm:prefix_cache_hits": "hits",
    "vllm:external_prefix_cache_hits": "external",
}
# Modules that every engine imports.
MODULES = (
    "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core_client",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "kvtier.vllm.connector",
)

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
    from vllm.config import KVTransferConfig

    # A tiny model computes faster than a disk reads.
    options.setdefault("always_load", True)
    connectors = options.pop("connectors", None)
    ours = {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": options,
    }
    if connectors is None:
        return KVTransferConfig(**ours)
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "connectors": [ours if one == "kvtier" else one for one in connectors]
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
        if "kv_events_config" in arguments:
            from vllm.config import KVEventsConfig

            arguments["kv_events_config"] = KVEventsConfig(**arguments["kv_events_config"])
        if options:
            arguments["kv_transfer_config"] = transfer_config(options)
    return LLM(**arguments)


def adapter_of(request):
    from vllm.lora.request import LoRARequest

    name, number, path, *in_place = request["adapter"]
    return LoRARequest(name, number, path, load_inplace=bool(in_place))


def load_adapter(engine, request):
    """As vLLM's server does before the adapter's first request."""
    return {"done": engine.llm_engine.add_lora(adapter_of(request))}


def generate(engine, request):
    """Returns the tokens of each prompt, how many of the prompt's came from a cache, and what connectors
    tell the engine that goes on with it."""
    from vllm import SamplingParams

    parameters = SamplingParams(
        temperature=0.0, max_tokens=request.get("tokens", 16), ignore_eos=True, detokenize=False
    )
    if "hints" in request:
        parameters.extra_args = {"kv_transfer_params": {"kvtier": request["hints"]}}
    if "transfer" in request:
        parameters = [parameters.clone() for _ in request["transfer"]]
        for one, transfer in zip(parameters, request["transfer"]):
            one.extra_args = {"kv_transfer_params": transfer}
    salt = {"cache_salt": request["cache_salt"]} if "cache_salt" in request else {}
    adapter = None
    if "adapter" in request:
        adapter = adapter_of(request)
    prompts = [{"prompt_token_ids": prompt, **salt} for prompt in request["prompts"]]
    outputs = engine.generate(prompts, parameters, use_tqdm=False, lora_request=adapter)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "transfer": [output.kv_transfer_params for output in outputs],
    }


def forget(engine, request):
    """Drops the blocks in vLLM's own cache."""
    return reset(engine, {"connector": False})


def reset(engine, request):
    """vLLM's own reset of its caches, with or without the connector's part, once nothing is in use."""
    for _ in range(STEPS_TO_SETTLE):
        if engine.reset_prefix_cache():
            return {"done": engine.reset_prefix_cache(reset_connector=request["connector"])}
        # Blocks that are being stored are not free yet, and without its own process the engine
        # steps only for requests.
        generate(engine, {"prompts": [[3, 4, 5]], "tokens": 1})
    return {"done": False}


def turn(engine, request):
    """One reset with the connector's part, which vLLM refuses itself while blocks are in use."""
    return {"done": engine.reset_prefix_cache(reset_connector=True)}


def reload(engine, request):
    """Replaces the weights in place by those of another model of the same kind."""
    engine.collective_rpc("reload_weights", kwargs={"weights_path": request["model"]})
    if "version" in request:
        engine.llm_engine.set_weight_version(request["version"])
    return {"done": True}


def metrics(engine, request):
    """The connector's figures in vLLM's registry: {"load:copied": 12, ...} and what
    else there is by the last word of its name, the smallest of several; of vLLM "preemptions",
    "hits", the tokens that its own cache had, and "external", those that connectors brought."""
    found = {}
    for metric in engine.get_metrics():
        if metric.name in VLLM_METRICS:
            found[VLLM_METRICS[metric.name]] = metric.value
        if not metric.name.startswith("vllm:kvtier_"):
            continue
        if "outcome" in metric.labels:
            found[f"{metric.labels['operation']}:{metric.labels['outcome']}"] = metric.value
        else:
            name = metric.name.rpartition("_")[2]
            found[name] = min(metric.value, found.get(name, metric.value))
    return found


def run_engine(model, options, requests, replies):
    os.environ.update((options or {}).pop("environment", {}))
    if options is not None and "idle_check_s" in options:
        from kvtier import _link

        _link._IDLE_CHECK_S = options.pop("idle_check_s")
    if options is not None and "claims" in options:
        from kvtier.vllm import identity

        claim = options.pop("claims")
        identity.loaded_weights = lambda *_: claim
    engine = make_engine(model, options)
    operations = {
        "forget": forget,
        "generate": generate,
        "load_adapter": load_adapter,
        "metrics": metrics,
        "reload": reload,
        "reset": reset,
        "turn": turn,
    }
    if options:
        import kv_hooks

        operations.update(kv_hooks.OPERATIONS)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in requests:
        request = json.loads(line)
        reply = operations[request["op"]](engine, request)
        print(json.dumps(reply), file=replies, flush=True)
    # The engine's scheduler, and with it the connector, closes before the interpreter ends.
    engine.llm_engine.engine_core.shutdown()


def become_engine(message, requests, replies, log):
    """Ends with its parent. The descriptors are this process's."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        with os.fdopen(requests) as lines, os.fdopen(replies, "w") as answers:
            run_engine(message["model"], message["options"], lines, answers)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def main():
    for name in MODULES:
        importlib.import_module(name)
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 3)
        if not data:
            return
        message = json.loads(data)
        if "wait" in message:
            answer = os.waitstatus_to_exitcode(os.waitpid(message["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                become_engine(message, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()

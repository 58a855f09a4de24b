# SPDX-License-Identifier: Apache-2.0
"""A vLLM with LMCache's own connector, in a process of its own:

    lmcache_vllm.py PORT MODEL_DIRECTORY PROMPT_JSON

prints [tokens, how many of the prompt's came from a cache] and ends when its standard input does.
"""

import json
import os
import sys

for name, value in {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(name, value)

import lmcache_case  # noqa: E402, F401 - because it makes `import lmcache` find the wheel's
from llvmlite.binding import ffi  # noqa: E402


def main():
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    port, model, prompt = sys.argv[1:]
    config = KVTransferConfig(
        kv_connector="LMCacheMPConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": int(port),
            "lmcache.mp.mq_timeout": 60,
        },
    )
    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        block_size=lmcache_case.BLOCK_TOKENS,
        enforce_eager=True,
        kv_transfer_config=config,
    )
    parameters = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
    (output,) = engine.generate(
        [{"prompt_token_ids": json.loads(prompt)}], parameters, use_tqdm=False
    )
    answer = [list(output.outputs[0].token_ids), output.num_cached_tokens]
    # After what vLLM itself prints.
    print("\n" + json.dumps(answer), flush=True)
    sys.stdin.read()
    engine.llm_engine.engine_core.shutdown()


def leave_special_names_alone(wrapper):
    """vLLM 0.32 looks into all objects of all modules for kernels, and llvmlite's library answers
    every name, __dict__ too, with a function."""
    answer = wrapper.__getattr__

    def only_functions(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return answer(self, name)

    wrapper.__getattr__ = only_functions


if __name__ == "__main__":
    leave_special_names_alone(ffi._lib_wrapper)
    main()

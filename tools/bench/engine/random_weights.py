# SPDX-License-Identifier: Apache-2.0
"""A load format for vLLM, "kvtier_random": weights that are random, the same in every process, and
large enough that the next token depends on the whole prompt. vLLM's own "dummy" weights are so
small that all tokens are about equally likely, and then equal tokens would prove nothing.

vLLM calls `register` in each of its processes, as a plugin of the group vllm.general_plugins.
"""

LOAD_FORMAT = "kvtier_random"
STANDARD_DEVIATION = 0.03


def register() -> None:
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class RandomWeights(BaseModelLoader):
        def download_model(self, model_config) -> None:
            pass

        @torch.no_grad()
        def load_weights(self, model, model_config) -> None:
            for position, (_, weight) in enumerate(sorted(model.named_parameters())):
                generator = torch.Generator(device=weight.device).manual_seed(position)
                if weight.dim() < 2:
                    weight.fill_(1)  # norms
                else:
                    weight.normal_(0, STANDARD_DEVIATION, generator=generator)

# SPDX-License-Identifier: Apache-2.0
"""accelerate.hooks, as far as they are looked at: they take the place of a module's forward."""

import contextlib
import functools

import torch


class ModelHook:
    def pre_forward(self, module):
        pass

    def post_forward(self, module):
        pass


class AlignDevicesHook(ModelHook):
    """weights: of the module, which has them only while it computes."""

    def __init__(self, **weights):
        self.weights = weights

    def pre_forward(self, module):
        for name, weight in self.weights.items():
            setattr(module, name, weight)

    def post_forward(self, module):
        for name, weight in self.weights.items():
            setattr(module, name, torch.nn.Parameter(weight.to("meta")))


class LayerwiseCastingHook(ModelHook):
    pass


class SequentialHook(ModelHook):
    def __init__(self, *hooks):
        self.hooks = hooks


@contextlib.contextmanager
def hooked(module, hook):
    """As add_hook_to_module and remove_hook_from_module, which leaves the module's own forward."""

    def new_forward(module, *args, **kwargs):
        hook.pre_forward(module)
        output = module._old_forward(*args, **kwargs)
        hook.post_forward(module)
        return output

    module._old_forward, module._hf_hook = module.forward, hook
    wrapper = functools.partial(new_forward, module)
    module.forward = functools.update_wrapper(wrapper, module._old_forward)
    hook.post_forward(module)
    yield
    module.forward = module._old_forward
    del module._hf_hook, module._old_forward

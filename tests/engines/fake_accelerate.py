# SPDX-License-Identifier: Apache-2.0
"""accelerate.hooks, as far as they are looked at: they take the place of a module's forward."""

import contextlib
import functools


class AlignDevicesHook:
    pass


class LayerwiseCastingHook:
    pass


class SequentialHook:
    def __init__(self, *hooks):
        self.hooks = hooks


@contextlib.contextmanager
def hooked(module, hook):
    """As add_hook_to_module and remove_hook_from_module, which leaves the module's own forward."""

    def new_forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    module._old_forward, module._hf_hook = module.forward, hook
    wrapper = functools.partial(new_forward, module)
    module.forward = functools.update_wrapper(wrapper, module._old_forward)
    yield
    module.forward = module._old_forward
    del module._hf_hook, module._old_forward

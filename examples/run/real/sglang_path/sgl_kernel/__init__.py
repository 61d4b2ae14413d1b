"""Stands in for the CUDA kernels that SGLang imports even on a CPU. Every name can be imported; a call says what it was.

Nothing of it is called there: SGLang has a torch way for each.
"""
import importlib.machinery
import sys
import types


class Kernel:
    """A name of sgl_kernel, or a name in one: scalar_types.uint4b8."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self.name}.{name}")

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.name} is a CUDA kernel, and this is the stub for CPUs")


class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self.__name__}.{name}")


class Finder:
    """Submodules of sgl_kernel, whatever they are called."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, Finder, is_package=True) if name.startswith("sgl_kernel.") else None

    @staticmethod
    def create_module(spec):
        return Stub(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(Finder)
sys.modules[__name__].__class__ = Stub

"""gpurun for programs in Python: ``import gpurun`` gives these names (docs/library.md).

A :class:`Bundle` is read, checked, planned and explained in this process, without root and without changing anything.  A
:class:`Container` is made by gpurun's own program in processes of its own, as engines do it: making one changes the
directory, the descriptors and the signals of the process that does it, and forks, which a program with threads must not.
Nothing here reads the environment of the calling process: what gpurun is to see is the argument *environ*.
"""

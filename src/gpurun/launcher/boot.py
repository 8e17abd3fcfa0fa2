"""What the launcher runs first: modules come from the launcher's own file, each read when it is wanted.

This file is compiled into the launcher (see :mod:`gpurun.builder.launcher`) and must import nothing of gpurun.  The module
search of ``importlib`` costs 15 µs for each module; here a module's dependencies, which the build has found, are
executed straight, each before what imports it, and ``importlib`` is left with the ones that a function asks for.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import posix
import sys
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

    # Offset and size in the file, whether it is a package, the modules of gpurun that it imports when it is imported
    # (none are listed of another project's, where imports may go round in circles and importlib must do them).
    Entry = tuple[int, int, bool, tuple[str, ...]]

_SIGINT = 2


class Bundle:
    """The finder and loader of the modules in the open file *fd*; *index* is what the build wrote before them."""

    def __init__(self, fd: int, index: dict[str, Any]) -> None:
        self.fd = fd
        self.modules: dict[str, Entry] = index["modules"]
        self.late: tuple[tuple[str, ...], int, int] = index["late"]  # packages with modules in the second index; where it is
        self.extensions: dict[str, str] = index["extensions"]
        self.python = sys.orig_argv[0]  # not sys.executable: PYTHONEXECUTABLE changes that, in spite of -I
        self.child_code: str = index["child_code"]

    def entry(self, name: str) -> Entry | None:
        """What the index says of module *name*; None for what is not in the file."""
        found = self.modules.get(name)
        if found is None and self.late[2] and name.partition(".")[0] in self.late[0]:
            packages, offset, size = self.late
            self.late = (packages, offset, 0)
            self.modules.update(loads(self.read(size, offset)))
            found = self.modules.get(name)
        return found

    def code(self, name: str) -> CodeType | None:
        """The code of module *name*, None when it has none."""
        offset, size = self.modules[name][:2]
        if not size:
            return None
        code: CodeType = loads(self.read(size, offset))
        return code

    def read(self, size: int, offset: int) -> bytes:
        """*size* bytes of the file at *offset*; raises OSError that says what was read."""
        try:
            return posix.pread(self.fd, size, offset)
        except OSError as e:
            e.filename = "read gpurun's own program"  # what a message has in the place of a path
            raise

    def load(self, name: str) -> ModuleType:
        """Make the module *name*, after those that it imports; raises ImportError for one that is not in the file."""
        modules = sys.modules
        entry = self.entry(name)
        if entry is None:
            raise ImportError(f"gpurun has no module {name}")
        self.load_imports(name)
        module = type(sys)(name)
        if entry[2]:
            module.__path__ = []
        modules[name] = module
        parent, _, tail = name.rpartition(".")
        if parent:
            setattr(modules[parent], tail, module)
        code = self.code(name)
        if code is not None:
            exec(code, module.__dict__)
        return module

    def load_imports(self, name: str) -> None:
        """Load what *name* imports."""
        for wanted in self.modules[name][3]:
            if wanted not in sys.modules:
                self.load(wanted)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """importlib's question; the answer is None for what is not in the file."""
        entry = self.entry(name)
        if entry is None:
            file = self.extensions.get(name)
            if file is None or not _exists(file):  # the interpreter's own search finds it in another installation
                return None
            loader = sys.modules["_frozen_importlib_external"].ExtensionFileLoader(name, file)
            return sys.modules["_frozen_importlib"].ModuleSpec(name, loader, origin=file)
        self.load_imports(name)
        return sys.modules["_frozen_importlib"].ModuleSpec(name, self, is_package=entry[2])

    def create_module(self, spec: Any) -> None:
        """None: importlib is to make the module object."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, if it does anything."""
        code = self.code(module.__name__)
        if code is not None:
            exec(code, module.__dict__)


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def boot(fd: int, index: dict[str, Any], entry: str = "") -> NoReturn:
    """Run gpurun, or with *entry* (``module:function``) a child of it, from the open file *fd*; end the process."""
    if _signal.getsignal(_SIGINT) is _signal.default_int_handler:  # and not ignored, as for a command in the background
        _signal.signal(_SIGINT, _signal.SIG_DFL)  # nothing is made yet: a traceback would be all that ^C brings
    gc.disable()  # a process that lives for milliseconds has no garbage worth looking for
    if entry:
        posix.set_inheritable(fd, False)
        sys.argv = [entry, *sys.argv[3:]]
    else:
        sys.argv = sys.argv[1:]
        if sys.getfilesystemencoding() != "utf-8":  # an 8-bit locale, but the paths in JSON documents are UTF-8
            given = [f"-X{name}={value}" for name, value in sys._xoptions.items() if name != "gpurun-sealed"]
            posix.execv(sys.orig_argv[0], [sys.orig_argv[0], "-IS", "-Xutf8", *given, "-c", index["main_code"], *sys.argv])
        low = []
        while fd < 3:  # started with closed descriptors: leave 0 to 2 to what belongs there
            low.append(fd)
            fd = posix.dup(fd)
        for number in low:
            posix.close(number)
        sys.argv[0] = str(sys._xoptions.get("gpurun-called") or sys.argv[0])  # this file may be one kept for another Python
    bundle = Bundle(fd, index)
    sys.meta_path.insert(0, bundle)  # type: ignore[arg-type] # importlib asks for find_spec, no more
    sys.gpurun_bundle = bundle  # type: ignore[attr-defined]
    module, _, function = (entry or "gpurun.__main__:main").partition(":")
    try:
        if not entry and "gpurun-sealed" in sys._xoptions:
            bundle.load("gpurun.launcher.sealed").take_own_variables()
        code = getattr(bundle.load(module), function)()
    except Exception as e:  # errors of commands are reported by __main__: this one is of the file itself, or of memory
        if not entry:  # of a child its parent tells
            text = getattr(e, "strerror", None) or f"{type(e).__name__}: {e}"
            posix.write(2, f"gpurun cannot read its own program: {text.lower()}\n".encode("utf-8", "replace"))
        posix._exit(1)
    try:
        if sys.stderr is not None:  # nothing waits in stdout: see output.py
            sys.stderr.flush()
    except OSError:  # the reader is gone; the exit code is all that is left to give
        pass
    posix._exit(code or 0)  # the interpreter's own way out takes 0.8 ms

"""What the launcher runs under a Python that its bytecode was not made for.

The build writes this text into the launcher as it is (see :mod:`gpurun.builder.launcher`), behind one line that says
``BUILD = (tag, name, offset, size, commit)``: which interpreter the bytecode is for, the name of this very build, and where
in the file the sources are.  The interpreter line has opened the launcher as *f* and imported posix and sys.

It goes on with the interpreter of the bytecode where that is installed under another name; else with a launcher compiled
from the sources for the Python that is here, which root keeps in /var/cache/gpurun and others in their own cache directory.
No other user may be able to write what is executed from there.  Any Python may come here, so the text keeps to the syntax of
Python 3.6, and says in one sentence, in the runtime's log as well, what is missing.
"""

# mypy: ignore-errors
# ruff: noqa: F821, UP031, PIE804, SIM115
# BUILD, BASE, f, posix and sys are there already.

from _stat import S_ISREG

OVERFLOW = 65534  # user_namespaces(7): how an id is shown that a user namespace has no number for


def main():
    tag, name, offset, size, commit = BUILD
    args = sys.argv[2:]
    named = "python3.%s" % tag[len("cpython-3") :]
    tried = "gpurun-tried" in getattr(sys, "_xoptions", {})
    for directory in directories():
        path = "%s/%s" % (directory, named)
        if not tried and is_program(path):
            run(path, sys.argv[1], args, f, tried=True)
    if sys.version_info < (3, 11) or sys.implementation.name != "cpython":
        found = newest()
        if found and not tried:
            run(found, sys.argv[1], args, f, tried=True)
        here = "%s is %s %d.%d" % (sys.executable, sys.implementation.name, sys.version_info[0], sys.version_info[1])
        fail("gpurun needs Python 3.11 or newer, and %s: install a newer one in /usr/bin" % here)
    python = sys.orig_argv[0] if hasattr(sys, "orig_argv") and "/" in sys.orig_argv[0] else sys.executable
    file = "%s-%s" % (name, sys.implementation.cache_tag)
    kept = open_kept(file)
    if kept is None:
        kept = make(python, file, posix.pread(f, size, offset), commit)
    run(python, kept[0], args, kept[1])


def directories():
    """Where interpreters are looked for: beside the launcher (a virtual environment), then where systems have them."""
    beside = sys.argv[1].rpartition("/")[0]
    return ([beside] if beside.startswith("/") else []) + ["/usr/bin", "/usr/local/bin"]


def is_program(path):
    try:
        mode = posix.stat(path).st_mode
    except OSError:
        return False
    return S_ISREG(mode) and mode & 0o111 != 0


def newest():
    """The newest interpreter that can run gpurun, or an empty text."""
    found = []
    for directory in directories():
        try:
            names = posix.listdir(directory)
        except OSError:
            continue
        for name in names:
            minor = name[len("python3.") :]
            if (
                name.startswith("python3.")
                and minor.isdigit()
                and int(minor) >= 11
                and is_program("%s/%s" % (directory, name))
            ):
                found.append((int(minor), "%s/%s" % (directory, name)))
    return max(found)[1] if found else ""


def caches():
    """The directories where a compiled launcher may be kept; root's is read by everybody."""
    home = posix.environ.get(b"HOME", b"").decode("utf-8", "surrogateescape")
    own = posix.environ.get(b"XDG_CACHE_HOME", b"").decode("utf-8", "surrogateescape")
    own = own if own.startswith("/") else home + "/.cache" if home.startswith("/") else ""
    return ["/var/cache/gpurun"] + ([own + "/gpurun"] if own and not is_root_of_the_host() else [])


def is_root_of_the_host():
    """Whether /var/cache is ours: Podman calls its runtime as root of a user's namespace, whose files are the user's."""
    return posix.geteuid() == 0 and has_all_ids()


def has_all_ids():
    """Whether this user namespace has every id of the host."""
    try:
        ids = posix.open("/proc/self/uid_map", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return True
    try:
        return posix.read(ids, 4096).split() == [b"0", b"0", b"4294967295"]
    finally:
        posix.close(ids)


def is_ours(found):
    """Whether no other user can write what stat(2) has *found*.  In a user namespace OVERFLOW may be anybody's, and without
    a map it is what our own id looks like too."""
    if found.st_uid == OVERFLOW and not has_all_ids():
        return False
    return found.st_uid in (0, posix.geteuid()) and not found.st_mode & 0o022


def open_kept(file):
    """(path, descriptor) of the launcher that was compiled before, None when there is none that can be trusted."""
    for directory in caches():
        path = "%s/%s" % (directory, file)
        try:
            if not is_ours(posix.stat(directory)):
                continue
            fd = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK)
        except OSError:
            continue
        found = posix.fstat(fd)
        if S_ISREG(found.st_mode) and is_ours(found):
            return path, fd
        posix.close(fd)
    return None


def make(python, file, sources, commit):
    """Have the launcher for *python* compiled from the *sources*, and kept where that can be done: (path, descriptor)."""
    import marshal
    import zlib

    texts = marshal.loads(zlib.decompress(sources))
    given = {"__name__": "gpurun.builder.compile_here"}
    try:
        exec(texts["gpurun/builder/compile_here.py"], given)
        return given["make"](python, commit, texts, file, caches(), is_ours, open_kept)
    except Exception as e:
        fail("gpurun cannot be compiled for %s: %s" % (python, e))


def run(python, path, args, fd, tried=False):
    """Become *python* with the launcher *path*, open as *fd*, which says in its first line how it is started."""
    begin = BASE if path == sys.argv[1] else 0
    line = posix.pread(fd, 512, begin).split(b"\n")[0].decode()
    code = line.partition(" -ISBc")[2]
    if path.startswith("/proc/self/fd/"):
        posix.set_inheritable(fd, True)
    options = ["-X", "gpurun-tried"] if tried else []
    if path != sys.argv[1]:  # a kept launcher has another name than the program that was called
        options += ["-X", "gpurun-called=" + sys.argv[1]]
    posix.execv(python, [python] + options + ["-ISBc", code, path] + args)


def fail(text):
    """Say *text* on stderr and in the log that the command line names, as gpurun would, and end."""
    options = {}
    words = sys.argv[2:]
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        if name in ("log", "log-format", "root"):
            options[name] = value if equals or not words else words.pop(0)
    line = text + "\n"
    if options.get("log", "").startswith("/"):
        import time

        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = (
            '{"level":"error","msg":"%s","time":"%s"}\n'
            if options.get("log-format") == "json"
            else 'level=error msg="%s" time="%s"\n'
        )
        try:
            log = posix.open(options["log"], posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o644)
            posix.write(log, (entry % (text, now)).encode())
        except OSError:
            pass
    posix.write(2, line.encode())
    posix._exit(1)


main()

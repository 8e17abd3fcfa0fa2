"""Damaged states and words for the compiled front's own readers, millions in one process, under the sanitizers.

FUZZ_SECONDS says for how long (2); `make fuzz` takes CASES and FUZZ_SECONDS.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpurun.builder.front import SOURCE, compiler, constants
from gpurun.engine.caller.kept_plan import encode
from gpurun.engine.state import load
from gpurun.record import replace
from tests.engine.caller.test_kept_plan import PLAN, PROCESS
from tests.launcher.front import Store

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")

SECONDS = int(os.environ.get("FUZZ_SECONDS", "0"))
HARNESS = Path(__file__).with_name("front_fuzz.c")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE", "-g", "-O1")
FALLS_BACK = "\tbecome_launcher(to_be_sealed);\n"
ENDS = "\tif (!done)\n\t\t_exit(1);\n"


def front(directory: Path) -> Path:
    """The program that reads; skips where the compiler has no sanitizers."""
    for source in SOURCE.parent.glob("front*.c"):
        text = source.read_text()
        if source.name == "front_launcher.c":
            assert text.count(FALLS_BACK) == 1
            text = text.replace(FALLS_BACK, "\tlongjmp(next_case, 1);\n")
        if source.name == "front_setter.c":
            assert text.count(ENDS) == 1
            text = text.replace(ENDS, "\tif (!done)\n\t\tlongjmp(next_case, 1);\n")
        (directory / source.name).write_text(text)
    made = directory / "front_fuzz"
    flags = ("-std=gnu11", "-w", *constants(), *SANITIZERS, f'-DFRONT="{directory}/front.c"')
    probe = [*compiler(), *SANITIZERS, "-x", "c", "-", "-o", str(made)]
    if subprocess.run(probe, input=b"int main(void) { return 0; }", capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    subprocess.run([*compiler(), *flags, str(HARNESS), "-o", str(made)], check=True)
    return made


def test_what_the_front_reads(tmp_path: Path, store: Store) -> None:
    program = front(tmp_path)
    assert load(str(store.root), "c").id == "c"
    (tmp_path / "word").write_text("SIGTERM")
    seed = str(time.time_ns() if SECONDS else 7)
    process = replace(PROCESS, groups=(5, 7), rlimits=((7, 1, 2),), oom_score_adj=5, seccomp=(bytes(range(200)), 3))
    (tmp_path / "plan").write_bytes(encode(replace(PLAN, process=process), True, bytes(160), b'{"args":', b"}"))
    (tmp_path / "process").write_text('{"args":["sh", "-c" , "\\u0041\\"\\\\ \\/\\n"]}')
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000:U:/home/u:/bin/sh\nv:x:1000:1:V::\n")
    (tmp_path / "request").write_text("--detach\n--pid-file\n/run/pid\n-p\n/run/process.json\nc")
    (tmp_path / "etc").mkdir()
    kinds = ("word", "plan", "process", "passwd", "request")
    files = [store.container / "state", *[tmp_path / kind for kind in kinds]]
    done = subprocess.run([program, *files, seed, str(SECONDS or 2), tmp_path], capture_output=True, text=True)
    print(seed, done.stdout)
    assert done.returncode == 0, (seed, done.returncode, done.stderr[:3000])
    *words, whole, plans = done.stdout.split()
    assert (whole, plans) == ("whole", "1"), "a part of a plan is taken for one"
    for kind, cases, understood in zip(words[::3], words[1::3], words[2::3], strict=True):
        assert int(cases) > 100 and 0 < int(understood) < int(cases), kind

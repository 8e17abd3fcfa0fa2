"""buildkitd as a user without root, with gpurun as its `--oci-worker-binary`: steps with GPUs, and images as with runc.

BUILDKIT=DIR names the directory of buildkitd and buildctl, which Debian does not package; else they are looked for in PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.clients.bed import ClientBed, program
from tests.clients.gpu_bed import gpu_bed
from tests.clients.operation import rootless_operations
from tests.clients.test_rootless import SETUP, UID
from tests.native.runtime import Result
from tests.simdriver import Options

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.slow, pytest.mark.gpurun_only]

STEPS = r"""
FROM scratch
ADD root.tar /
ENV PATH=/bin WHO=$WHO
RUN test $(id -u) = 0 && echo made >/made && chown 7:8 /made
RUN echo gpus: $(ls /dev | grep -c "nvidia[0-9]") $(grep -c libcuda.so /proc/mounts); \
  for f in /dev/nvidia[0-9]; do (: <>$f) 2>&1; done; \
  for f in /dev/null; do echo x >$f && echo writable; done; cat /proc/self/uid_map | tr -s " "
USER 1000
RUN echo user: $(id -u); (echo x >/made) 2>/dev/null || echo refused; exit $EXIT
"""
#: $BINARY makes the image of STEPS; the daemon is the user's, and gone at the end.
BUILD = """
here=$(mktemp -d -p $RL) && chown UID:UID $here && cd $here
sed "s/\\$WHO/$WHO/;s/\\$EXIT/$EXIT/" <<<"$STEPS" >Dockerfile
mkdir -p tree/bin
cp "$(command -v busybox)" tree/bin/busybox
for name in sh id ls grep chown echo cat tr test; do ln -s busybox tree/bin/$name; done
command tar -cf root.tar -C tree .
chown -R UID:UID .
user rootlesskit --net=host --copy-up=/etc --state-dir=$here/kit \
  "$BUILDKIT/buildkitd" --root $here/state --addr unix://$here/s \
  --oci-worker-binary "$BINARY" --oci-worker-snapshotter native --containerd-worker=false </dev/null >daemon.log 2>&1 &
trap "kill $!; wait $! 2>/dev/null || :; rm -rf $here" EXIT
until [ -S s ] && user "$BUILDKIT/buildctl" --addr unix://$here/s debug workers >/dev/null 2>&1; do
  kill -0 $! 2>/dev/null || { tail daemon.log; exit 1; }
  sleep .1
done
user "$BUILDKIT/buildctl" --addr unix://$here/s build --progress plain \
  --frontend dockerfile.v0 --local context=. --local dockerfile=. \
  --output type=tar,dest=image.tar 2>&1
command tar -tvf image.tar | awk '{ print $1, $2, $3, $6, $7, $8 }' | sed 's/^/image: /'
""".replace("UID", str(UID))


@pytest.fixture(scope="module")
def bed() -> Iterator[ClientBed]:
    place = os.environ.get("BUILDKIT") or os.path.dirname(program("buildkitd"))
    missing = [name for name in ("rootlesskit", "newuidmap", "runc") if not program(name)]
    if missing or not os.access(f"{place}/buildctl", os.X_OK):
        pytest.skip(f"{' and '.join(missing) or 'buildkitd (BUILDKIT=DIR)'} is not here")
    with gpu_bed("tested", Options(gpus=2)) as made:
        for name in ("buildkitd", "buildctl"):
            shutil.copy(f"{place}/{name}", made.directory)
        calls = made.directory / "tested/calls"
        calls.touch()
        calls.chmod(0o666)
        assert made.sysroot is not None
        made.sysroot.parent.chmod(0o711)  # the driver is read by the user
        done = made.run("bash", "-c", SETUP)
        assert done.rc == 0, done.text
        yield made


def build(bed: ClientBed, binary: str, who: str = "void", ends: str = "0") -> Result:
    """What buildctl says of a build with *binary*, for steps whose NVIDIA_VISIBLE_DEVICES is *who*; then its files."""
    prelude = rootless_operations()[0].prelude
    steps = STEPS.replace("WHO=$WHO", "NVIDIA_VISIBLE_DEVICES=$WHO")
    given = {"BUILDKIT": str(bed.directory), "BINARY": binary, "STEPS": steps, "WHO": who, "EXIT": ends}
    return bed.run("bash", "-c", f"{prelude}\ntrap EXIT\n{BUILD}", **given)


def said(done: Result) -> list[str]:
    """What the steps have said, without their numbers and times."""
    lines = [line.split(" ", 2)[2] for line in done.out.splitlines() if line.startswith("#") and line.count(" ") > 1]
    return [line for line in lines if line.partition(":")[0] in ("gpus", "user") or line in ("writable", "refused")]


def files(done: Result) -> list[str]:
    return [line for line in done.out.splitlines() if line.startswith("image: ")]


def test_an_image_as_with_runc(bed: ClientBed) -> None:
    ours, theirs = (build(bed, binary) for binary in (bed.runtimes["tested"].binary, program("runc")))
    assert ours.rc == theirs.rc == 0, ours.text + theirs.text
    assert said(ours) == said(theirs) == ["gpus: 0 0", "writable", "user: 1000", "refused"]
    assert files(ours) == files(theirs) and any("7/8" in line and "made" in line for line in files(ours))


def test_steps_with_gpus(bed: ClientBed) -> None:
    """The image has nothing of the driver afterwards: its files are those of a build without GPUs."""
    with_gpus, without = build(bed, bed.runtimes["tested"].binary, "all"), build(bed, bed.runtimes["tested"].binary)
    assert with_gpus.rc == without.rc == 0, with_gpus.text
    assert said(with_gpus)[0] == "gpus: 2 1", with_gpus.text
    assert with_gpus.out.count("can't create /dev/nvidia") == 2  # no such device: the driver is simulated
    assert files(with_gpus) == files(without)


def test_a_step_that_fails(bed: ClientBed) -> None:
    done = build(bed, bed.runtimes["tested"].binary, ends="3")
    assert done.rc != 0 and "exit code: 3" in done.out, done.text

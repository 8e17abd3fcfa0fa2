"""A CUDA vector addition through the driver API alone: no toolkit, no compiler; the driver translates the PTX.

Run as a program it prints one JSON object: ``init`` (the code of cuInit; 100 is "no device"), and when that is 0
``driver``, ``devices`` (``name``, ``uuid``), and ``sum`` ("right", or what was wrong) of the vector addition on the first
device.  It uses nothing but ``ctypes`` and runs inside containers that have an interpreter and no more.  ``--hold`` keeps
the device open until stdin ends; ``--allocate MIB`` says in ``allocated`` whether so much of its memory could be had at
once; ``--loop FILE`` goes on adding, with a line in FILE for each time, until the program is killed.
"""

from __future__ import annotations

import ctypes
import sys

N = 1 << 16
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
    .reg .pred %p;
    .reg .u32 %i, %n, %b, %d, %t;
    .reg .u64 %a, %x, %c, %o;
    .reg .f32 %u, %v;
    ld.param.u64 %a, [pa];
    ld.param.u64 %x, [pb];
    ld.param.u64 %c, [pc];
    ld.param.u32 %n, [pn];
    mov.u32 %b, %ctaid.x;
    mov.u32 %d, %ntid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %i, %b, %d, %t;
    setp.ge.u32 %p, %i, %n;
    @%p bra done;
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %c, %c;
    mul.wide.u32 %o, %i, 4;
    add.u64 %a, %a, %o;
    add.u64 %x, %x, %o;
    add.u64 %c, %c, %o;
    ld.global.f32 %u, [%a];
    ld.global.f32 %v, [%x];
    add.f32 %u, %u, %v;
    st.global.f32 [%c], %u;
done:
    ret;
}
\0"""


class CudaError(Exception):
    pass


class Cuda:
    """libcuda.so.1, as the loader of this process finds it."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {code}")


def devices(cuda: Cuda) -> list[dict[str, str]]:
    """Name and UUID of each device, in CUDA's order."""
    count = ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for i in range(count.value):
        device, name, uuid = ctypes.c_int(), ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
        cuda.call("cuDeviceGet", ctypes.byref(device), i)
        cuda.call("cuDeviceGetName", name, len(name), device)
        cuda.call("cuDeviceGetUuid_v2" if hasattr(cuda.library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", uuid, device)
        digits = bytes(uuid).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        found.append({"name": name.value.decode(), "uuid": "-".join(parts)})
    return found


def vector_sum(cuda: Cuda) -> str:
    """Add two vectors on the first device; ``right``, or the first element that is not."""
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    cuda.call("cuModuleLoadData", ctypes.byref(module), PTX)
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"add")
    size = ctypes.c_size_t(4 * N)
    host = [(ctypes.c_float * N)(*[float(i * k) for i in range(N)]) for k in (1, 2)]
    result = (ctypes.c_float * N)()
    memory = [ctypes.c_uint64() for _ in range(3)]
    for address in memory:
        cuda.call("cuMemAlloc_v2", ctypes.byref(address), size)
    for address, values in zip(memory, host, strict=False):
        cuda.call("cuMemcpyHtoD_v2", address, values, size)
    count = ctypes.c_uint(N)
    pointers = [ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in (*memory, count)]
    arguments = (ctypes.c_void_p * 4)(*[p.value for p in pointers])
    cuda.call("cuLaunchKernel", function, (N + 255) // 256, 1, 1, 256, 1, 1, 0, None, arguments, None)
    cuda.call("cuCtxSynchronize")
    cuda.call("cuMemcpyDtoH_v2", result, memory[2], size)
    wrong = next((i for i in range(N) if result[i] != 3.0 * i), None)
    return "right" if wrong is None else f"element {wrong} is {result[wrong]}, not {3.0 * wrong}"


def allocates(cuda: Cuda, size: int) -> bool:
    """Whether *size* bytes of the first device's memory can be had at once, in the context that :func:`vector_sum` made."""
    address = ctypes.c_uint64()
    try:
        cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    except CudaError:
        return False
    cuda.call("cuMemFree_v2", address)
    return True


def loop(path: str) -> None:
    """Add for ever, with the result of each time in the file *path*."""
    import time

    cuda = Cuda()
    cuda.call("cuInit", 0)
    while True:
        said = vector_sum(cuda)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{said}\n")
        time.sleep(0.2)


def report() -> dict[str, object]:
    """What the program prints."""
    cuda = Cuda()
    code = cuda.library.cuInit(0)
    if code:
        return {"init": code}
    version = ctypes.c_int()
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    found = {"init": 0, "driver": version.value, "devices": devices(cuda), "sum": vector_sum(cuda)}
    if "--allocate" in sys.argv:
        found["allocated"] = allocates(cuda, int(sys.argv[sys.argv.index("--allocate") + 1]) << 20)
    return found


if __name__ == "__main__":
    import json

    if "--loop" in sys.argv:
        loop(sys.argv[-1])
    try:
        answer = report()
    except (OSError, CudaError, AttributeError) as e:
        answer = {"error": str(e)}
    print(json.dumps(answer), flush=True)
    if "--hold" in sys.argv:
        sys.stdin.read()

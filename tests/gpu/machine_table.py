# ruff: noqa: E501 (a line of the table is a command, and a sentence is not broken)
"""Every command on every machine, as a table: a line for each command, a column for each of tests/simcards/machines.py.

A cell says the whole outcome (``*``: not tried):

- ``N0 A1``: it succeeds, and what it gives or lists are exactly these GPUs; ``-`` that there are none;
- ``!name``: it is refused with exit code 1, and says one sentence, which is that of SENTENCES;
- ``~name``: it succeeds and has nothing to show, and says why in that sentence;
- ``?name``: the same, and the sentence is a warning of the log.

``ask VARIABLE=VALUE`` is a request for GPUs: by `gpu explain`, and with a real container.  ``run`` is before a command
that only the built program has.  What stands in brackets in a sentence is a pattern.
"""

from __future__ import annotations

COLUMNS = "nvidia, mi210, mi300x, arc, gaudi, nv+amd, nv+intel, idle, none"
A8 = "A0 A1 A2 A3 A4 A5 A6 A7"
TABLE = f"""
gpu list                                    | N0 N1 | {A8} | {A8} | I0 I1 I2 | ~gaudis | N0 N1 A0 A1 | N0 N1 I0 I1 | ~idle | ~nothing
gpu list --processes                        | N0 N1 | {A8} | {A8} | I0 I1 I2 | ~gaudis | N0 N1 A0 A1 | N0 N1 I0 I1 | ~idle | ~nothing
gpu list --json                             | N0 N1 | {A8} | {A8} | I0 I1 I2 | - | N0 N1 A0 A1 | N0 N1 I0 I1 | - | -
gpu doctor                                  | N | A | A | I | G | N A | N I | !doctor | !doctor
gpu doctor --json                           | N | A | A | I | G | N A | N I | !doctor | !doctor
gpu leases                                  | ~lease:NVIDIA | ~lease:AMD | ~lease:AMD | ~lease:GPURUN | ~nolease | ~lease:NVIDIA | ~lease:NVIDIA | ~nolease | ~nolease
gpu leases --json                           | - | - | - | - | - | - | - | - | -
gpu leases --expire                         | - | - | - | - | - | - | - | - | -
gpu lease --release nobody                  | !release | !release | !release | !release | !release | !release | !release | !release | !release
cdi list                                    | ~cdi:N | ~cdi:A | ~cdi:A | ~cdi:I | ~cdi:G | ~cdi:NA | ~cdi:NI | ~cdi | ~cdi
cdi validate                                | ~cdi:N | ~cdi:A | ~cdi:A | ~cdi:I | ~cdi:G | ~cdi:NA | ~cdi:NI | ~cdi | ~cdi
cdi list --json                             | - | - | - | - | - | - | - | - | -
cdi generate                                | N0 N1 | !mode:amd | !mode:amd | !mode:intel | !driver | N0 N1 | N0 N1 | !driver | !driver
cdi generate --mode nvml                    | N0 N1 | !mode:amd | !mode:amd | !mode:intel | !driver | N0 N1 | N0 N1 | !driver | !driver
cdi generate --mode amd                     | !amds:auto | {A8} | {A8} | !amds:intel | !amds | A0 A1 | !amds:auto | !amds | !amds
cdi generate --mode intel                   | !intels:auto | !intels:amd | !intels:amd | I0 I1 I2 | !intels | !intels:auto | I0 I1 | !intels | !intels
cdi refresh --output @/r.yaml               | ~wrote | ~refresh:amd | ~refresh:amd | ~refresh:intel | ~refresh | ~wrote | ~wrote | ~refresh | ~refresh
cdi refresh --output @/a.yaml --mode amd    | ~norefresh:amd | ~wrote | ~wrote | ~norefresh:amd | ~norefresh:amd | ~wrote | ~norefresh:amd | ~norefresh:amd | ~norefresh:amd
cdi refresh --output @/i.yaml --mode intel  | ~norefresh:intel | ~norefresh:intel | ~norefresh:intel | ~wrote | ~norefresh:intel | ~norefresh:intel | ~wrote | ~norefresh:intel | ~norefresh:intel
gpu mig export                              | !nvml | !nonvml | !nonvml | !nonvml | !nonvml | !nvml | !nvml | !nonvml | !nonvml
gpu mig generate-config                     | !nvml | !nonvml | !nonvml | !nonvml | !nonvml | !nvml | !nvml | !nonvml | !nonvml
stats --once                                | - | - | - | - | - | - | - | - | -
kubernetes labels --oneshot --no-timestamp -o - | N | A | A | I | ?nolabel:gaudis | N A | N I | ?nolabel:idle | ?nolabel:nothing
metrics --once                              | ?nvml | {A8} | {A8} | I0 I1 I2 | ?gaudis | A0 A1 | I0 I1 | ?idle | ?nothing
run install docker --dry-run                  | N | A | A | N | N | N A | N | N | N
ask NVIDIA_VISIBLE_DEVICES=all              | N0 N1 | !driver:A | !driver:A | !driver:I | !driver:G | N0 N1 | N0 N1 | !driver | !driver
ask NVIDIA_VISIBLE_DEVICES=0                | N0 | !driver:A | !driver:A | !driver:I | !driver:G | N0 | N0 | !driver | !driver
ask NVIDIA_VISIBLE_DEVICES=nvidia:0         | N0 | !driver:A | !driver:A | !driver:I | !driver:G | N0 | N0 | !driver | !driver
ask NVIDIA_VISIBLE_DEVICES=9                | !unknown | !driver:A | !driver:A | !driver:I | !driver:G | !unknown | !unknown | !driver | !driver
ask NVIDIA_VISIBLE_DEVICES=void             | - | - | - | - | - | - | - | - | -
ask NVIDIA_VISIBLE_DEVICES=free;vendor=amd  | !free:AMD | A | A | !free:AMD:I | !free:AMD:G | A | !free:AMD | !free:AMD | !free:AMD
ask NVIDIA_VISIBLE_DEVICES=amd.com/gpu=0    | !nocdi:AMD | !cdi:amd | !cdi:amd | !nocdi:AMD:I | !nocdi:AMD:G | !cdi:amd | !nocdi:AMD | !nocdi:AMD | !nocdi:AMD
ask AMD_VISIBLE_DEVICES=all                 | !noamd:N | {A8} | {A8} | !noamd:I | !noamd:G | A0 A1 | !noamd:N | !noamd:card | !noamd
ask AMD_VISIBLE_DEVICES=0,1                 | !noamd:N | A0 A1 | A0 A1 | !noamd:I | !noamd:G | A0 A1 | !noamd:N | !noamd:card | !noamd
ask AMD_VISIBLE_DEVICES=amd:9               | !noamd:N | !unknownamd | !unknownamd | !noamd:I | !noamd:G | !unknownamd | !noamd:N | !noamd:card | !noamd
ask AMD_VISIBLE_DEVICES=none                | - | - | - | - | - | - | - | - | -
ask AMD_VISIBLE_DEVICES=free                | !free:AMD:N | A | A | !free:AMD:I | !free:AMD:G | A | !free:AMD:N | !free:AMD:card | !free:AMD
ask GPURUN_VISIBLE_DEVICES=all              | N0 N1 | {A8} | {A8} | I0 I1 I2 | !every:G | N0 N1 A0 A1 | N0 N1 I0 I1 | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=nvidia:0         | N0 | !other | !other | !other | !every:G | N0 | N0 | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=amd:1            | !other | A1 | A1 | !other | !every:G | A1 | !other | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=intel:1          | !other | !other | !other | I1 | !every:G | !other | I1 | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=0                | !number:nvidia | !number:amd | !number:amd | !number:intel | !every:G | !number:nvidiaamd | !number:nvidiaintel | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=none             | - | - | - | - | - | - | - | - | -
ask GPURUN_VISIBLE_DEVICES=free             | N | A | A | I | !every:G | !which:amd | !which:intel | !every:idle | !every
ask GPURUN_VISIBLE_DEVICES=free;vendor=intel | !free:Intel:N | !free:Intel:A | !free:Intel:A | I | !free:Intel:G | !free:Intel:N | I | !free:Intel:card | !free:Intel
ask HABANA_VISIBLE_DEVICES=all              | !nogaudi:N | !nogaudi:A | !nogaudi:A | !nogaudi:I | G0 G1 | !nogaudi:N | !nogaudi:N | !nogaudi | !nogaudi
ask HABANA_VISIBLE_DEVICES=1                | !nogaudi:N | !nogaudi:A | !nogaudi:A | !nogaudi:I | G1 | !nogaudi:N | !nogaudi:N | !nogaudi | !nogaudi
ask HABANA_VISIBLE_DEVICES=7                | !nogaudi:N | !nogaudi:A | !nogaudi:A | !nogaudi:I | !gaudi7 | !nogaudi:N | !nogaudi:N | !nogaudi | !nogaudi
ask GPURUN_VISIBLE_DEVICES=free GPURUN_GPU_THREADS=50% | * | !threads:AMD | !threads:AMD | !threads:Intel | !every:G | !which:amd | !which:intel | !every:idle | !every
ask NVIDIA_VISIBLE_DEVICES=free:2           | N0 N1 | !free:NVIDIA:A | !free:NVIDIA:A | !free:NVIDIA:I | !free:NVIDIA:G | N0 N1 | N0 N1 | !free:NVIDIA | !free:NVIDIA
ask NVIDIA_VISIBLE_DEVICES=0 GPURUN_GPU_MEMORY=8GiB | !memory:0 | !driver:A | !driver:A | !driver:I | !driver:G | !memory:0 | !memory:0 | !driver | !driver
ask GPURUN_VISIBLE_DEVICES=free GPURUN_GPU_MEMORY=8GiB | !memory:free | !dmem:AMD | !dmem:AMD | !dmem:Intel | !every:G | !which:amd | !which:intel | !every:idle | !every
ask AMD_VISIBLE_DEVICES=0 GPURUN_GPU_MEMORY=1GiB | !noamd:N | !dmem:AMD | !dmem:AMD | !noamd:I | !noamd:G | !dmem:AMD | !noamd:N | !noamd:card | !noamd
ask AMD_VISIBLE_DEVICES=free GPURUN_GPU_MEMORY=1GiB | !room:AMD:N | !dmem:AMD | !dmem:AMD | !room:AMD:I | !room:AMD:G | !dmem:AMD | !room:AMD:N | !room:AMD:card | !room:AMD
"""

#: The same, of what a node's parts offer to a cluster: the GPUs of a resource of the kubelet's, the devices of a driver.
CLUSTER = f"""
plugin nvidia.com/gpu     | N0 N1 | - | - | - | - | N0 N1 | N0 N1 | - | -
plugin amd.com/gpu        | - | {A8} | {A8} | - | - | A0 A1 | - | - | -
plugin gpu.intel.com/i915 | - | - | - | I0 | - | - | I0 | - | -
plugin gpu.intel.com/xe   | - | - | - | I1 I2 | - | - | I1 | - | -
driver gpu.nvidia.com     | N0 N1 | - | - | - | - | N0 N1 | N0 N1 | - | -
driver gpu.amd.com        | - | {A8} | {A8} | - | - | A0 A1 | - | - | -
driver gpu.intel.com      | - | - | - | I0 I1 I2 | - | - | I0 I1 | - | -
"""

#: What ends a refusal: what the machine has instead.
INSTEAD = {
    "": "",
    "N": "; this host has 2 GPUs of NVIDIA's (ask with NVIDIA_VISIBLE_DEVICES)[.*]",
    "A": "; this host has [8 GPUs of AMD's|1 GPU of AMD's, divided into 8 parts] (ask with AMD_VISIBLE_DEVICES)",
    "I": "; this host has 3 GPUs of Intel's (ask with GPURUN_VISIBLE_DEVICES)",
    "G": "; this host has 2 accelerators of Intel's that are not GPUs (ask with HABANA_VISIBLE_DEVICES)",
    "idle": "; the card 0000:03:00.0 of Intel's has no driver: `modprobe xe` or `modprobe i915`; the card 0000:63:00.0 of AMD's has no driver: `modprobe amdgpu`",
    "card": "; the card 0000:[63|03]:00.0 of [AMD|Intel]'s has no driver: `modprobe [amdgpu|xe]`[( or `modprobe i915`)?]",
}
_WRITES = "`gpurun cdi generate{} --output=[\\S*]/etc/cdi/{}.yaml` describes {}'s GPUs"
NVIDIAS, AMDS, INTELS = [
    _WRITES.format(mode, name, title)
    for mode, name, title in (("", "nvidia", "NVIDIA"), (" --mode amd", "amd", "AMD"), (" --mode intel", "intel", "Intel"))
]
_NO_FILE = "gpurun: no CDI [device|file]: looked in [\\S*]/etc/cdi ([.*]), [\\S*]/var/run/cdi ([.*]); "
_NO_CDI = f"{_NO_FILE}this host has no GPU that a CDI file could describe"
_DRIVER = (
    "no NVIDIA driver: neither the kernel module ([\\S*]) nor the libraries ([.*]) are there: install the driver on this host, and "
    "`gpurun gpu doctor` says what is missing"
)
_NONE = "no GPU of {}'s on this host: a CDI specification needs at least one device"
_FREE = "process.env [\\w+]_VISIBLE_DEVICES '[.*]': [1 GPU wanted, |2 GPUs wanted, |]this host has no GPU of {}'s[, `gpurun gpu list` says why|]"
_LOOK = "; `gpurun gpu doctor` looks further"
_WHICH = "process.env GPURUN_VISIBLE_DEVICES: 'free': this host has GPUs of nvidia and {}, say which: 'free;vendor=nvidia'"
_EVERY = "[.*] (process.env GPURUN_VISIBLE_DEVICES): this host has no GPU that gpurun knows"
_NO_CARD = "[(gpurun: )?]no GPU: no card of NVIDIA's, AMD's or Intel's is on the PCI bus ([\\S*]/sys/bus/pci/devices)"
_NO_AMD = (
    "process.env AMD_VISIBLE_DEVICES: this host has no AMD GPU that computes: [.*] are there while the driver is loaded"
)
_UNRESOLVED = "unresolvable CDI devices amd.com/gpu=0 (looked in [.*]): "
_ROOM = "process.env AMD_VISIBLE_DEVICES 'free': no GPU has room for a share of 1 GiB: this host has no GPU of AMD's"
_UNKNOWN_MEMORY = "(NVML error: error (nvmlInit_v2: 9) ([.*])): its memory is not known without NVML"
_NOTHING = {
    "gaudis": f"{_NO_CARD}{INSTEAD['G']}{_LOOK}",
    "idle": f"[(gpurun: )?]no GPU: {INSTEAD['idle'][2:]}{_LOOK}",
    "nothing": f"{_NO_CARD}{_LOOK}",
}
SENTENCES = {
    **_NOTHING,
    **{f"nolabel:{name}": f"no label: {sentence}" for name, sentence in _NOTHING.items()},
    "nvml": "NVML error: error (nvmlInit_v2: 9) ([.*])",
    **{
        f"lease:{name}": f"gpurun: no GPU is leased: containers ask for one with {name}_VISIBLE_DEVICES=free"
        for name in ("NVIDIA", "AMD", "GPURUN")
    },
    "nolease": "gpurun: no GPU is leased, and this host has none to lease",
    "release": "nobody: no container with this id or name has a lease: `gpurun gpu leases` lists those that have one",
    "cdi": _NO_CDI,
    "cdi:G": _NO_CDI + INSTEAD["G"],
    "cdi:N": _NO_FILE + NVIDIAS,
    "cdi:A": _NO_FILE + AMDS,
    "cdi:I": _NO_FILE + INTELS,
    "cdi:NA": f"{_NO_FILE}{NVIDIAS}, {AMDS}",
    "cdi:NI": f"{_NO_FILE}{NVIDIAS}, {INTELS}",
    **{f"driver{f':{end}' if end else ''}": _DRIVER + INSTEAD[end] for end in ("", "A", "I", "G")},
    "mode:amd": f"{_DRIVER}; AMD's GPUs are written by --mode amd",
    "mode:intel": f"{_DRIVER}; Intel's GPUs are written by --mode intel",
    "amds": _NONE.format("AMD"),
    "amds:auto": f"{_NONE.format('AMD')}; NVIDIA's GPUs are written by --mode auto[.*]",
    "amds:intel": f"{_NONE.format('AMD')}; Intel's GPUs are written by --mode intel",
    "intels": _NONE.format("Intel"),
    "intels:auto": f"{_NONE.format('Intel')}; NVIDIA's GPUs are written by --mode auto[.*]",
    "intels:amd": f"{_NONE.format('Intel')}; AMD's GPUs are written by --mode amd",
    "wrote": "gpurun: wrote [\\S*].yaml: [\\d*] devices",
    "refresh": "gpurun: no NVIDIA driver is loaded ([\\S*]/proc/driver/nvidia/version): nothing is written",
    "refresh:amd": "gpurun: no NVIDIA driver is loaded ([\\S*]; AMD's GPUs are written by --mode amd): nothing is written",
    "refresh:intel": "gpurun: no NVIDIA driver is loaded ([\\S*]; Intel's GPUs are written by --mode intel): nothing is written",
    "norefresh:amd": "gpurun: no GPU of amd.com/gpu is there ([.*]): nothing is written",
    "norefresh:intel": "gpurun: no GPU of intel.com/gpu is there ([.*]): nothing is written",
    "unknown": "9: unknown device (process.env NVIDIA_VISIBLE_DEVICES): the GPUs of this host are 0 = 0000:[.*]",
    "unknownamd": "amd:9: unknown device (process.env AMD_VISIBLE_DEVICES): the AMD GPUs of this host are 0[( to 7)?] = 0000:[.*]",
    "other": "'[.*]' (process.env GPURUN_VISIBLE_DEVICES) is not a GPU of this host: there are [\\w+]:0 [.*]",
    **{
        f"number:{text.replace(' ', '')}": "'0' (process.env GPURUN_VISIBLE_DEVICES): a number needs a maker, such as "
        f"{' or '.join(repr(f'{maker}:0') for maker in text.split())}: this host has {text.split()[0]}:0 [.*]"
        for text in ("nvidia", "amd", "intel", "nvidia amd", "nvidia intel")
    },
    "which:amd": _WHICH.format("amd"),
    "which:intel": _WHICH.format("intel"),
    **{f"every{f':{end}' if end else ''}": _EVERY + INSTEAD[end] for end in ("", "G", "idle")},
    **{f"noamd{f':{end}' if end else ''}": _NO_AMD + INSTEAD[end] for end in ("", "N", "I", "G", "card")},
    **{
        f"free:{title}{f':{end}' if end else ''}": _FREE.format(title) + INSTEAD[end]
        for title, ends in (
            ("NVIDIA", ("", "A", "I", "G")),
            ("AMD", ("", "N", "I", "G", "card")),
            ("Intel", ("", "N", "A", "G", "card")),
        )
        for end in ends
    },
    **{f"room:AMD{f':{end}' if end else ''}": _ROOM + INSTEAD[end] for end in ("", "N", "I", "G", "card")},
    "cdi:amd": _UNRESOLVED + AMDS + "[.*]",
    **{
        f"nocdi:AMD{f':{end}' if end else ''}": f"{_UNRESOLVED}this host has no GPU of AMD's{INSTEAD[end]}"
        for end in ("", "I", "G")
    },
    **{
        f"nogaudi{f':{end}' if end else ''}": "HABANA_VISIBLE_DEVICES=[all|1|7]: this host has no Gaudi under the driver habanalabs"
        + INSTEAD[end]
        for end in ("", "N", "A", "I")
    },
    "gaudi7": "HABANA_VISIBLE_DEVICES: there is no Gaudi 7 on this host (there are: 0, 1)",
    "threads:AMD": "process.env GPURUN_GPU_THREADS: nothing limits the threads of AMD GPU [.*]: ask only for a share of its memory",
    "threads:Intel": "process.env GPURUN_GPU_THREADS: nothing limits the threads of Intel [.*]: ask only for a share of its memory",
    **{
        f"dmem:{title}": f"process.env GPURUN_GPU_MEMORY: nothing limits the memory of {title} GPU [.*]: the kernel's dmem "
        "controller does, with Linux 6.14 or newer and the driver amdgpu or xe, and it does not list this GPU"
        for title in ("AMD", "Intel")
    },
    "nonvml": "NVML cannot be asked: there is no libnvidia-ml.so.1 under [\\S*], and the kernel module is not loaded",
    "memory:0": f"process.env GPURUN_GPU_MEMORY: GPU 0 has no room for a share of 8 GiB {_UNKNOWN_MEMORY}",
    "memory:free": "process.env NVIDIA_VISIBLE_DEVICES 'free': no GPU has room for a share of 8 GiB "
    f"{_UNKNOWN_MEMORY.replace('): ', '): GPU 0, 1: ')}",
}

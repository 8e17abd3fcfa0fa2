"""The figures of GPUs: DCGM's name, type, help, and where NVML's answer to ``metrics`` has each."""

from __future__ import annotations

#: DCGM's name → (kind, help, key of the sensors).
SENSORS: dict[str, tuple[str, str, str]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", "smClock"),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz).", "memoryClock"),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", "temperature"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "Memory temperature (in C).", "memoryTemperature"),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W).", "power"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Energy since the driver was loaded (in mJ).", "energy"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "PCIe retries.", "pcieReplays"),
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", "Encoder utilization (in %).", "encoder"),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "Decoder utilization (in %).", "decoder"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", "Remapped rows for correctable errors.", "correctableRows"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", "Remapped rows for uncorrectable errors.", "uncorrectableRows"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed.", "rowRemapFailure"),
    "DCGM_FI_DEV_POWER_VIOLATION": ("counter", "Time that power held the clocks down (in ns).", "powerViolation"),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("counter", "Time that heat held the clocks down (in ns).", "thermalViolation"),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": ("counter", "Time that sync boost held them down (in ns).", "syncBoostViolation"),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": ("counter", "Time that the board's limit did (in ns).", "boardLimitViolation"),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": ("counter", "Time that low utilization did (in ns).", "lowUtilViolation"),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": ("counter", "Time that reliability did (in ns).", "reliabilityViolation"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", "Single-bit errors since the driver was loaded.", "eccSbeVolatile"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "Double-bit errors since the driver was loaded.", "eccDbeVolatile"),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("counter", "Single-bit errors of the card's life.", "eccSbeAggregate"),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("counter", "Double-bit errors of the card's life.", "eccDbeAggregate"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("counter", "NVLink flow-control CRC errors.", "nvlinkFlitErrors"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("counter", "NVLink data CRC errors.", "nvlinkDataErrors"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("counter", "NVLink retries.", "nvlinkReplays"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("counter", "NVLink recoveries.", "nvlinkRecoveries"),
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": ("gauge", "PCIe traffic from the GPU (in KB/s).", "pcieTx"),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": ("gauge", "PCIe traffic to the GPU (in KB/s).", "pcieRx"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", "Ratio of time that the graphics engine is active.", "grEngineActive"),
    "DCGM_FI_PROF_SM_ACTIVE": ("gauge", "Ratio of cycles in which an SM has a warp.", "smActive"),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("gauge", "Ratio of the warps that an SM could have.", "smOccupancy"),
    "DCGM_FI_PROF_PIPE_INT_ACTIVE": ("gauge", "Ratio of cycles in which the integer pipe is active.", "intActive"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", "Ratio of cycles in which a tensor pipe is active.", "tensorActive"),
    "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE": ("gauge", "The same of the IMMA pipe.", "tensorImmaActive"),
    "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE": ("gauge", "The same of the HMMA pipe.", "tensorHmmaActive"),
    "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE": ("gauge", "The same of the DFMA pipe.", "tensorDfmaActive"),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", "Ratio of the memory's bandwidth that is used.", "dramActive"),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("gauge", "Ratio of cycles in which the fp64 pipe is active.", "fp64Active"),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("gauge", "Ratio of cycles in which the fp32 pipe is active.", "fp32Active"),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("gauge", "Ratio of cycles in which the fp16 pipe is active.", "fp16Active"),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", "PCIe traffic from the GPU (in bytes per second).", "pcieTxBytes"),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", "PCIe traffic to the GPU (in bytes per second).", "pcieRxBytes"),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("gauge", "NVLink traffic from the GPU (in bytes per second).", "nvlinkTxBytes"),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("gauge", "NVLink traffic to the GPU (in bytes per second).", "nvlinkRxBytes"),
}
#: Traffic of all NVLinks, which NVML counts in KiB; what DCGM's own counter of it counts is not documented.
TRAFFIC = {
    "gpurun_nvlink_transmit_bytes_total": ("counter", "NVLink traffic from the GPU.", "nvlinkSentKib"),
    "gpurun_nvlink_receive_bytes_total": ("counter", "NVLink traffic to the GPU.", "nvlinkReceivedKib"),
}
USED = ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).")
FREE = ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
RESERVED = ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory that the driver keeps (in MiB).")
TOTAL = ("DCGM_FI_DEV_FB_TOTAL", "gauge", "Framebuffer memory (in MiB).")
LOAD = ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).")
COPY = ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).")
XID = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "The last Xid error; 0: none since this program started.")

#: Every field that there can be, and those that can be labels of all metrics; a file of counters chooses.
FIELDS = frozenset((*SENSORS, *[name for name, _, _ in (USED, FREE, RESERVED, TOTAL, LOAD, COPY, XID)]))
LABEL_FIELDS = (
    "DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_VBIOS_VERSION",
)  # fmt: skip


def words(fields: frozenset[str]) -> tuple[str, ...]:
    """What NVML has to be asked beside, and takes time, where *fields* are wanted."""
    from gpurun.gpu.nvidia.host.nvml_counters import GPM, PCIE

    slow = {PCIE: "DCGM_FI_DEV_PCIE_", GPM: "DCGM_FI_PROF_"}
    return tuple(
        [
            word
            for word, prefix in slow.items()
            if any(f.startswith(prefix) and f in SENSORS and f != _REPLAYS for f in fields)
        ]
    )


_REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"

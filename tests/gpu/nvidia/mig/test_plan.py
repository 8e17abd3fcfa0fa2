"""Plans of what is done to GPUs: which, in which order, and what is refused before anything is done."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.mig.placement import arrange
from gpurun.gpu.nvidia.mig.plan import plan_config, plan_restore
from gpurun.gpu.nvidia.mig.profile import MigProfile, parse_profile
from gpurun.gpu.nvidia.mig.state import GiProfile, Instance, MigGpu
from gpurun.record import replace
from tests.gpu.nvidia.mig.hosts import MigHost, entries

ONES = tuple((n, 1) for n in range(7))
#: An A100-SXM4-40GB, as `nvidia-smi mig -lgip` and -lgipp tell of it.
PROFILES = (
    GiProfile(0, 1, 4864, 7, ONES, (("multiprocessor", 14),)),
    GiProfile(1, 2, 9856, 3, ((0, 2), (2, 2), (4, 2)), (("multiprocessor", 28),)),
    GiProfile(2, 3, 19968, 2, ((0, 4), (4, 4)), (("multiprocessor", 42),)),
    GiProfile(3, 4, 19968, 1, ((0, 4),), (("multiprocessor", 56),)),
    GiProfile(4, 7, 40192, 1, ((0, 8),), (("multiprocessor", 98),)),
    GiProfile(7, 1, 4864, 1, ONES, (("multiprocessor", 14),)),
    GiProfile(9, 1, 9856, 4, ((0, 2), (2, 2), (4, 2), (6, 2)), (("multiprocessor", 14),)),
)
GPU = MigGpu(0, "GPU-0", "0000:07:00.0", 0x20B010DE, 0x134F10DE, 42505273344, True, True, PROFILES)
T4 = MigGpu(1, "GPU-1", "0000:17:00.0", 0x1EB810DE, 0, 0)
OFF = replace(GPU, mode=False, pending=False)


def wanted(**counts: int) -> tuple[tuple[MigProfile, int], ...]:
    names = {name.lstrip("_").replace("_", "."): count for name, count in counts.items()}
    return tuple([(parse_profile(name, ""), count) for name, count in names.items()])


def devices(text: str, where: str = "all") -> str:
    return f"{{devices: {where}, mig-enabled: true, mig-devices: {{{text}}}}}"


def test_all_arrangements_of_an_a100() -> None:
    """Each set of up to seven whole instances is arranged exactly if there are places for it, tried one by one."""
    kinds = [(GPU.named(kind, kind.slices), kind) for kind in PROFILES]
    good = 0
    for count in range(1, 8):
        for some in itertools.combinations_with_replacement(kinds, count):
            masks: set[int] = {0}
            for _, kind in some:
                masks = {
                    taken | ((1 << size) - 1) << start
                    for taken in masks
                    for start, size in kind.placements
                    if not taken & ((1 << size) - 1) << start
                }
            fits = bool(masks) and sum(dict(kind.counts)["multiprocessor"] for _, kind in some) <= 98
            fits = fits and all(sum(1 for _, other in some if other is kind) <= kind.most for _, kind in some)
            counted = tuple([(name, sum(1 for other, _ in some if other == name)) for name in {name for name, _ in some}])
            if not fits:
                with pytest.raises(GpuError, match="GPU 0 has no room for "):
                    arrange(GPU, counted)
                continue
            good += 1
            made = arrange(GPU, counted)
            assert replace(GPU, instances=made).devices() == dict(counted)
            for one in made:
                kind_of = GPU.profile(one.profile)
                assert kind_of is not None and (one.start, one.size) in kind_of.placements
            for one, two in itertools.combinations(made, 2):
                assert one.start + one.size <= two.start or two.start + two.size <= one.start
    assert good > 100


def test_multiprocessors_count_beside_the_places() -> None:
    """A GPU with room in its memory for one instance more than it has multiprocessors for."""
    roomy = replace(PROFILES[0], most=8, placements=tuple([(n, 1) for n in range(8)]))
    gpu = replace(GPU, profiles=(roomy, PROFILES[4]))
    assert [one.start for one in arrange(gpu, wanted(_1g_5gb=7))] == list(range(7))
    with pytest.raises(GpuError, match="GPU 0 has no room for 8 of "):
        arrange(gpu, wanted(_1g_5gb=8))


def test_parts_of_an_instance() -> None:
    made = arrange(GPU, wanted(_1c_3g_20gb=4))
    assert [one.compute for one in made] == [(1, 1, 1), (1,)]
    made = arrange(GPU, wanted(_2c_3g_20gb=1, _1c_3g_20gb=1, _1g_5gb=1))
    assert [(one.profile, one.compute) for one in made] == [(2, (2, 1)), (0, (1,))]
    with pytest.raises(GpuError, match=r"no room for 4 of 2c\.3g\.20gb together"):
        arrange(GPU, wanted(_2c_3g_20gb=4))


def test_a_profile_that_the_gpu_does_not_have() -> None:
    with pytest.raises(GpuError, match=r"GPU 0 has no MIG profile 1g\.10gb\+me, it has: 1g\.5gb, 2g\.10gb, "):
        arrange(GPU, ((parse_profile("1g.10gb+me", ""), 1),))


def test_nothing_is_done_where_all_is_so() -> None:
    there = replace(GPU, instances=(Instance(2, 4, 4, (3,), 1), Instance(0, 2, 1, (1,), 9)))
    assert plan_config((there,), entries(devices("3g.20gb: 1, 1g.5gb: 1, 2g.10gb: 0"))) == ()
    assert plan_config((OFF,), entries("{devices: all, mig-enabled: false}")) == ()
    assert plan_config((GPU,), entries(devices(""))) == ()
    assert plan_config((there,), entries(devices("")), mode_only=True) == ()


def test_what_is_done() -> None:
    there = replace(GPU, instances=(Instance(2, 4, 4, (3,), 1), Instance(0, 2, 1, (1,), 9)))
    (change,) = plan_config((there,), entries(devices("7g.40gb: 1")))
    assert change.destroy == (1, 9) and change.mode is None and change.create == (Instance(4, 0, 8, (7,)),)
    assert change.words(True) == ("GPU-0 destroy 1", "GPU-0 destroy 9") and change.words(False) == ("GPU-0 create 4 0 8 7",)
    (change,) = plan_config((there,), entries("{devices: all, mig-enabled: false}"))
    assert change.destroy == (1, 9) and change.words(True)[-1] == "GPU-0 mode 0" and change.create == ()
    (change,) = plan_config((OFF,), entries(devices("1g.5gb: 7")), mode_only=True)
    assert change.words(True) == ("GPU-0 mode 1",) and change.create == ()


def test_an_instance_that_a_killed_change_has_left_is_taken_away() -> None:
    left = replace(GPU, instances=(Instance(2, 4, 4, (), 1),))
    (change,) = plan_config((left,), entries(devices("")))
    assert change.destroy == (1,) and change.create == ()
    (change,) = plan_config((left,), entries(devices("3g.20gb: 1")))
    assert change.destroy == (1,) and len(change.create) == 1


def test_a_mode_that_was_to_change_stays() -> None:
    waiting = replace(GPU, pending=False)
    (change,) = plan_config((waiting,), entries(devices("")))
    assert change.mode is True


def test_profiles_that_are_not_told_while_mig_is_off() -> None:
    silent = replace(OFF, profiles=())
    (change,) = plan_config((silent,), entries(devices("9g.99gb: 1")))
    assert change.mode is True and change.create == ()
    placeless = replace(OFF, profiles=tuple([replace(one, placements=()) for one in PROFILES]))
    (change,) = plan_config((placeless,), entries(devices("1g.5gb: 7")))
    assert change.mode is True and change.create == (), "what is told without places is planned once MIG is on"
    with pytest.raises(GpuError, match="has no MIG profile"):  # where they are, nothing is changed
        plan_config((OFF,), entries(devices("9g.99gb: 1")))


def test_which_gpus() -> None:
    assert plan_config((GPU, T4), entries(devices(""))) == ()
    assert plan_config((OFF, T4), entries("{devices: [1], mig-enabled: false}")) == ()
    with pytest.raises(GpuError, match=r"mig-configs.it\[0\]: GPU 1 \(0000:17:00.0\) cannot be divided by MIG"):
        plan_config((GPU, T4), entries(devices("1g.5gb: 1", "[0, 1]")))
    with pytest.raises(GpuError, match=r"it\[0\].devices: there is no GPU 7, the host has 2"):
        plan_config((GPU, T4), entries(devices("", "[7]")))
    last = entries("{devices: all, mig-enabled: false}", devices("1g.5gb: 1", "[0]"))
    (change,) = plan_config((GPU,), last)
    assert change.mode is None and len(change.create) == 1
    other = entries('{device-filter: "0x233010DE", devices: all, mig-enabled: false}')
    assert plan_config((GPU,), other) == ()


def test_a_lost_gpu() -> None:
    lost = MigGpu(1, problem="GPU is lost")
    with pytest.raises(GpuError, match="GPU 1 cannot be asked what it is divided into: GPU is lost"):
        plan_config((GPU, lost), entries(devices("")))
    assert plan_config((GPU, lost), entries(devices("", "[0]"))) == ()


def test_going_back() -> None:
    before = replace(GPU, instances=(Instance(2, 0, 4, (2, 1), 1), Instance(0, 6, 1, (1,), 9)))
    assert plan_restore((replace(before, instances=before.instances[::-1]),), (before,)) == ()
    now = replace(GPU, instances=(Instance(2, 4, 4, (3,), 2),))
    (change,) = plan_restore((now,), (before,))
    assert change.destroy == (2,) and change.words(False) == ("GPU-0 create 2 0 4 2 1", "GPU-0 create 0 6 1 1")
    (change,) = plan_restore((OFF,), (before,))
    assert change.mode is True and len(change.create) == 2
    (change,) = plan_restore((now,), (OFF,))
    assert change.words(True) == ("GPU-0 destroy 2", "GPU-0 mode 0")
    assert plan_restore((replace(now, uuid="GPU-9"), MigGpu(1, problem="lost")), (before,)) == ()


def test_as_the_library_tells(tmp_path: Path) -> None:
    host = MigHost(tmp_path, gpus=2, unable=1)
    gpu, other = host.gpus()
    assert [replace(one, counts=one.counts[:1]) for one in gpu.profiles] == list(PROFILES)
    assert (gpu.device, gpu.mode, gpu.pending) == (0x20B010DE, False, False) and other.mode is None
    host.divide("2g.10gb", "1c.3g.20gb", "1c.3g.20gb")
    gpu = host.gpus()[0]
    assert gpu.mode and gpu.instances == (Instance(2, 0, 4, (1, 1), 1), Instance(1, 4, 2, (2,), 2))
    host.control("lost 0")
    assert host.gpus()[0].problem == "GPU is lost (nvmlDeviceGetHandleByIndex_v2: 15)"
    host.control("fail DeviceGetGpuInstances 1 15")
    assert "GPU is lost" in host.gpus()[0].problem

"""How refusals list GPUs."""

from __future__ import annotations

from gpurun.gpu.host.naming import makers_list, short_list


def test_parts_of_one_gpu_are_one_range_and_a_model_is_said_once() -> None:
    assert short_list([]) == "none"
    assert short_list([(0, "a", "M"), (1, "b", "M"), (2, "c", "N")]) == "0 = a, 1 = b (M); 2 = c (N)"
    assert short_list([(0, "a", ""), (1, "b", "")]) == "0 = a, 1 = b"
    parts = [(n, f"{'ab'[n // 4]}/{n % 4}", "M") for n in range(8)]
    assert short_list(parts) == "0 to 3 = a/0 to /3, 4 to 7 = b/0 to /3 (M)"
    assert short_list([(0, "a/0", "M"), (1, "b", "M"), (2, "c/0", "N"), (4, "c/2", "N")]) == (
        "0 = a/0, 1 = b (M); 2 = c/0, 4 = c/2 (N)"
    )


def test_gpus_of_several_makers() -> None:
    assert makers_list([("nvidia", 0, "a"), ("amd", 0, "b/0"), ("amd", 1, "b/1")]) == (
        "nvidia:0 (a), amd:0 to amd:1 (b/0 to /1)"
    )


def test_no_more_than_sixteen_are_listed() -> None:
    many = [(n, f"a{n}", "M") for n in range(20)]
    assert short_list(many[:16]).endswith("15 = a15 (M)")
    assert short_list(many).endswith("15 = a15 (M) and 4 more (`gpurun gpu list`)")
    assert makers_list([("amd", n, name) for n, name, _ in many]).endswith("amd:15 (a15) and 4 more (`gpurun gpu list`)")

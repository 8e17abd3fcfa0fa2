"""What skopeo and umoci say for their end, as a sentence."""

from __future__ import annotations

import pytest

from gpurun.images.unpack import _reason


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['time="t" level=fatal msg="Get \\"https://a/v2/\\": no such host"'], 'Get "https://a/v2/": no such host'),
        (['time="t" level=fatal msg="a \\\\ b"'], "a \\ b"),
        (["more", "   \u2a2f the end"], "the end"),
        (["runtime: out of memory", "goroutine 1"], "runtime: out of memory"),
    ],
)
def test_the_reason_of_a_program_in_go(lines: list[str], said: str) -> None:
    assert _reason(lines) == said

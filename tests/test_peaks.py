"""Peak rates by the names that torch gives GPUs; numbers are dense bf16 of the makers' sheets."""

import pytest

from blindspot.config.devices import peak


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("h200", 989),
        ("NVIDIA H200 NVL", 836),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
    ],
)
def test_a_gpu_has_its_sheets_peak(device, tflops):
    assert peak(device) == tflops * 1e12


@pytest.mark.parametrize("device", ["AMD EPYC 7763", "NVIDIA RTX A1000", "NVIDIA L40", ""])
def test_no_peak_is_guessed(device):
    assert peak(device) is None


def test_float32_has_a_peak_of_its_own():
    assert peak("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12

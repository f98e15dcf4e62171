"""Units are converted when input is read: every spelling of a quantity means the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.catalogue import load_network
from scaleacross.units import SI_SUFFIXES, USER_UNITS, human_bytes, human_seconds, si_key, to_si, user_keys


@pytest.mark.parametrize(
    ("key", "value", "si_name", "si_value"),
    [
        ("one_way_latency_us", 20, "one_way_latency_s", 20e-6),
        ("one_way_latency_ms", 4.9, "one_way_latency_s", 4.9e-3),
        ("bandwidth_gbit_per_s", 400, "bandwidth_bytes_per_s", 50e9),
        ("bandwidth_tbit_per_s", 12.8, "bandwidth_bytes_per_s", 1.6e12),
        ("bandwidth_gbyte_per_s", 450, "bandwidth_bytes_per_s", 450e9),
        ("bandwidth_tbyte_per_s", 3.35, "bandwidth_bytes_per_s", 3.35e12),
        ("peak_tflop_per_s", {"bf16": 989.4}, "peak_flop_per_s", {"bf16": 989.4e12}),
        ("peak_pflop_per_s", {"bf16": 2.5}, "peak_flop_per_s", {"bf16": 2.5e15}),
        ("memory_mib", 81559, "memory_bytes", 81559 * 2**20),
        ("memory_gib", 80, "memory_bytes", 80 * 2**30),
        ("memory_gb", 80, "memory_bytes", 80e9),
        ("power_kilowatt", 1.2, "power_watt", 1200),
    ],
)
def test_user_unit_becomes_si(key: str, value: object, si_name: str, si_value: object) -> None:
    assert to_si({key: value}, [si_name]) == {si_name: pytest.approx(si_value)}


def test_quoted_number_is_converted_too() -> None:
    # validation reads numeric text as a number; without conversion it would be wrong by the unit's factor
    assert to_si({"one_way_latency_us": "20"}, ["one_way_latency_s"]) == {"one_way_latency_s": pytest.approx(20e-6)}


@pytest.mark.parametrize("value", ["fast", None, True, [1]])
def test_what_is_no_number_is_left_for_validation(value: object) -> None:
    assert to_si({"one_way_latency_us": value}, ["one_way_latency_s"]) == {"one_way_latency_s": value}


def test_memories_and_prices_of_terabytes() -> None:
    stated = {"ssd_tb": 30, "memory_tib": 2, "egress_price_per_tb": 20}
    found = to_si(stated, ["ssd_bytes", "memory_bytes", "egress_price_per_byte"])
    assert found == {"ssd_bytes": 30e12, "memory_bytes": 2 * 2**40, "egress_price_per_byte": pytest.approx(20e-12)}


def test_unknown_key_is_left_for_validation() -> None:
    assert to_si({"speed_us": 1, "other": 2}, ["latency_s"]) == {"speed_us": 1, "other": 2}


def test_same_quantity_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'latency_s' is stated twice"):
        to_si({"latency_us": 1, "latency_ms": 1}, ["latency_s"])


@given(st.sampled_from(sorted(USER_UNITS)), st.floats(1e-6, 1e6))
def test_every_spelling_of_a_field_leads_back_to_it(suffix: str, value: float) -> None:
    si_name = "x" + USER_UNITS[suffix][0]
    assert "x" + suffix in user_keys(si_name)
    assert si_key("x" + suffix) == (si_name, USER_UNITS[suffix][1])
    assert to_si({"x" + suffix: value}, [si_name])[si_name] == value * USER_UNITS[suffix][1]


def test_si_suffixes_are_what_user_units_lead_to() -> None:
    assert {si for si, _ in USER_UNITS.values()} == set(SI_SUFFIXES)
    assert user_keys("num_hosts") == ["num_hosts"]


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (80 * 2**30, "80.0 GiB"), (2**60, "1048576.0 TiB")]
)
def test_human_bytes(value: float, text: str) -> None:
    assert human_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0.00 s"), (5.861, "5.86 s"), (0.2121, "212 ms"), (2e-5, "20 µs")])
def test_human_seconds(value: float, text: str) -> None:
    assert human_seconds(value) == text


def test_a_copy_with_what_is_no_field_is_refused() -> None:
    """Pydantic keeps such a key as an attribute that nobody reads: a rate under a user's unit changed nothing."""
    network = load_network("roce-400g")
    assert network.model_copy(update={"bandwidth_bytes_per_s": 1e9}).bandwidth_bytes_per_s == 1e9
    with pytest.raises(ValueError, match="NetworkTechnology has no field bandwidth_gbit_per_s"):
        network.model_copy(update={"bandwidth_gbit_per_s": 8.0})

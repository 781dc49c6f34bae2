"""Published numbers come out of this project's arithmetic, each with the tolerance that its source's printing allows.

The names A01 … are those of the acceptance list. A04, A05, A09 and A10 are measured on real ranks in other files.
"""

import math

import pytest

import tp_teach as tp
from tp_teach.model.config import published_models
from tp_teach.predict import papers
from tp_teach.predict.activations import Activations
from tp_teach.predict.collectives import gloo_bytes
from tp_teach.predict.flops import flops
from tp_teach.predict.parameters import count, mixture_count
from tp_teach.predict.published import figures, gpu, hardware, rows
from tp_teach.predict.recipes import RECIPES
from tp_teach.tables import wire_bytes

GIB = 2**30
MODELS = published_models()
FIGURES = figures()


def table(paper: str, name: str, key: str = "model") -> dict:
    return {row[key]: row for row in rows(FIGURES[paper][name])}


KORTHIKANTI = table("korthikanti2022", "table3")


def layer_bytes(kept: str, row: dict) -> float:
    """Table 2 of Korthikanti et al. for one of its models."""
    return papers.layer_activation_bytes(kept, row["micro_batch"], 2048, row["hidden"], row["heads"], row["tp"])


def test_the_table_of_gpus_names_what_it_knows():
    assert gpu("H100-SXM-80GB")["nvlink_uni_gbytes_per_s"] == 450
    with pytest.raises(ValueError, match="gpu='H900' is not known; use 'A100"):
        gpu("H900")


def test_every_number_names_its_source():
    entries = [*MODELS.values(), *hardware()["gpus"].values(), *hardware()["all_reduce_bus_bandwidth"].values()]
    entries += [part for part in FIGURES.values() if isinstance(part, dict) and part != FIGURES["status"]]
    for entry in entries:
        assert any(status in entry["source"] for status in ("(direct)", "(secondary)", "(unverified)")), entry


@pytest.mark.parametrize("model", MODELS)
def test_a01_parameters_of_a_published_model(model):
    assert count(tp.TrainConfig.preset(model)) == MODELS[model]["parameters"]


def test_a01_parameters_of_a_mixture_of_experts():
    mixtral = FIGURES["mixtral-8x7b-v0.1"]
    assert mixture_count(tp.TrainConfig(**mixtral["fields"]), mixtral["experts"]) == mixtral["parameters"]


def test_a02_a_checkpoint_of_llama_2_holds_more_numbers_than_parameters():
    """Old checkpoints store the rotary frequencies of each layer: half a head."""
    for name in ("llama2-7b", "llama2-13b", "llama2-70b"):
        config, entry = tp.TrainConfig.preset(name), MODELS[name]
        assert entry["numbers_in_checkpoint"] - entry["parameters"] == config.num_layers * config.head_dim // 2


def test_a03_parameters_of_llama_3_70b_on_one_of_8_ranks():
    assert count(tp.TrainConfig.preset("llama3-70b", vocab_parallel=True), 8) == 8820367360


@pytest.fixture(scope="module")
def llama_70b():
    """Rank 0's collectives of Llama-3-70B on 8 ranks, plain and with sequence parallelism: 4096 tokens in bf16."""
    tables = []
    for sequence_parallel in (False, True):
        cut = dict(vocab_parallel=True, loss_parallel=True, sequence_parallel=sequence_parallel)
        comm = tp.predict(tp.TrainConfig.preset("llama3-70b", **cut), 8).comm
        tables.append(comm[(comm["rank"] == 0) & (comm["op"] != "broadcast")])
    return tables


def test_a06_collectives_of_a_whole_step(llama_70b):
    """4 a layer, 1 for the embedding, 1 for the head; and 3 small ones for the loss."""
    plain, _ = llama_70b
    assert set(plain["op"]) == {"all_reduce"}
    assert plain["payload_bytes"].value_counts().to_dict() == {67108864: 322, 16384: 3}
    assert (plain[plain["payload_bytes"] == 16384][["phase", "module"]] == ["forward", ""]).all(axis=None)


def test_a08_sequence_parallelism_moves_the_same_ring_bytes(llama_70b):
    """All-gathers and reduce-scatters, 322 of each. Beside them the gradients of 161 norms, and the loss."""
    plain, sequence = (comm[comm["payload_bytes"] == 67108864] for comm in llama_70b)
    assert sequence["op"].value_counts().to_dict() == {"all_gather": 322, "reduce_scatter": 322}
    assert plain["wire_bytes"].sum() == sequence["wire_bytes"].sum() == 37815844864
    others = llama_70b[1][llama_70b[1]["payload_bytes"] != 67108864]
    assert others["payload_bytes"].value_counts().to_dict() == {2 * 8192: 161 + 3}


def test_gloo_sends_half_as_much_again_under_sequence_parallelism(llama_70b):
    """What tp.wire measures as A10, by arithmetic."""
    sent = [
        sum(gloo_bytes(row.op, row.payload_bytes, 8) for row in comm.itertuples() if row.payload_bytes == 67108864)
        for comm in llama_70b
    ]
    assert sent[1] * 2 == sent[0] * 3


def test_a07_communication_of_one_layer():
    elements = papers.tensor_parallel_elements(b=1, s=4096, h=8192, t=8)
    assert elements == 234881024
    assert 4 * wire_bytes("all_reduce", 4096 * 8192 * 2, 8) == 2 * elements == 469762048
    assert 322 * wire_bytes("all_reduce", 4096 * 8192 * 2, 8) == 37815844864


def gpt_layer(row: dict, ranks: int, **cut) -> float:
    """Bytes that one gpt block of this project keeps on a rank, in units of s b h."""
    config = tp.TrainConfig(
        model="decoder",
        block="gpt",
        vocab_size=51200,
        seq_len=2048,
        d_model=row["hidden"],
        hidden_dim=4 * row["hidden"],
        num_heads=row["heads"],
        num_kv_heads=row["heads"],
        batch_size=row["micro_batch"],
        dropout=0.1,
        dtype="bfloat16",
        **cut,
    )
    return Activations(config, ranks).layer() / (2048 * row["micro_batch"] * row["hidden"])


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_a11_saved_activations_of_a_gpt_block(model):
    """The paper leaves out the norms' means and deviations: 8 / h, at most 0.0013 s b h."""
    row, unit = KORTHIKANTI[model], 2048 * KORTHIKANTI[model]["micro_batch"] * KORTHIKANTI[model]["hidden"]
    for ranks, kept, expect in ((1, "none", (140.6667, 114, 98)), (8, "tp", (26.3333, 23, 21))):
        paper = float(layer_bytes(kept, row) / unit)
        assert paper == pytest.approx(dict(zip(KORTHIKANTI, expect, strict=True))[model], abs=1e-4)
        assert gpt_layer(row, ranks) - paper == pytest.approx(8 / row["hidden"], abs=1e-9)


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_a12_sequence_parallelism_keeps_two_inputs_more_than_the_paper(model):
    """DTensor keeps the gathered inputs of attention and MLP: 4 (1 - 1 / 8) s b h."""
    row = KORTHIKANTI[model]
    unit = 2048 * row["micro_batch"] * row["hidden"]
    more = gpt_layer(row, 8, sequence_parallel=True) - float(layer_bytes("tp_sp", row) / unit)
    assert more == pytest.approx(3.5, abs=0.005)


def test_a13_parameters_of_narayanan_table_1():
    sizes = FIGURES["narayanan2021"]["table1"]
    for row in rows(sizes):
        count = papers.gpt_parameters(row["layers"], row["hidden"], sizes["vocab"], sizes["seq"])
        assert round(float(count) / 1e9, 1) == row["params_B"]


@pytest.mark.parametrize("model", ["gpt3", "1T"])
def test_a14_days_of_training(model):
    row = FIGURES["narayanan2021"]["training_time"][model]
    assert round(papers.training_days(row["P"], row["T"], row["n"], row["X"])) == row["days"]


def test_a15_days_of_training_in_narayanan_table_2():
    """Equation 4 drops two terms of equation 3, so it is low, by at most 3.5 %, in every row but for rounding."""
    for row in rows(FIGURES["narayanan2021"]["table2"]):
        days = papers.training_days(row["params_B"] * 1e9, 300e9, row["gpus"], row["tflops"] * 1e12)
        assert -0.035 <= days / row["days_300B"] - 1 <= 0, row


def test_equation_3_of_narayanan_explains_its_throughput():
    """Table 1: operations a second of the whole machine, printed as petaflop/s and as a share of the peak."""
    for row in rows(FIGURES["narayanan2021"]["table1"]):
        assert row["pflops"] == pytest.approx(row["tflops"] * row["gpus"] / 1000, abs=0.5 * row["gpus"] / 1000 + 0.05)
        assert round(100 * row["tflops"] / gpu("A100-SXM-80GB")["bf16_tflops"]) == pytest.approx(row["pct_peak"], abs=1)


def test_a16_sizes_of_shoeybi_table_1():
    sizes = FIGURES["shoeybi2019"]["table1"]
    for row in rows(sizes):
        count = papers.gpt_parameters(row["layers"], row["hidden"], sizes["vocab"], sizes["seq"])
        assert round(float(count) / 1e9, 1) == row["params_B"]


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_a17_korthikanti_figure_1(model):
    row, expect = KORTHIKANTI[model], FIGURES["korthikanti2022"]["figure1_gib"][model]
    held = papers.weights_and_optimizer_bytes(row["layers"], row["hidden"], row["tp"], row["pp"])
    assert float(held / GIB) == pytest.approx(expect["par_opt"], rel=1e-6)
    extra = row["layers"] * papers.interleave_factor(row["pp"], row["interleave_m"])
    assert float(extra * layer_bytes("tp", row) / GIB) == pytest.approx(expect["none"], rel=1e-6)
    assert float(extra * layer_bytes("tp_sp_sel", row) / GIB) == pytest.approx(expect["seqsel"], rel=1e-6)


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_a18_korthikanti_figure_7(model):
    """Percent of what tensor parallelism alone keeps. 0.2 points: the figure was read off."""
    row, names = KORTHIKANTI[model], {"seq": "tp_sp", "sel": "tp_sel", "seqsel": "tp_sp_sel", "full": "full"}
    for name, expect in FIGURES["korthikanti2022"]["figure7_pct"][model].items():
        share = 100 * layer_bytes(names[name], row) / layer_bytes("tp", row)
        assert float(share) == pytest.approx(expect, abs=0.2)


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_a19_korthikanti_table_5(model):
    """MFU and HFU in percent. 0.25 points: iteration times are printed with two digits."""
    row, expect = KORTHIKANTI[model], table("korthikanti2022", "table5")[model]
    sizes = (row["layers"], row["hidden"], 51200, 2048, row["global_batch"])
    for formula, percent in ((papers.model_step_flops, "mfu"), (papers.hardware_step_flops, "hfu")):
        share = papers.utilization(formula(*sizes), expect["present_s"], row["gpus"], 312e12)
        assert 100 * share == pytest.approx(expect[percent], abs=0.25)


def test_a19_korthikanti_530b_with_data_parallelism():
    row, expect = KORTHIKANTI["530B"], FIGURES["korthikanti2022"]["data_parallel_530B"]
    batch = row["global_batch"] * expect["data_parallel"]
    flops = papers.model_step_flops(row["layers"], row["hidden"], 51200, 2048, batch)
    share = papers.utilization(flops, expect["seconds"], expect["gpus"], 312e12)
    assert 100 * share == pytest.approx(expect["mfu"], abs=0.25)


def test_a21_megatron_on_h100():
    """Equation 2 of Narayanan et al. with an output matrix of its own. The first size, 1.754, is cut off in print."""
    sizes = FIGURES["megatron_h100"]
    counts = []
    for row in rows(sizes):
        count = papers.gpt_parameters(row["layers"], row["hidden"], sizes["vocab"], sizes["seq"], tied=False)
        counts.append(float(count) / 1e9)
        assert round(100 * row["tflops"] / 989) == row["mfu"]
    assert int(10 * counts[0]) / 10 == 1.7
    printed = [round(counts[1], 1), *map(round, counts[2:])]
    assert printed == [row["params_B"] for row in rows(sizes)][1:]


def test_a22_bus_bandwidth_factors():
    for op, factor in FIGURES["nccl_tests"]["bus_factor_8_ranks"].items():
        assert wire_bytes(op, 8000, 8) == factor * 8000


def test_a23_two_parameters_describe_a_sweep():
    """Without the first, the 40 microseconds to start, the smallest message would be 200 times too fast."""
    sweep = hardware()["all_reduce_8xH200"]
    alpha, bus = sweep["fit"]["alpha_us"] * 1e-6, sweep["fit"]["bus_gbytes_per_s"] * 1e9
    for row in rows(sweep):
        size, seconds = row["bytes"], row["bytes"] / (row["algorithm_gbytes_per_s"] * 1e9)
        predicted = papers.collective_seconds("all_reduce", size, 8, alpha, bus)
        assert predicted == pytest.approx(seconds, rel=0.25 if 2**20 <= size <= 2**27 else 0.1)
    first = rows(sweep)[0]
    without = papers.collective_seconds("all_reduce", first["bytes"], 8, 0, bus)
    assert first["bytes"] / (first["algorithm_gbytes_per_s"] * 1e9) / without > 200


def test_a24_largest_cut_that_computes_more_than_it_sends():
    hidden = tp.TrainConfig.preset("llama3-70b").hidden_dim
    node = papers.largest_compute_bound_cut(hidden, FIGURES["scaling_book"]["h100_flops_per_byte_in_node"])
    beyond = papers.largest_compute_bound_cut(hidden, FIGURES["scaling_book"]["h100_flops_per_byte_beyond_node"])
    assert (node, beyond) == (pytest.approx(13.03, abs=0.01), pytest.approx(11.58, abs=0.01))
    assert 2 ** int(math.log2(node)) == 8


def test_a25_zero_figure_1():
    figure = FIGURES["rajbhandari2020"]["figure1"]
    held = [papers.zero_bytes(figure["parameters"], figure["ranks"], stage) / 1e9 for stage in range(4)]
    assert [round(number, 1) for number in held] == figure["gb"]


def test_a26_what_70b_parameters_cost_on_one_of_8_ranks():
    """At 18, 16 and 10 bytes a parameter. A GPU of 80 GB holds none of them."""
    parameters = count(tp.TrainConfig.preset("llama3-70b", vocab_parallel=True), 8)
    for recipe, gib in (("megatron", 147.863), ("mixed", 131.434), ("no gradients", 82.146)):
        held = parameters * RECIPES[recipe].total
        assert held / GIB == pytest.approx(gib, rel=1e-4)
        assert held > gpu("H100-SXM-80GB")["hbm_gb"] * 1e9


def test_a27_flops_of_two_layers_and_the_head_on_one_of_8_ranks():
    """The fused attention computes the scores once more in its backward: a fifth of that, which A27 leaves out."""
    work = flops(tp.TrainConfig.preset("llama3-70b", num_layers=2, vocab_parallel=True), 8)
    again = sum(row["flops"] for row in work if row["op"] == "attention_backward") // 5
    assert sum(row["flops"] for row in work) - again == 8897024753664


def test_recipes_add_up_to_the_numbers_in_use():
    assert sorted(recipe.total for recipe in RECIPES.values()) == [8, 10, 12, 16, 16, 18, 20, 32]


@pytest.mark.parametrize(
    "call", [lambda: papers.layer_activation_bytes("some", 1, 1, 1, 1, 1), lambda: papers.zero_bytes(1, 1, 4)]
)
def test_an_unknown_row_names_the_known_ones(call):
    with pytest.raises(ValueError, match="use "):
        call()
